// Dissemination: ceil(log2(ranks)) rounds of empty messages; after round k each rank knows of 2^k
// others.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

Schedule barrier_dissemination(const PlanRequest& r) {
  std::vector<Round> rounds;
  for (int distance = 1; distance < r.ranks; distance *= 2) {
    Round round;
    round.sends.push_back({wrap(r.rank + distance, r.ranks), input(0), 0});
    round.receives.push_back({wrap(r.rank - distance, r.ranks), output(0), 0});
    rounds.push_back(std::move(round));
  }
  return once(std::move(rounds), r.chunk_bytes);
}

}  // namespace accl::schedule
