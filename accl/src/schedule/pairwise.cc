// Pairwise: ranks - 1 rounds; in round s a rank sends to the rank s behind it and receives from the
// one s before it. Only two channels are busy at a time, which suits many ranks and large blocks.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

Schedule all_to_all_pairwise(const PlanRequest& r) {
  const Blocks to(r);
  const Blocks from(r, r.receive_blocks);
  std::vector<Round> rounds;
  for (int step = 1; step < r.ranks; ++step) {
    const int next = wrap(r.rank + step, r.ranks);
    const int before = wrap(r.rank - step, r.ranks);
    Round round;
    if (step == 1)
      add_copy(round, input(to[r.rank].offset), output(from[r.rank].offset), to[r.rank].bytes);
    add_send(round, next, input(to[next].offset), to[next].bytes);
    add_receive(round, before, output(from[before].offset), from[before].bytes);
    add_round(rounds, std::move(round));
  }
  return once(std::move(rounds), r.chunk_bytes);
}

}  // namespace accl::schedule
