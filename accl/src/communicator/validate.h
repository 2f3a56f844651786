// Validation of a call: everything that one rank alone can know to be wrong, in a sentence.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "accl/communicator.h"

namespace accl {

// Sizes of a valid call, in bytes.
struct CallSizes {
  std::size_t block_bytes = 0;              // as PlanRequest has it; 0 when uneven
  std::vector<std::size_t> blocks;          // uneven: as PlanRequest has them
  std::vector<std::size_t> receive_blocks;  // of an uneven all_to_all
  std::uint64_t rules_bytes = 0;            // nccl-tests' size; 0 when uneven
};

// Throws InvalidArgument.
CallSizes validate(const Call& call, int rank, int ranks);

bool is_point_to_point(Collective) noexcept;
bool is_rooted(Collective) noexcept;
bool is_reducing(Collective) noexcept;
bool is_uneven(const Call&) noexcept;

// "all_reduce of 8 float32 (sum)", "broadcast of 3 int64 from root 1", "recv of 4 float32 from rank
// 0 with tag 7".
std::string describe(const Call& call);
std::string describe(Collective collective, std::uint64_t count, bool uneven, DType dtype,
                     ReduceOp op, int root);

}  // namespace accl
