// The kernels: one of direct and one of two-shot for each type that computes, and one that moves
// bytes. What they do is in exchange.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "engine/cuda/gpu.cuh"
//
#include "engine/cuda/exchange.h"  // needs namespace gpu

namespace accl::cuda {

namespace {

struct Half {
  using Stored = __half;
  using Wide = float;
  ACCL_GPU static Wide widen(Stored x) { return __half2float(x); }
  ACCL_GPU static Stored narrow(Wide x) { return __float2half_rn(x); }
};
struct Bfloat16 {
  using Stored = __nv_bfloat16;
  using Wide = float;
  ACCL_GPU static Wide widen(Stored x) { return __bfloat162float(x); }
  ACCL_GPU static Stored narrow(Wide x) { return __float2bfloat16_rn(x); }
};
template <__nv_fp8_interpretation_t kFormat, __nv_saturation_t kSaturation>
struct Float8 {
  using Stored = __nv_fp8_storage_t;
  using Wide = float;
  ACCL_GPU static Wide widen(Stored x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, kFormat)));
  }
  ACCL_GPU static Stored narrow(Wide x) { return __nv_cvt_float_to_fp8(x, kSaturation, kFormat); }
};
using E4M3 = Float8<__NV_E4M3, __NV_SATFINITE>;  // no infinity: saturates, as torch does
using E5M2 = Float8<__NV_E5M2, __NV_NOSAT>;

// Of a multiprocessor: with 2, all blocks of 8 ranks fit on a GPU of 64.
constexpr int kBlocksAtOnce = 2;

}  // namespace

#define ACCL_KERNELS_OF(name, T)                                            \
  extern "C" __global__ void __launch_bounds__(kMostThreads, kBlocksAtOnce) \
      accl_direct_##name(const __grid_constant__ Parameters p) {            \
    direct<true, T>(p);                                                     \
  }                                                                         \
  extern "C" __global__ void __launch_bounds__(kMostThreads, kBlocksAtOnce) \
      accl_two_shot_##name(const __grid_constant__ Parameters p) {          \
    two_shot<T>(p);                                                         \
  }

ACCL_KERNELS_OF(float64, Plain<double>)
ACCL_KERNELS_OF(float32, Plain<float>)
ACCL_KERNELS_OF(float16, Half)
ACCL_KERNELS_OF(bfloat16, Bfloat16)
ACCL_KERNELS_OF(float8_e4m3fn, E4M3)
ACCL_KERNELS_OF(float8_e5m2, E5M2)
ACCL_KERNELS_OF(int32, Plain<std::int32_t>)
ACCL_KERNELS_OF(int64, Plain<long long>)

extern "C" __global__ void __launch_bounds__(kMostThreads, kBlocksAtOnce)
    accl_move(const __grid_constant__ Parameters p) {
  direct<false, Plain<float>>(p);
}

}  // namespace accl::cuda
