// Registry: all algorithms of the CPU engine, and plan(). A new algorithm is one row here.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "accl/error.h"
#include "accl/schedule.h"
#include "base/text.h"
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl {

namespace {

using C = Collective;

constexpr std::size_t kChunk = 64u << 10;
constexpr std::size_t kMostBytes = static_cast<std::size_t>(PTRDIFF_MAX);  // that a buffer can have

// Rows of a collective lie together, its default first.
constexpr auto kAlgorithms = std::to_array<Algorithm>({
    // name, collective, uneven, multi_hop, default chunk, summary, planner
    {"two_shot", C::kAllReduce, false, false, kChunk,
     "each rank reduces one part and sends it to all", schedule::all_reduce_two_shot},
    {"direct", C::kAllReduce, false, false, kChunk,
     "everybody sends everything to everybody; for small sizes", schedule::all_reduce_direct},
    {"ring", C::kAllReduce, false, true, kChunk,
     "parts are reduced and then gathered around a ring", schedule::all_reduce_ring},
    {"halving_doubling", C::kAllReduce, false, true, kChunk,
     "halves are exchanged at distances n/2, n/4, ..., 1", schedule::all_reduce_halving_doubling},
    {"direct", C::kAllGather, true, false, kChunk, "everybody sends its block to everybody",
     schedule::all_gather_direct},
    {"ring", C::kAllGather, false, false, kChunk, "blocks go around a ring",
     schedule::all_gather_ring},
    {"direct", C::kReduceScatter, true, false, kChunk,
     "every block is sent to its owner, who reduces all at once", schedule::reduce_scatter_direct},
    {"ring", C::kReduceScatter, false, true, kChunk, "partial sums go around a ring",
     schedule::reduce_scatter_ring},
    {"direct", C::kBroadcast, false, false, kChunk, "the root sends to everybody",
     schedule::broadcast_direct},
    {"ring", C::kBroadcast, false, false, kChunk, "a pipeline from rank to rank",
     schedule::broadcast_ring},
    {"two_shot", C::kBroadcast, false, false, kChunk,
     "the root deals out parts, which the others exchange", schedule::broadcast_two_shot},
    {"tree", C::kBroadcast, false, false, kChunk, "a binomial tree below the root",
     schedule::broadcast_tree},
    {"direct", C::kReduce, false, false, kChunk,
     "everybody sends to the root, which reduces all at once", schedule::reduce_direct},
    {"tree", C::kReduce, false, true, kChunk, "a binomial tree towards the root",
     schedule::reduce_tree},
    {"direct", C::kAllToAll, true, false, kChunk, "all pairs at once", schedule::all_to_all_direct},
    {"pairwise", C::kAllToAll, true, false, kChunk, "one partner a round",
     schedule::all_to_all_pairwise},
    {"direct", C::kGather, true, false, kChunk, "everybody sends to the root",
     schedule::gather_direct},
    {"direct", C::kScatter, true, false, kChunk, "the root sends to everybody",
     schedule::scatter_direct},
    {"dissemination", C::kBarrier, false, false, kChunk, "empty messages at distances 1, 2, 4, ...",
     schedule::barrier_dissemination},
});

[[noreturn]] void refuse(const std::string& why) {
  throw InvalidArgument(concat("A plan cannot be made: ", why, "."));
}

void check_uneven(const Algorithm& algorithm, const PlanRequest& r) {
  if (r.blocks.empty() && r.receive_blocks.empty()) return;
  if (!algorithm.uneven) {
    refuse(concat("algorithm '", algorithm.name, "' of ", name_of(r.collective),
                  " does not take uneven blocks"));
  }
  const auto ranks = static_cast<std::size_t>(r.ranks);
  const bool two_lists = r.collective == C::kAllToAll;
  if (r.blocks.size() != ranks || r.receive_blocks.size() != (two_lists ? ranks : 0)) {
    refuse(concat("there are ", r.blocks.size(), " blocks and ", r.receive_blocks.size(),
                  " receive_blocks for ", ranks, " ranks"));
  }
  for (const auto* list : {&r.blocks, &r.receive_blocks}) {
    std::size_t left = kMostBytes;
    for (const std::size_t bytes : *list) {
      if (bytes % r.element_bytes != 0) {
        refuse(concat("a block of ", bytes, " bytes splits an element of ", r.element_bytes));
      }
      if (bytes > left) refuse(concat("the blocks together are more than ", kMostBytes, " bytes"));
      left -= bytes;
    }
  }
  const auto own = static_cast<std::size_t>(r.rank);
  if (two_lists && r.blocks[own] != r.receive_blocks[own]) {
    refuse(concat("rank ", r.rank, " sends ", r.blocks[own], " bytes to itself but receives ",
                  r.receive_blocks[own]));
  }
}

void check(const Algorithm& algorithm, const PlanRequest& r) {
  if (r.ranks < 1) refuse(concat("ranks is ", r.ranks, ", expected at least 1"));
  if (r.rank < 0 || r.rank >= r.ranks)
    refuse(concat("rank is ", r.rank, ", expected 0 to ", r.ranks - 1));
  if (r.root < 0 || r.root >= r.ranks)
    refuse(concat("root is ", r.root, ", expected 0 to ", r.ranks - 1));
  const std::size_t e = r.element_bytes;
  if (e != 1 && e != 2 && e != 4 && e != 8 && e != 16)
    refuse(concat("element_bytes is ", e, ", expected 1, 2, 4, 8 or 16"));
  if (r.block_bytes % e != 0)
    refuse(concat("block_bytes ", r.block_bytes, " is no multiple of element_bytes ", e));
  if (r.chunk_bytes % schedule::kLine != 0 || r.chunk_bytes > schedule::kLargestChunk) {
    refuse(concat("chunk_bytes is ", r.chunk_bytes, ", expected a multiple of ", schedule::kLine,
                  " up to ", schedule::kLargestChunk, ", or 0 for the algorithm's own"));
  }
  const std::size_t most = kMostBytes / static_cast<std::size_t>(r.ranks);
  if (r.block_bytes > most) {
    refuse(concat("block_bytes is ", r.block_bytes, ", expected at most ", most, " with ", r.ranks,
                  " ranks"));
  }
  check_uneven(algorithm, r);
}

// With one rank the input, moved to the output, is the result of every collective.
Schedule plan_alone(const PlanRequest& r) {
  Round round;
  schedule::add_copy(round, schedule::input(0), schedule::output(0),
                     r.blocks.empty() ? r.block_bytes : r.blocks[0]);
  std::vector<Round> rounds;
  if (r.collective != C::kBarrier) schedule::add_round(rounds, std::move(round));
  return schedule::once(std::move(rounds), r.chunk_bytes);
}

}  // namespace

std::span<const Algorithm> algorithms(Collective collective) noexcept {
  const auto is_row = [&](const Algorithm& row) { return row.collective == collective; };
  const auto begin = std::ranges::find_if(kAlgorithms, is_row);
  const auto end = std::find_if_not(begin, kAlgorithms.end(), is_row);
  return {begin, end};
}

const Algorithm* find_algorithm(Collective collective, std::string_view name) noexcept {
  for (const Algorithm& row : algorithms(collective)) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

Schedule plan(std::string_view name, const PlanRequest& request) {
  const Algorithm* algorithm = find_algorithm(request.collective, name);
  if (algorithm == nullptr) {
    std::string known;
    for (const Algorithm& row : algorithms(request.collective))
      known += concat(known.empty() ? "" : ", ", row.name);
    refuse(concat(
        "algorithm '", name, "' is unknown for ", name_of(request.collective),
        ", expected one of: ", known.empty() ? "none (send and recv are not planned)" : known));
  }
  check(*algorithm, request);
  PlanRequest r = request;
  if (r.chunk_bytes == 0) r.chunk_bytes = algorithm->default_chunk_bytes;
  if (r.collective == C::kBarrier) r.block_bytes = 0;
  return r.ranks == 1 ? plan_alone(r) : algorithm->plan(r);
}

Traffic Schedule::traffic() const {
  Traffic total;
  for (const Loop& loop : loops) {
    Traffic one;
    for (const Round& round : loop.rounds) {
      one.messages_sent += round.sends.size();
      for (const Send& send : round.sends) one.bytes_sent += send.bytes;
      one.messages_received += round.receives.size();
      for (const Receive& receive : round.receives) one.bytes_received += receive.bytes;
      for (const Reduce& reduce : round.reduces) {
        one.messages_received += reduce.peers.size();
        one.bytes_received += reduce.peers.size() * reduce.bytes;
        one.bytes_reduced += reduce.peers.size() * reduce.bytes;
      }
    }
    total.messages_sent += loop.repeat * one.messages_sent;
    total.bytes_sent += loop.repeat * one.bytes_sent;
    total.messages_received += loop.repeat * one.messages_received;
    total.bytes_received += loop.repeat * one.bytes_received;
    total.bytes_reduced += loop.repeat * one.bytes_reduced;
  }
  return total;
}

std::uint64_t Schedule::rounds() const {
  std::uint64_t total = 0;
  for (const Loop& loop : loops) total += loop.repeat * loop.rounds.size();
  return total;
}

}  // namespace accl
