// Elements: how eight bytes of a type are reduced. For the kernels and, without a GPU, their tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/cuda/kernel_parameters.h"

namespace accl::cuda {

using u32 = std::uint32_t;
using u64 = unsigned long long;

// A type that computes in itself. Small floats (kernels.cu) are widened, and rounded once.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  ACCL_GPU static Wide widen(Stored x) { return x; }
  ACCL_GPU static Stored narrow(Wide x) { return x; }
};

template <class W>
ACCL_GPU W combine(W a, W b, int op) {
  switch (op) {
    case kOpProduct:
      return a * b;
    case kOpMin:
      return a != a || a < b ? a : b;  // a NaN stays, and comes through where it is b
    case kOpMax:
      return a != a || a > b ? a : b;
    default:
      return a + b;
  }
}

// Elements of T in 8 bytes.
template <class T>
struct Pack {
  using Stored = typename T::Stored;
  using Wide = typename T::Wide;
  static constexpr int kCount = 8 / sizeof(Stored);
  Wide values[kCount];

  ACCL_GPU static Pack from(u64 payload) {
    Stored stored[kCount];
    memcpy(stored, &payload, sizeof payload);
    Pack pack;
    ACCL_UNROLL
    for (int i = 0; i < kCount; ++i) pack.values[i] = T::widen(stored[i]);
    return pack;
  }
  ACCL_GPU u64 payload() const {
    Stored stored[kCount];
    ACCL_UNROLL
    for (int i = 0; i < kCount; ++i) stored[i] = T::narrow(values[i]);
    u64 payload;
    memcpy(&payload, stored, sizeof payload);
    return payload;
  }
  ACCL_GPU void add(const Pack& other, int op) {
    ACCL_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = combine(values[i], other.values[i], op);
  }
  // What computes in float32 scales in it; integers scale in float64 and are cut towards zero (on
  // a GPU saturating), where NaN gives 0.
  ACCL_GPU void multiply(double factor) {
    ACCL_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (std::is_integral_v<Wide>) {
        const double value = static_cast<double>(values[i]) * factor;
        values[i] = value != value ? Wide{0} : static_cast<Wide>(value);
      } else {
        values[i] *= static_cast<Wide>(factor);
      }
    }
  }
  ACCL_GPU void divide(int by) {
    ACCL_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = values[i] / static_cast<Wide>(by);
  }
};

template <class T>
ACCL_GPU u64 scaled(u64 payload, double factor) {
  auto pack = Pack<T>::from(payload);
  pack.multiply(factor);
  return pack.payload();
}

}  // namespace accl::cuda
