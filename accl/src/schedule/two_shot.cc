// Two-shot: a direct reduce-scatter, then a direct all-gather, segment by segment. All operands of
// an element meet in one place, so that 16-bit sums are rounded once.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

Schedule all_reduce_two_shot(const PlanRequest& r) {
  const auto rounds = [&](Span segment) {
    const auto part = [&](int index) { return part_of(segment, r.ranks, index, r.element_bytes); };
    const Span own = part(r.rank);
    Round reduce;
    Round gather;
    for (const int peer : peers_from(r.rank, r.ranks)) {
      const Span theirs = part(peer);
      add_send(reduce, peer, input(theirs.offset), theirs.bytes);
      add_send(gather, peer, output(own.offset), own.bytes);
      add_receive(gather, peer, output(theirs.offset), theirs.bytes);
    }
    add_reduce(reduce, peers_ascending(r.rank, r.ranks), input(own.offset), output(own.offset),
               own.bytes, true);
    std::vector<Round> both;
    add_round(both, std::move(reduce));
    add_round(both, std::move(gather));
    return both;
  };
  return in_segments(r.block_bytes, static_cast<std::size_t>(r.ranks) * r.chunk_bytes,
                     r.chunk_bytes, rounds);
}

}  // namespace accl::schedule
