// Cost table: how a choice is written into NCCL's table of predicted times.
//
// NCCL takes the entry with the least time that is not ignored. Pure.
#pragma once

#include <span>
#include <string_view>

#include "accl/types.h"
#include "plugin/nccl_tuner_abi.h"

namespace accl::plugin {

// NCCL's number of a word of the rules file; -1 for the empty word and for unknown ones.
int algorithm_index(std::string_view word) noexcept;
int protocol_index(std::string_view word) noexcept;

// Whether NCCL asks about this function, and which collective it is.
bool collective_of(int function, Collective& collective) noexcept;
int function_of(Collective) noexcept;  // -1 where NCCL does not ask

// A view of float[algorithms][protocols].
struct CostTable {
  float* entries = nullptr;
  int algorithms = 0;
  int protocols = 0;

  bool usable() const noexcept { return entries != nullptr && algorithms > 0 && protocols > 0; }
  float& at(int algorithm, int protocol) const noexcept;
};

// Makes NCCL take `algorithm` and `protocol`; -1 leaves that half to NCCL. Returns how many
// entries were written; 0 where all that were wanted are ignored or lie outside the table, which
// then is untouched.
//
// One wanted entry gets 0. Of several (an algorithm with any protocol, a protocol with any
// algorithm) the cheapest gets 0, the next cheapest the smallest normal float, and so on, equal
// ones alike: NCCL's own order among them stays, and all come before every real prediction.
int prefer(const CostTable& table, int algorithm, int protocol) noexcept;

}  // namespace accl::plugin
