// LaunchPlan: which kernel a call is, with which parameters and on how many threads. Pure; depends
// only on what is equal on all ranks (and on the rank itself), so that their blocks meet.
#pragma once

#include <string>

#include "engine/cuda/kernel_engine.h"
#include "engine/cuda/kernel_parameters.h"

namespace accl::cuda {

struct LaunchPlan {
  int kernel = -1;      // index into kernel_names(); -1: there is none for the call
  unsigned blocks = 0;  // 0: nothing to do
  unsigned threads = 0;
  Parameters parameters{};  // without regions and control
};

inline constexpr int kKernelCount = 17;
const char* kernel_name(int kernel) noexcept;  // "accl_direct_float32", ...

LaunchPlan plan_launch(const KernelCall& call, int rank, int ranks) noexcept;

}  // namespace accl::cuda
