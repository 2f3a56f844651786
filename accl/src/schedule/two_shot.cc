// Two-shot: every segment is shared out among the ranks, then all get all parts directly.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

// A direct reduce-scatter, then a direct all-gather. All operands of an element meet in one place,
// so that 16-bit sums are rounded once.
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

// The root deals out the parts of a segment to the other ranks, who then exchange them, so that the
// root sends everything once and not once a rank.
Schedule broadcast_two_shot(const PlanRequest& r) {
  const int holders = r.ranks - 1;
  const auto holder = [&](int index) { return wrap(r.root + 1 + index, r.ranks); };
  const int own_index = wrap(r.rank - r.root, r.ranks) - 1;  // -1: the root
  const auto rounds = [&](Span segment) {
    const auto part = [&](int index) { return part_of(segment, holders, index, r.element_bytes); };
    std::vector<Round> both;
    Round deal;
    if (r.rank == r.root) {
      add_copy(deal, input(segment.offset), output(segment.offset), segment.bytes);
      for (int i = 0; i < holders; ++i) {
        add_send(deal, holder(i), input(part(i).offset), part(i).bytes);
      }
      add_round(both, std::move(deal));
      return both;
    }
    const Span own = part(own_index);
    add_receive(deal, r.root, output(own.offset), own.bytes);
    Round exchange;
    for (const int index : peers_from(own_index, holders)) {
      const Span theirs = part(index);
      add_send(exchange, holder(index), output(own.offset), own.bytes);
      add_receive(exchange, holder(index), output(theirs.offset), theirs.bytes);
    }
    add_round(both, std::move(deal));
    add_round(both, std::move(exchange));
    return both;
  };
  const std::size_t segment = static_cast<std::size_t>(holders) * r.chunk_bytes;
  return in_segments(r.block_bytes, segment, r.chunk_bytes, rounds);
}

}  // namespace accl::schedule
