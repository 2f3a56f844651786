// Image: the kernels as the build embedded them, or that it had no CUDA compiler.
#pragma once

namespace accl::cuda {

// A fat binary for cuModuleLoadData; null where the build left the kernels out.
const void* kernel_image() noexcept;

}  // namespace accl::cuda
