// Planners: one function an algorithm; the registry holds them. Each is given a valid request with
// more than one rank (one rank is a copy, which plan() makes itself).
#pragma once

#include "accl/schedule.h"

namespace accl::schedule {

// direct.cc: every pair of ranks that has to exchange something does so at once.
Schedule all_reduce_direct(const PlanRequest&);
Schedule all_gather_direct(const PlanRequest&);
Schedule reduce_scatter_direct(const PlanRequest&);
Schedule broadcast_direct(const PlanRequest&);
Schedule reduce_direct(const PlanRequest&);
Schedule all_to_all_direct(const PlanRequest&);
Schedule gather_direct(const PlanRequest&);
Schedule scatter_direct(const PlanRequest&);

// two_shot.cc: each rank takes one part of every segment and sends it to all.
Schedule all_reduce_two_shot(const PlanRequest&);
Schedule broadcast_two_shot(const PlanRequest&);

// ring.cc: everything goes from rank to rank around a ring.
Schedule all_reduce_ring(const PlanRequest&);
Schedule all_gather_ring(const PlanRequest&);
Schedule reduce_scatter_ring(const PlanRequest&);
Schedule broadcast_ring(const PlanRequest&);

// halving_doubling.cc: recursive halving, then recursive doubling.
Schedule all_reduce_halving_doubling(const PlanRequest&);

// tree.cc: a binomial tree.
Schedule broadcast_tree(const PlanRequest&);
Schedule reduce_tree(const PlanRequest&);

// pairwise.cc: one partner a round.
Schedule all_to_all_pairwise(const PlanRequest&);

// dissemination.cc
Schedule barrier_dissemination(const PlanRequest&);

}  // namespace accl::schedule
