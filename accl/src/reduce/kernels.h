// Kernels: the compiled loops, once for each instruction set. kernels.inc is their one source.
#pragma once

#include <cstddef>

#include "accl/types.h"

namespace accl::reduce {

struct Kernels {
  void (*combine)(const void* const* operands, std::size_t operand_count, void* target,
                  std::size_t count, DType dtype, ReduceOp op, double divisor);
  void (*scale)(const void* source, void* target, std::size_t count, DType dtype, double factor);
};

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;    // AVX2 and F16C
extern const Kernels kAvx512Kernels;  // AVX-512 F, BW, DQ and VL, besides
#endif

enum class Level { kBaseline, kAvx2, kAvx512 };

bool has_level(Level) noexcept;  // whether this machine can run it

// Forces a level, for tests and benchmarks. Needs has_level(). Not to be called while others
// reduce.
void set_level_for_tests(Level) noexcept;
Level best_level() noexcept;

}  // namespace accl::reduce
