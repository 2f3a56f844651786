// Coverage: rules that can never match, because earlier ones take everything that they would.
#pragma once

#include <span>
#include <vector>

#include "accl/rules.h"

namespace accl::rules {

// The lines of the earlier rules that together take every call which `rule` matches, ascending;
// empty where some call reaches it. Exact: no communicator has more nodes than ranks, the numbers
// of ranks and of aggregated operations have no end, and calls with uneven sizes reach
// size-independent rules alone.
std::vector<int> covering_lines(const Rule& rule, std::span<const Rule> earlier);

}  // namespace accl::rules
