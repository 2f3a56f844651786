// Parts: the arithmetic that planners share: blocks of a call, parts of a buffer, pieces of a loop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "accl/schedule.h"

namespace accl::schedule {

inline constexpr std::size_t kLine =
    64;  // bytes; borders lie on cache lines where there is enough to share
inline constexpr std::size_t kLargestChunk = 1u << 30;  // bytes; as the rules grammar has it

// A run of bytes.
struct Span {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Part `index` of `parts` parts of `whole`, all of one size but for the last ones, which may be
// shorter or empty. No part splits an element; from 64 bytes a part on (on average) borders lie on
// cache lines. No part is longer than chunk_bytes where `whole` is at most parts * chunk_bytes,
// since that is a multiple of kLine.
inline Span part_of(Span whole, int parts, int index, std::size_t element_bytes) {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t elements = whole.bytes / element_bytes;
  std::size_t step = (elements + n - 1) / n * element_bytes;
  if (whole.bytes >= n * kLine) step = (step + kLine - 1) / kLine * kLine;
  const std::size_t begin = std::min(static_cast<std::size_t>(index) * step, whole.bytes);
  const std::size_t end = std::min(begin + step, whole.bytes);
  return {whole.offset + begin, end - begin};
}

inline int wrap(int rank, int ranks) { return (rank % ranks + ranks) % ranks; }

// The peers of a rank, beginning behind it, so that not all ranks turn to the same one first.
inline std::vector<int> peers_from(int rank, int ranks) {
  std::vector<int> peers;
  for (int step = 1; step < ranks; ++step) peers.push_back((rank + step) % ranks);
  return peers;
}

inline std::vector<int> peers_ascending(int rank, int ranks) {
  std::vector<int> peers;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) peers.push_back(peer);
  }
  return peers;
}

// Where the blocks of a call lie: even ones of block_bytes, or the uneven ones given.
class Blocks {
 public:
  Blocks(const PlanRequest& request, const std::vector<std::size_t>& uneven)
      : even_(request.block_bytes), ends_(uneven.size()) {
    std::partial_sum(uneven.begin(), uneven.end(), ends_.begin());
  }
  explicit Blocks(const PlanRequest& request) : Blocks(request, request.blocks) {}

  Span operator[](int index) const {
    const auto i = static_cast<std::size_t>(index);
    if (ends_.empty()) return {i * even_, even_};
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return {begin, ends_[i] - begin};
  }

 private:
  std::size_t even_;
  std::vector<std::size_t> ends_;  // of the uneven blocks
};

inline Place input(std::size_t offset) { return {BufferKind::kInput, offset}; }
inline Place output(std::size_t offset) { return {BufferKind::kOutput, offset}; }
inline Place scratch(std::size_t offset) { return {BufferKind::kScratch, offset}; }

// Transfers of nothing are left out; both sides know the size.
inline void add_send(Round& round, int peer, Place from, std::size_t bytes) {
  if (bytes != 0) round.sends.push_back({peer, from, bytes});
}
inline void add_receive(Round& round, int peer, Place to, std::size_t bytes) {
  if (bytes != 0) round.receives.push_back({peer, to, bytes});
}
inline void add_reduce(Round& round, std::vector<int> peers, Place own, Place to, std::size_t bytes,
                       bool last) {
  if (bytes != 0) round.reduces.push_back({std::move(peers), own, to, bytes, last});
}
inline void add_copy(Round& round, Place from, Place to, std::size_t bytes) {
  if (bytes != 0) round.copies.push_back({from, to, bytes});
}

inline bool is_empty(const Round& round) {
  return round.copies.empty() && round.sends.empty() && round.receives.empty() &&
         round.reduces.empty();
}

inline void add_round(std::vector<Round>& rounds, Round round) {
  if (!is_empty(round)) rounds.push_back(std::move(round));
}

// A schedule of one loop that runs once.
inline Schedule once(std::vector<Round> rounds, std::size_t piece_bytes) {
  Schedule schedule;
  schedule.piece_bytes = piece_bytes;
  if (!rounds.empty()) schedule.loops.push_back({std::move(rounds), 1, 0, 0});
  return schedule;
}

// Walks `total` bytes in segments: one loop for the full ones, one for the rest, so that planning
// does not take longer for more bytes. `rounds(span)` plans a segment; input and output move alike.
template <class Rounds>
Schedule in_segments(std::size_t total, std::size_t segment, std::size_t piece_bytes,
                     Rounds rounds) {
  Schedule schedule;
  schedule.piece_bytes = piece_bytes;
  const std::size_t full = total / segment;
  if (full != 0) schedule.loops.push_back({rounds(Span{0, segment}), full, segment, segment});
  if (const std::size_t rest = total - full * segment; rest != 0) {
    schedule.loops.push_back({rounds(Span{full * segment, rest}), 1, 0, 0});
  }
  return schedule;
}

}  // namespace accl::schedule
