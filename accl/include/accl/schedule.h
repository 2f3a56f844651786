// Schedule: the pure form of an algorithm, for one rank: rounds of transfers (who sends which bytes
// to whom, reduced or copied), with repeat counts, no I/O. The engine executes the very schedules
// that the simulator prices.
//
// Vocabulary. A *place* is a byte offset in one of three buffers: the call's input, its output, or
// scratch. All transfers of a *round* may proceed at the same time; the next round starts when this
// rank's transfers of the round are done. A *loop* repeats its rounds, moving every input and
// output place by a stride each time: so large buffers go through in pieces of about `chunk_bytes`,
// which stay in the cache.
//
// Matching: the k-th message that rank a sends to rank b is the k-th message that b receives from
// a, with the same number of bytes; messages of 0 bytes exist only where the plan says so
// (barrier). Tests hold this for every algorithm (tests/cpp/unit/schedule_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "accl/types.h"

namespace accl {

enum class BufferKind : std::uint8_t { kInput, kOutput, kScratch };

struct Place {
  BufferKind buffer = BufferKind::kInput;
  std::size_t offset = 0;  // bytes; in scratch it never moves with the loop
  bool operator==(const Place&) const = default;
};

struct Send {
  int peer = 0;
  Place from;
  std::size_t bytes = 0;
};

struct Receive {
  int peer = 0;
  Place to;
  std::size_t bytes = 0;
};

// to = op(own, what the peers send), all operands taken in ascending rank order, so that every rank
// that reduces the same operands gets the same bits. `last`: the result is complete (an average
// divides here).
struct Reduce {
  std::vector<int> peers;  // ascending, without the own rank
  Place own;
  Place to;
  std::size_t bytes = 0;
  bool last = true;
};

// A move inside this rank's own memory; skipped by the engine where both places are the same
// memory.
struct Copy {
  Place from;
  Place to;
  std::size_t bytes = 0;
};

// In one round a peer appears at most once among the sends, and at most once among receives and
// reduces. In one round, `to` of a receive or reduce may overlap `from` of a send only if both
// start at the same place: the engine then lets no write pass the reads of the sends.
struct Round {
  std::vector<Copy> copies;  // done first
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<Reduce> reduces;
};

struct Loop {
  std::vector<Round> rounds;
  std::size_t repeat = 1;
  std::size_t input_stride = 0;   // bytes added to every input offset each repeat
  std::size_t output_stride = 0;  // likewise for output offsets
};

// How much a rank moves; docs/algorithms.md gives these as formulas, the tests compare.
struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_reduced = 0;  // bytes received that were operands of a reduction
  bool operator==(const Traffic&) const = default;
};

struct Schedule {
  std::vector<Loop> loops;
  std::size_t scratch_bytes = 0;
  std::size_t piece_bytes =
      0;  // the engine publishes at most so many bytes of a transfer at a time

  Traffic traffic() const;       // the sum over all loops and repeats
  std::uint64_t rounds() const;  // rounds executed, repeats counted
};

// What is to be planned. Sizes are bytes of one *block*: for all_reduce, broadcast and reduce the
// whole buffer; for all_gather, gather and scatter what one rank contributes or gets; for
// reduce_scatter one rank's result; for all_to_all what goes to one peer. Input and output lay
// blocks out in rank order.
struct PlanRequest {
  Collective collective = Collective::kAllReduce;
  int rank = 0;
  int ranks = 1;
  int root = 0;
  std::size_t block_bytes = 0;    // a multiple of element_bytes
  std::size_t element_bytes = 1;  // 1, 2, 4, 8 or 16; no transfer splits an element
  std::size_t chunk_bytes = 0;    // 0: the algorithm's own
  // Uneven blocks; empty when even. all_gather, reduce_scatter, gather, scatter: `blocks` holds one
  // size a rank, the same on every rank. all_to_all: `blocks` is what this rank sends to each peer
  // and `receive_blocks` what it gets from each.
  std::vector<std::size_t> blocks;
  std::vector<std::size_t> receive_blocks;
};

// One registry row. Adding an algorithm = one file, one row here, one test row, one row in
// docs/algorithms.md.
struct Algorithm {
  std::string_view name;  // "ring"
  Collective collective = Collective::kAllReduce;
  bool uneven = false;     // takes PlanRequest::blocks
  bool multi_hop = false;  // partial sums travel: 16-bit types are rounded at each hop
  std::size_t default_chunk_bytes = 0;
  std::string_view summary;  // one line for --help and explain
  Schedule (*plan)(const PlanRequest&) = nullptr;
};

// All rows of a collective, the built-in default first. kSend and kRecv have none.
std::span<const Algorithm> algorithms(Collective) noexcept;
const Algorithm* find_algorithm(Collective, std::string_view name) noexcept;  // nullptr: unknown

// Validates the request and plans. Throws InvalidArgument (with the accepted names where the
// algorithm is unknown, and a sentence where it does not take uneven blocks).
Schedule plan(std::string_view algorithm, const PlanRequest&);

}  // namespace accl
