// Halving-doubling: ranks exchange halves with partners at distance n/2, n/4, ..., 1 and reduce,
// then walk back and gather. Logarithmic in the number of ranks. Where that is no power of two, the
// surplus ranks hand their data to a neighbour first and get the result from it at the end.
#include <bit>

#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

namespace {

// Ranks 0 to 2 * surplus - 1 form pairs; the odd one of a pair hands its data to the even one and
// sits out.
struct Fold {
  int power;    // of two: how many take part
  int surplus;  // how many sit out

  explicit Fold(int ranks)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))),
        surplus(ranks - power) {}
  bool in_pair(int rank) const { return rank < 2 * surplus; }
  bool sits_out(int rank) const { return in_pair(rank) && rank % 2 == 1; }
  int index_of(int rank) const { return in_pair(rank) ? rank / 2 : rank - surplus; }
  int rank_of(int index) const { return index < surplus ? 2 * index : index + surplus; }
};

Span parts_between(Span whole, int parts, int begin, int end, std::size_t element) {
  const Span first = part_of(whole, parts, begin, element);
  const Span last = part_of(whole, parts, end - 1, element);
  return {first.offset, last.offset + last.bytes - first.offset};
}

std::vector<Round> segment_rounds(const PlanRequest& r, Span segment) {
  const Fold fold(r.ranks);
  std::vector<Round> rounds;
  if (fold.sits_out(r.rank)) {
    Round give;
    add_send(give, r.rank - 1, input(segment.offset), segment.bytes);
    Round take;
    add_receive(take, r.rank - 1, output(segment.offset), segment.bytes);
    add_round(rounds, std::move(give));
    add_round(rounds, std::move(take));
    return rounds;
  }
  // Where this rank's running sum lies: in the input until the first reduction.
  BufferKind running = BufferKind::kInput;
  if (fold.in_pair(r.rank)) {
    Round take;
    add_reduce(take, {r.rank + 1}, input(segment.offset), output(segment.offset), segment.bytes,
               false);
    add_round(rounds, std::move(take));
    running = BufferKind::kOutput;
  }

  struct Level {
    int partner;
    Span kept;
    Span given;
  };
  std::vector<Level> levels;
  const int index = fold.index_of(r.rank);
  int begin = 0;
  int end = fold.power;
  for (int distance = fold.power / 2; distance >= 1; distance /= 2) {
    const int middle = (begin + end) / 2;
    const bool lower = (index & distance) == 0;
    const Span low = parts_between(segment, fold.power, begin, middle, r.element_bytes);
    const Span high = parts_between(segment, fold.power, middle, end, r.element_bytes);
    const Level level{fold.rank_of(index ^ distance), lower ? low : high, lower ? high : low};
    Round round;
    add_send(round, level.partner, Place{running, level.given.offset}, level.given.bytes);
    add_reduce(round, {level.partner}, Place{running, level.kept.offset}, output(level.kept.offset),
               level.kept.bytes, distance == 1);
    add_round(rounds, std::move(round));
    running = BufferKind::kOutput;
    levels.push_back(level);
    (lower ? end : begin) = middle;
  }
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    Round round;
    add_send(round, level->partner, output(level->kept.offset), level->kept.bytes);
    add_receive(round, level->partner, output(level->given.offset), level->given.bytes);
    add_round(rounds, std::move(round));
  }
  if (fold.in_pair(r.rank)) {
    Round give;
    add_send(give, r.rank + 1, output(segment.offset), segment.bytes);
    add_round(rounds, std::move(give));
  }
  return rounds;
}

}  // namespace

Schedule all_reduce_halving_doubling(const PlanRequest& r) {
  return in_segments(r.block_bytes, 2 * r.chunk_bytes, r.chunk_bytes,
                     [&](Span segment) { return segment_rounds(r, segment); });
}

}  // namespace accl::schedule
