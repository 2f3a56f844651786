// Communicator: a fixed set of ranks that call the same collectives in the same order.
//
// Made from a key-value store; holds an engine, the rules and a trace. Calls are posted without
// blocking; whoever waits drives: the thread inside Work::wait() makes the progress itself. Work
// that nobody waits for is driven by a background thread (`background` in a Call). Thread-safe:
// calls from several threads are queued in the order in which they were posted. Must not be used in
// a forked child.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accl/rules.h"
#include "accl/schedule.h"
#include "accl/store.h"
#include "accl/types.h"

namespace accl {

using Milliseconds = std::chrono::milliseconds;

inline constexpr int kAnySource = -1;

struct CommunicatorOptions {
  // For making the communicator and, by default, for each call. Must be above 0.
  Milliseconds timeout{30 * 60 * 1000};
  // Appears in errors, log lines and the trace.
  std::string name = "world";
  // Rules to use; null: rules_file, else the file that ACCL_RULES names, else the defaults.
  std::shared_ptr<const Rules> rules;
  // A file read while the communicator is made, so that the other ranks hear of it where it cannot
  // be.
  std::string rules_file;
};

// A buffer of a call: contiguous memory, or one block a rank (lists of tensors go without a copy).
// Where `blocks` is not empty, `data` is ignored, and block r has blocks[r].second bytes at
// blocks[r].first.
struct Buffer {
  void* data = nullptr;
  std::vector<std::pair<void*, std::size_t>> blocks;
};

// One collective call. Memory belongs to the caller and must stay until the work is complete; input
// is never written. `count` is in elements, and as in NCCL:
//   all_reduce, broadcast, reduce, send, recv  elements of the buffer
//   all_gather, gather                         elements that one rank contributes
//   reduce_scatter, scatter                    elements that one rank gets
//   all_to_all                                 elements for one peer
// Uneven sizes: `counts` (one a rank, equal on all ranks; for all_to_all what this rank sends to
// each) and, for all_to_all, `receive_counts`; `count` is then ignored. In place: input.data ==
// output.data for all_reduce, broadcast, reduce; for all_gather and gather the input may be the own
// block of the output, for reduce_scatter and scatter the output the own block of the input;
// all_to_all may not be in place.
// broadcast: the root reads input, everybody (the root too, where it differs) writes output.
// reduce, gather: output is used on the root alone. scatter: input is used on the root alone.
struct Call {
  Collective collective = Collective::kAllReduce;
  Buffer input;
  Buffer output;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor =
      1.0;       // of premul_sum; the complex types and integers take it too (as a real number)
  int root = 0;  // of broadcast, reduce, gather, scatter
  int peer = 0;  // of send and recv; kAnySource for recv
  int tag = 0;   // of send and recv
  std::vector<std::size_t> counts;
  std::vector<std::size_t> receive_counts;
  Choice forced;            // non-empty fields override the rules; must be the same on every rank
  Milliseconds timeout{0};  // 0: the communicator's
  bool background =
      false;  // hand unfinished work to the background thread: nobody may wait for it soon
};

// Counters of what the executor really did for one work, for tests and the trace.
struct WorkReport {
  std::string algorithm;
  std::string protocol;
  std::size_t chunk_bytes = 0;
  Traffic traffic;
};

// One posted call. Shared; may be dropped (the call still completes), waited on several times, from
// any thread.
class Work {
 public:
  virtual ~Work() = default;

  virtual bool completed() const noexcept = 0;   // with or without an error
  virtual bool failed() const noexcept = 0;      // completed with an error
  virtual std::exception_ptr error() const = 0;  // null unless failed

  // Drives until complete; throws the work's error. Returns false if `timeout` passed first: the
  // work goes on and the communicator stays usable. Milliseconds::max() waits until the call's own
  // deadline fails it.
  virtual bool wait(Milliseconds timeout = Milliseconds::max()) = 0;

  // Calls `done` once, after completion, on a completion thread that may block (or at once on that
  // thread pool if already complete). Never on the thread that makes progress.
  virtual void on_complete(std::function<void()> done) = 0;

  virtual std::uint64_t sequence() const noexcept = 0;  // from 1; collectives and p2p count apart
  virtual int source_rank() const noexcept = 0;         // of a recv: who sent; -1 until complete
  virtual WorkReport report() const = 0;
};

// What one communicator did since it was made.
struct Statistics {
  std::uint64_t works_posted = 0;
  std::uint64_t works_completed = 0;
  std::uint64_t works_failed = 0;
  Traffic traffic;
  std::size_t staging_bytes = 0;  // shared memory that this rank owns for this communicator
};

class Communicator {
 public:
  virtual ~Communicator() = default;  // shuts down; never throws

  // Collective over all ranks. Throws InvalidArgument (rank or size out of range), MismatchError
  // (sizes, versions or rules differ between ranks), TimeoutError, StoreError, SystemError.
  static std::shared_ptr<Communicator> create(Store& store, int rank, int size,
                                              const CommunicatorOptions& options = {});

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual int nodes() const noexcept = 0;
  virtual const std::string& name() const noexcept = 0;
  virtual Milliseconds timeout() const noexcept = 0;
  virtual void set_timeout(Milliseconds) = 0;
  virtual std::shared_ptr<const Rules> rules() const = 0;

  // Posts a call and makes one non-blocking pass of progress. Throws InvalidArgument for a bad
  // call, and the error that ended the communicator if it has ended; errors of the call itself come
  // from the work.
  virtual std::shared_ptr<Work> post(const Call&) = 0;

  // Posts several sends and receives at once (order among them does not matter); one work for all.
  virtual std::shared_ptr<Work> post_group(const std::vector<Call>&) = 0;

  // What a call would use: rules first, then the engine's defaults.
  virtual Choice choice_for(const Call&) const = 0;

  // Ends every pending and later call with AbortedError, here and (as PeerError) on all peers.
  // Idempotent, from any thread.
  virtual void abort(const std::string& reason) = 0;

  // The error that ended the communicator; null while it is healthy.
  virtual std::exception_ptr error() const = 0;

  // Waits for posted calls (up to the timeout), then leaves. Idempotent. After it, post throws
  // AbortedError.
  virtual void shutdown() = 0;

  virtual Statistics statistics() const = 0;

  // The last 2,048 operations as JSON (docs/trace.md); also written to ACCL_TRACE_DIR on a timeout.
  virtual std::string trace_json() const = 0;
};

}  // namespace accl
