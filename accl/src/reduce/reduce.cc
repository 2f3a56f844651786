#include "reduce/reduce.h"

#include <atomic>

#include "reduce/kernels.h"

namespace accl::reduce {

namespace {

const Kernels& kernels_of([[maybe_unused]] Level level) noexcept {
#if defined(__x86_64__)
  switch (level) {
    case Level::kAvx512:
      return kAvx512Kernels;
    case Level::kAvx2:
      return kAvx2Kernels;
    case Level::kBaseline:
      break;
  }
#endif
  return kBaselineKernels;
}

std::atomic<const Kernels*> active{&kernels_of(best_level())};

}  // namespace

bool has_level(Level level) noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  switch (level) {
    case Level::kBaseline:
      return true;
    case Level::kAvx2:
      return avx2;
    case Level::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return level == Level::kBaseline;
}

Level best_level() noexcept {
  if (has_level(Level::kAvx512)) return Level::kAvx512;
  return has_level(Level::kAvx2) ? Level::kAvx2 : Level::kBaseline;
}

void set_level_for_tests(Level level) noexcept { active = &kernels_of(level); }

void combine(std::span<const void* const> operands, void* target, std::size_t count, DType dtype,
             ReduceOp op, double divisor) {
  active.load(std::memory_order_relaxed)
      ->combine(operands.data(), operands.size(), target, count, dtype, op, divisor);
}

void scale(const void* source, void* target, std::size_t count, DType dtype, double factor) {
  active.load(std::memory_order_relaxed)->scale(source, target, count, dtype, factor);
}

}  // namespace accl::reduce
