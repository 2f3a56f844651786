#include "engine/cuda/image.h"

// ACCL_KERNEL_IMAGE is the path of the fat binary that nvcc made (CMakeLists.txt).
#ifdef ACCL_KERNEL_IMAGE
asm(R"(
  .pushsection .rodata
  .balign 64
  .hidden accl_kernel_image
  .global accl_kernel_image
accl_kernel_image:
  .incbin ")" ACCL_KERNEL_IMAGE R"("
  .byte 0
  .popsection
)");
extern "C" const unsigned char accl_kernel_image[];
#endif

namespace accl::cuda {

const void* kernel_image() noexcept {
#ifdef ACCL_KERNEL_IMAGE
  return accl_kernel_image;
#else
  return nullptr;
#endif
}

}  // namespace accl::cuda
