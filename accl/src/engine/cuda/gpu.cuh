// What the exchange needs of a GPU. The test of the exchange has the same names on threads.
#pragma once

#include <cstdint>

#define ACCL_GPU __device__ __forceinline__
#define ACCL_UNROLL _Pragma("unroll")

namespace accl::cuda::gpu {

ACCL_GPU unsigned thread() { return threadIdx.x; }
ACCL_GPU unsigned threads() { return blockDim.x; }
ACCL_GPU unsigned block() { return blockIdx.x; }
ACCL_GPU unsigned blocks() { return gridDim.x; }
ACCL_GPU void sync_threads() { __syncthreads(); }
ACCL_GPU void fence() { __threadfence_system(); }

struct Pair {
  unsigned long long low, high;
};

// A line: one access of 16 bytes, of which each half arrives whole.
ACCL_GPU void store_line(void* at, Pair line) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(line.low),
               "l"(line.high)
               : "memory");
}

ACCL_GPU Pair load_line(const void* at) {
  Pair line;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(line.low), "=l"(line.high)
               : "l"(at)
               : "memory");
  return line;
}

ACCL_GPU void release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

ACCL_GPU std::uint32_t acquire(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Ordinary accesses, at addresses that are aligned.
ACCL_GPU unsigned long long load8(const void* at) {
  return *static_cast<const unsigned long long*>(at);
}
ACCL_GPU void store8(void* at, unsigned long long value) {
  *static_cast<unsigned long long*>(at) = value;
}
ACCL_GPU Pair load16(const void* at) {
  const ulonglong2 both = *static_cast<const ulonglong2*>(at);
  return {both.x, both.y};
}
ACCL_GPU void store16(void* at, Pair value) {
  *static_cast<ulonglong2*>(at) = make_ulonglong2(value.low, value.high);
}

// The host's memory, which both sides change.
template <class T>
ACCL_GPU T peek(const T* at) {
  return *static_cast<const volatile T*>(at);
}
template <class T>
ACCL_GPU void poke(T* at, T value) {
  *static_cast<volatile T*>(at) = value;
}

ACCL_GPU unsigned long long now_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

}  // namespace accl::cuda::gpu
