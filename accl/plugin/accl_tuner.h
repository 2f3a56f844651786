/* The control interface of the NCCL tuner plugin, for the process that NCCL loaded it into.
 *
 * NCCL loads the plugin by the path in NCCL_TUNER_PLUGIN; a dlopen of the same path gives the same
 * object, and these functions with it. They may be called from any thread, at any time, also before
 * NCCL has loaded the plugin. What they set must be set alike on every rank before the collective
 * that it is for: NCCL hangs where ranks choose differently. Plain C, so that ctypes and cffi read
 * it as well.
 */
#ifndef ACCL_TUNER_H
#define ACCL_TUNER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ACCL_TUNER_MAX_ALGORITHMS = 16, ACCL_TUNER_MAX_PROTOCOLS = 4 };

/* What came of one question of NCCL. */
enum accl_tuner_outcome {
  ACCL_TUNER_NONE = 0,    /* NCCL has not asked yet */
  ACCL_TUNER_LEFT = 1,    /* no rule and no forced choice held: everything left as it came */
  ACCL_TUNER_APPLIED = 2, /* a choice was written */
  ACCL_TUNER_IGNORED = 3, /* a choice held, but NCCL rules it out here (-1, or no such entry) */
  ACCL_TUNER_DIFFER = 4   /* left as it came, since the ranks' rules differ */
};

/* The last question, and totals since the process started. The table holds as many entries as fit;
 * `algorithms` and `protocols` are NCCL's own numbers. */
struct accl_tuner_last {
  uint64_t size;          /* of this structure, set by the caller: sizeof(struct accl_tuner_last) */
  uint64_t communicators; /* inits so far: 0 means that NCCL has not loaded the plugin */
  uint64_t live;          /* communicators that are not finalized */
  uint64_t questions;     /* calls of getCollInfo so far; `last` fields are of the latest */
  uint64_t applied, ignored;
  uint64_t communicator; /* commId; 0 with version 4 of the interface */
  uint64_t ranks, nodes;
  uint64_t message_bytes;
  int32_t version;  /* of the interface: 4, 5 or 6 */
  int32_t function; /* as NCCL numbers it: broadcast 0, reduce 1, all_gather 2, reduce_scatter 3,
                       all_reduce 4 */
  int32_t pipe_ops, registered;
  int32_t algorithms, protocols;
  int32_t channels_before, channels_after;
  int32_t outcome; /* enum accl_tuner_outcome */
  int32_t forced;  /* 1: the choice was forced, 0: it came from a rule */
  int32_t line;    /* of the rule in its file; 0 where there was none */
  int32_t entries; /* how many entries of the table were written */
  float before[ACCL_TUNER_MAX_ALGORITHMS][ACCL_TUNER_MAX_PROTOCOLS];
  float after[ACCL_TUNER_MAX_ALGORITHMS][ACCL_TUNER_MAX_PROTOCOLS];
  uint64_t chunk_questions; /* calls of getChunkSize so far (version 6) */
  uint64_t chunk_before, chunk_after;
};

/* Forces a choice for a collective ("all_reduce", "allreduce", ...), from the next one on, in every
 * communicator of the process, in place of the rules, until it is cleared or replaced. Words are
 * those of a rules file; NULL, "" and "-1" leave algorithm or protocol to NCCL, as do channels and
 * chunk_bytes of 0. Returns 0, or 1 where a value is not accepted: accl_tuner_error() says why, and
 * nothing has changed. An entry that NCCL ignores is not written, as with rules. */
int accl_tuner_force(const char* collective, const char* algorithm, const char* protocol,
                     int channels, size_t chunk_bytes);

/* Takes all forced choices back; the rules hold again. */
void accl_tuner_clear(void);

/* Gives rules, as text in the grammar of a rules file, to the communicators that are made from now
 * on, in place of ACCL_RULES: by the calling thread alone, or with `everywhere` by all threads
 * (what a thread has set for itself goes first). "By the calling thread" holds for threads that it
 * starts meanwhile, too: NCCL makes communicators in threads of its own. They are known by their
 * name, which they inherit: while rules are given, the calling thread is named such as "accl:7".
 * NULL ends it. `name` is what messages call the rules; NULL reads "given rules". Returns 0, or 1
 * with accl_tuner_error(). */
int accl_tuner_give_rules(const char* text, const char* name, int everywhere);

/* How many communicators have taken the rules that the calling thread has given for itself, and
 * has not ended yet. */
uint64_t accl_tuner_taken(void);

/* Reads the environment and the rules file that it names again, for communicators that are made
 * from now on, and warns again where they cannot be used. */
void accl_tuner_reload(void);

/* Fills `last`. Returns 0, or 1 where `last` is NULL or last->size is not the structure's: then
 * caller and plugin are of different versions. */
int accl_tuner_report(struct accl_tuner_last* last);

/* The sentence of this thread's last failed call; "" where none failed. Valid until the thread's
 * next call. */
const char* accl_tuner_error(void);

#ifdef __cplusplus
}
#endif

#endif
