// The kernels. One rank launches one grid; block b of a rank talks to block b of the others alone.
//
// Direct (ll_*): small messages. A line is 16 bytes: twice 4 bytes of data with the 4-byte flag
// beside them, so that data and flag arrive together and nothing has to be fenced. A rank pushes its
// lines into the peers' memory and polls its own.
//
// Two-shot (two_shot_*): larger all_reduces. Each rank reduces one part: parts are pushed to their
// owners by 16-byte stores, then the results to everybody; a flag for each block and peer tells, by
// st.release.sys and ld.acquire.sys, that the bytes before it are there.
//
// The flag of a block is its epoch: a number in the rank's own memory that the kernel raises by one
// in each exchange, so that nothing is reset between calls and a captured call can be replayed. All
// ranks make the same calls, so their epochs agree.
//
// Why no slot is overwritten before it was read. Slots are double, by the parity of the epoch. In
// every epoch a block hears from all peers (where a peer has no data for it, line 0 comes as a token),
// and a peer's block sends in epoch e + 1 only after it has read all of epoch e. So a rank that writes
// in epoch e + 2 has ended e + 1, has heard from the peer there, and the peer has read e. Epochs of
// both kinds follow one another in one counter, so this holds across them. A stale line could be taken
// for a fresh one after 2^32 epochs in which it was not written: at ten microseconds each, half a day
// of nothing but small calls, and then one large call in the very epoch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/cuda/kernel_parameters.h"

namespace accl::cuda {

namespace {

using u32 = std::uint32_t;
using u64 = unsigned long long;

__device__ __forceinline__ void store_line(void* at, u64 payload, u32 flag) {
  const u64 low = (payload & 0xffffffffULL) | (u64{flag} << 32);
  const u64 high = (payload >> 32) | (u64{flag} << 32);
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high)
               : "memory");
}

struct Line {
  u64 low, high;
  __device__ __forceinline__ bool is(u32 flag) const {
    return static_cast<u32>(low >> 32) == flag && static_cast<u32>(high >> 32) == flag;
  }
  __device__ __forceinline__ u64 payload() const { return (low & 0xffffffffULL) | (high << 32); }
};

__device__ __forceinline__ Line load_line(const void* at) {
  Line line;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(line.low), "=l"(line.high)
               : "l"(at)
               : "memory");
  return line;
}

__device__ __forceinline__ void release_flag(u32* at, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ u32 acquire_flag(const u32* at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ u64 now_ns() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Bounds every wait: true where the caller shall give up. The control block is host memory, and the
// clock is slow: they are looked at once in many polls.
class Patience {
 public:
  __device__ explicit Patience(volatile Control* control) : control_(control) {}

  __device__ __forceinline__ bool gone() {
    if (++polls_ % kPollsBetweenLooks != 0) return false;
    return look();
  }

 private:
  static constexpr u32 kPollsBetweenLooks = 4096;

  __device__ __noinline__ bool look() {
    if (control_->abort != 0) return give_up();
    const u64 now = now_ns();
    if (start_ == 0) start_ = now;
    return now - start_ > control_->deadline_ns ? give_up() : false;
  }

  __device__ bool give_up() {
    control_->gave_up = 1;
    control_->abort = 1;  // the other threads need not wait as long
    return true;
  }

  volatile Control* control_;
  u32 polls_ = 0;
  u64 start_ = 0;
};

// 8 bytes at any address, of which only `left` are the message's.
__device__ __forceinline__ u64 load_payload(const unsigned char* at, std::size_t left) {
  if (left >= 8 && (reinterpret_cast<std::uintptr_t>(at) & 7) == 0)
    return *reinterpret_cast<const u64*>(at);
  u64 payload = 0;
  for (int i = 0; i < 8; ++i) {
    if (static_cast<std::size_t>(i) < left) payload |= u64{at[i]} << (8 * i);
  }
  return payload;
}

__device__ __forceinline__ void store_payload(unsigned char* at, std::size_t left, u64 payload) {
  if (left >= 8 && (reinterpret_cast<std::uintptr_t>(at) & 7) == 0) {
    *reinterpret_cast<u64*>(at) = payload;
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (static_cast<std::size_t>(i) < left) at[i] = static_cast<unsigned char>(payload >> (8 * i));
  }
}

// Element types: how they compute. Small floats compute in float32 and are rounded once.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  __device__ static Wide widen(Stored x) { return x; }
  __device__ static Stored narrow(Wide x) { return x; }
};
struct Half {
  using Stored = __half;
  using Wide = float;
  __device__ static Wide widen(Stored x) { return __half2float(x); }
  __device__ static Stored narrow(Wide x) { return __float2half_rn(x); }
};
struct Bfloat16 {
  using Stored = __nv_bfloat16;
  using Wide = float;
  __device__ static Wide widen(Stored x) { return __bfloat162float(x); }
  __device__ static Stored narrow(Wide x) { return __float2bfloat16_rn(x); }
};
template <__nv_fp8_interpretation_t kFormat, __nv_saturation_t kSaturation>
struct Float8 {
  using Stored = __nv_fp8_storage_t;
  using Wide = float;
  __device__ static Wide widen(Stored x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, kFormat)));
  }
  __device__ static Stored narrow(Wide x) { return __nv_cvt_float_to_fp8(x, kSaturation, kFormat); }
};
using E4M3 = Float8<__NV_E4M3, __NV_SATFINITE>;  // no infinity: saturates, as torch does
using E5M2 = Float8<__NV_E5M2, __NV_NOSAT>;

template <class W>
__device__ __forceinline__ bool is_nan(W x) {
  return x != x;
}

template <class W>
__device__ __forceinline__ W combine(W a, W b, int op) {
  switch (op) {
    case kOpProduct:
      return a * b;
    case kOpMin:
      return is_nan(a) || a < b ? a : b;  // a NaN stays, and comes through where it is b
    case kOpMax:
      return is_nan(a) || a > b ? a : b;
    default:
      return a + b;
  }
}

// Elements of T in 8 bytes.
template <class T>
struct Pack {
  // What computes in float32 scales in it; integers scale in float64 and are cut towards zero.
  using Factor = std::conditional_t<std::is_same_v<typename T::Wide, float>, float, double>;
  using Stored = typename T::Stored;
  using Wide = typename T::Wide;
  static constexpr int kCount = 8 / sizeof(Stored);
  Wide values[kCount];

  __device__ __forceinline__ static Pack from(u64 payload) {
    Stored stored[kCount];
    memcpy(stored, &payload, sizeof payload);
    Pack pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = T::widen(stored[i]);
    return pack;
  }
  __device__ __forceinline__ u64 payload() const {
    Stored stored[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) stored[i] = T::narrow(values[i]);
    u64 payload;
    memcpy(&payload, stored, sizeof payload);
    return payload;
  }
  __device__ __forceinline__ void add(const Pack& other, int op) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = combine(values[i], other.values[i], op);
  }
  __device__ __forceinline__ void multiply(double factor) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) 
      values[i] = static_cast<Wide>(values[i] * static_cast<Factor>(factor));
  }
  __device__ __forceinline__ void divide(int by) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = values[i] / static_cast<Wide>(by);
  }

};

template <class T>
__device__ __forceinline__ u64 scaled(u64 payload, double factor) {
  auto pack = Pack<T>::from(payload);
  pack.multiply(factor);
  return pack.payload();
}

// Where the lines that rank `from` pushes to rank `to` lie.
__device__ __forceinline__ unsigned char* line_slot(const Parameters& p, int to, int from, u32 epoch) {
  return p.regions[to] + kLineSlots +
         (((static_cast<std::size_t>(blockIdx.x) * 2 + (epoch & 1)) * kMostRanks + from) *
          kSlotLines * kLineBytes);
}

__device__ __forceinline__ bool sends_to(const Parameters& p, int peer) {
  if (p.shape == kFromRoot) return p.rank == p.root;
  return p.shape == kToRoot ? peer == p.root : true;
}

__device__ __forceinline__ bool hears_from(const Parameters& p, int peer) {
  if (p.shape == kFromRoot) return peer == p.root;
  return p.shape == kToRoot ? p.rank == p.root : true;
}

__device__ __forceinline__ u32 next_epoch(const Parameters& p) {
  return reinterpret_cast<const u32*>(p.regions[p.rank] + kEpochs)[blockIdx.x] + 1;
}

// After all threads have read it.
__device__ __forceinline__ void keep_epoch(const Parameters& p, u32 epoch) {
  __syncthreads();
  if (threadIdx.x == 0) reinterpret_cast<u32*>(p.regions[p.rank] + kEpochs)[blockIdx.x] = epoch;
}

// Pushes this block's part of the message to all peers: for each line, and the token where there is
// no data.
template <bool kScaled, class T>
__device__ void push_lines(const Parameters& p, u32 epoch, std::size_t offset, u32 lines,
                           std::size_t length) {
  for (u32 line = threadIdx.x; line < lines; line += blockDim.x) {
    const std::size_t at = std::size_t{line} * 8;
    u64 same = 0;
    if (p.send_stride == 0) {
      same = load_payload(p.input + offset + at, length - at);
      if (kScaled) same = scaled<T>(same, p.factor);
    }
    for (int step = 1; step < p.ranks; ++step) {
      int peer = p.rank + step;
      if (peer >= p.ranks) peer -= p.ranks;
      const bool data = sends_to(p, peer);
      if (!data && line != 0) continue;
      u64 payload = same;
      if (data && p.send_stride != 0) {
        payload = load_payload(p.input + p.send_stride * peer + offset + at, length - at);
        if (kScaled) payload = scaled<T>(payload, p.factor);
      }
      store_line(line_slot(p, peer, p.rank, epoch) + std::size_t{line} * kLineBytes, payload, epoch);
    }
  }
}

// Waits for this line of all peers that send it. Polls all of them at once, since a poll takes long.
__device__ __forceinline__ void pull_lines(const Parameters& p, u32 epoch, u32 line, u64* payloads,
                                           Patience& patience) {
  u32 wanted = 0;
#pragma unroll
  for (int r = 0; r < kMostRanks; ++r) {
    if (r < p.ranks && r != p.rank && (line == 0 || hears_from(p, r))) wanted |= 1u << r;
  }
  while (wanted != 0) {
#pragma unroll
    for (int r = 0; r < kMostRanks; ++r) {
      if ((wanted >> r & 1u) == 0) continue;
      const Line got =
          load_line(line_slot(p, p.rank, r, epoch) + std::size_t{line} * kLineBytes);
      if (!got.is(epoch)) continue;
      payloads[r] = got.payload();
      wanted &= ~(1u << r);
    }
    if (wanted != 0 && patience.gone()) return;
  }
}

template <bool kReduce, class T>
__device__ void direct(const Parameters& p) {
  Patience patience(p.control);
  u32 epoch = next_epoch(p);
  const u32 first = epoch;
  for (std::size_t offset = std::size_t{blockIdx.x} * p.chunk; offset < p.bytes;
       offset += std::size_t{gridDim.x} * p.chunk, ++epoch) {
    const std::size_t length = p.bytes - offset < p.chunk ? p.bytes - offset : p.chunk;
    const u32 lines = static_cast<u32>((length + 7) / 8);
    const bool scales = kReduce && p.op == kOpPremulSum;
    if (scales) {
      push_lines<true, T>(p, epoch, offset, lines, length);
    } else {
      push_lines<false, T>(p, epoch, offset, lines, length);
    }
    for (u32 line = threadIdx.x; line < lines; line += blockDim.x) {
      const std::size_t at = std::size_t{line} * 8;
      u64 payloads[kMostRanks];
#pragma unroll
      for (int r = 0; r < kMostRanks; ++r) payloads[r] = 0;
      pull_lines(p, epoch, line, payloads, patience);
      if (p.shape == kToRoot && p.rank != p.root) continue;
      u64 own = 0;
      if (hears_from(p, p.rank)) {
        own = load_payload(p.input + p.send_stride * p.rank + offset + at, length - at);
        if (scales) own = scaled<T>(own, p.factor);
      }
      if constexpr (kReduce) {
        // Rank by rank, so that all ranks get the same bits.
        Pack<T> sum = Pack<T>::from(p.rank == 0 ? own : payloads[0]);
#pragma unroll
        for (int r = 1; r < kMostRanks; ++r) {
          if (r < p.ranks) sum.add(Pack<T>::from(r == p.rank ? own : payloads[r]), p.op);
        }
        if (p.op == kOpAvg) sum.divide(p.ranks);
        store_payload(p.output + offset + at, length - at, sum.payload());
      } else {
#pragma unroll
        for (int r = 0; r < kMostRanks; ++r) {
          if (r >= p.ranks || !hears_from(p, r)) continue;
          unsigned char* target = p.output + p.receive_stride * r + offset + at;
          store_payload(target, length - at, r == p.rank ? own : payloads[r]);
        }
      }
    }
    // Line 0 stands for its whole block: no thread sends in the next epoch before all have heard.
    __syncthreads();
  }
  if (epoch != first) keep_epoch(p, epoch - 1);
}

// Bulk slots of a two-shot exchange: phase 0 has parts to reduce, phase 1 results.
__device__ __forceinline__ unsigned char* bulk_slot(const Parameters& p, int to, int from, int phase,
                                                    u32 epoch) {
  return p.regions[to] + kBulkSlots +
         ((((static_cast<std::size_t>(blockIdx.x) * 2 + (epoch & 1)) * 2 + phase) * kMostRanks + from) *
          kBulkBytes);
}

__device__ __forceinline__ u32* bulk_flag(const Parameters& p, int to, int from, int phase) {
  return reinterpret_cast<u32*>(p.regions[to] + kBulkFlags) +
         (static_cast<std::size_t>(blockIdx.x) * 2 + phase) * kMostRanks + from;
}

// Tells all peers that this block's bytes are there, and waits until theirs are.
__device__ __forceinline__ void exchange_flags(const Parameters& p, int phase, u32 epoch,
                                               Patience& patience) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < p.ranks && peer != p.rank) {
    __threadfence_system();
    release_flag(bulk_flag(p, peer, p.rank, phase), epoch);
    const u32* flag = bulk_flag(p, p.rank, peer, phase);
    // A peer may be one exchange ahead already.
    while (static_cast<std::int32_t>(acquire_flag(flag) - epoch) < 0) {
      if (patience.gone()) break;
    }
  }
  __syncthreads();
}

struct Vector {
  u64 low, high;
};

__device__ __forceinline__ bool is_aligned(const void* at) {
  return (reinterpret_cast<std::uintptr_t>(at) & 15) == 0;
}

__device__ __forceinline__ Vector load_vector(const unsigned char* at, std::size_t left) {
  if (left >= 16 && is_aligned(at)) {
    const ulonglong2 both = *reinterpret_cast<const ulonglong2*>(at);
    return {both.x, both.y};
  }
  return {load_payload(at, left), left > 8 ? load_payload(at + 8, left - 8) : 0};
}

__device__ __forceinline__ void store_vector(unsigned char* at, std::size_t left, const Vector& v) {
  if (left >= 16 && is_aligned(at)) {
    *reinterpret_cast<ulonglong2*>(at) = make_ulonglong2(v.low, v.high);
    return;
  }
  store_payload(at, left, v.low);
  if (left > 8) store_payload(at + 8, left - 8, v.high);
}

template <class T>
__device__ void two_shot(const Parameters& p) {
  Patience patience(p.control);
  u32 epoch = next_epoch(p);
  const u32 first = epoch;
  const std::size_t step = std::size_t{blockDim.x} * 16;
  const bool scales = p.op == kOpPremulSum;
  // Part r is [r * part, (r + 1) * part) of the message, cut at its end; part 0 is the longest.
  const std::size_t longest = p.part < p.bytes ? p.part : p.bytes;
  for (std::size_t offset = std::size_t{blockIdx.x} * p.chunk; offset < longest;
       offset += std::size_t{gridDim.x} * p.chunk, ++epoch) {
    const auto length_of = [&](int r) {
      const std::size_t begin = p.part * r + offset;
      const std::size_t part_end = p.part * (r + 1) < p.bytes ? p.part * (r + 1) : p.bytes;
      if (begin >= part_end) return std::size_t{0};
      return part_end - begin < p.chunk ? part_end - begin : p.chunk;
    };
    for (int k = 1; k < p.ranks; ++k) {
      int peer = p.rank + k;
      if (peer >= p.ranks) peer -= p.ranks;
      const std::size_t length = length_of(peer);
      const unsigned char* from = p.input + p.part * peer + offset;
      unsigned char* to = bulk_slot(p, peer, p.rank, 0, epoch);
      for (std::size_t i = threadIdx.x * 16; i < length; i += step) {
        Vector v = load_vector(from + i, length - i);
        if (scales) v = {scaled<T>(v.low, p.factor), scaled<T>(v.high, p.factor)};
        store_vector(to + i, 16, v);
      }
    }
    exchange_flags(p, 0, epoch, patience);
    {
      const std::size_t length = length_of(p.rank);
      const unsigned char* own = p.input + p.part * p.rank + offset;
      unsigned char* output = p.output + p.part * p.rank + offset;
      for (std::size_t i = threadIdx.x * 16; i < length; i += step) {
        Vector mine = load_vector(own + i, length - i);
        if (scales) mine = {scaled<T>(mine.low, p.factor), scaled<T>(mine.high, p.factor)};
        Pack<T> low{}, high{};
        for (int r = 0; r < p.ranks; ++r) {
          const Vector v =
              r == p.rank ? mine : load_vector(bulk_slot(p, p.rank, r, 0, epoch) + i, 16);
          if (r == 0) {
            low = Pack<T>::from(v.low);
            high = Pack<T>::from(v.high);
          } else {
            low.add(Pack<T>::from(v.low), p.op);
            high.add(Pack<T>::from(v.high), p.op);
          }
        }
        if (p.op == kOpAvg) {
          low.divide(p.ranks);
          high.divide(p.ranks);
        }
        const Vector result{low.payload(), high.payload()};
        store_vector(output + i, length - i, result);
        for (int r = 0; r < p.ranks; ++r) {
          if (r != p.rank) store_vector(bulk_slot(p, r, p.rank, 1, epoch) + i, 16, result);
        }
      }
    }
    exchange_flags(p, 1, epoch, patience);
    for (int r = 0; r < p.ranks; ++r) {
      if (r == p.rank) continue;
      const std::size_t length = length_of(r);
      unsigned char* to = p.output + p.part * r + offset;
      for (std::size_t i = threadIdx.x * 16; i < length; i += step)
        store_vector(to + i, length - i,
                     load_vector(bulk_slot(p, p.rank, r, 1, epoch) + i, 16));
    }
  }
  if (epoch != first) keep_epoch(p, epoch - 1);
}

}  // namespace

#define ACCL_KERNELS_OF(name, T)                                                             \
  extern "C" __global__ void __launch_bounds__(kMostThreads)                                 \
      accl_direct_##name(const __grid_constant__ Parameters p) {                             \
    direct<true, T>(p);                                                                      \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(kMostThreads)                                 \
      accl_two_shot_##name(const __grid_constant__ Parameters p) {                           \
    two_shot<T>(p);                                                                          \
  }

ACCL_KERNELS_OF(float64, Plain<double>)
ACCL_KERNELS_OF(float32, Plain<float>)
ACCL_KERNELS_OF(float16, Half)
ACCL_KERNELS_OF(bfloat16, Bfloat16)
ACCL_KERNELS_OF(float8_e4m3fn, E4M3)
ACCL_KERNELS_OF(float8_e5m2, E5M2)
ACCL_KERNELS_OF(int32, Plain<std::int32_t>)
ACCL_KERNELS_OF(int64, Plain<long long>)

extern "C" __global__ void __launch_bounds__(kMostThreads)
    accl_move(const __grid_constant__ Parameters p) {
  direct<false, Plain<float>>(p);
}

}  // namespace accl::cuda
