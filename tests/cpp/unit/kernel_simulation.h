// Kernel simulation: what the CUDA kernels do (engine/cuda/exchange.h), on threads of the host.
//
// Each rank has its region and runs one kernel at a time; each thread of a kernel is a thread,
// which stumbles at random, so that ranks, blocks and threads overtake each other. Chunks are small
// and blocks few: a message of some hundred bytes takes several rounds through the same slots. What
// it cannot show is how a GPU orders its memory: a line is stored as a release here, though on a
// GPU nothing but its own bytes depends on it.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#define ACCL_GPU inline
#define ACCL_UNROLL

namespace accl::cuda::gpu {

struct Place {
  unsigned thread = 0;
  unsigned threads = 1;
  unsigned block = 0;
  unsigned blocks = 1;
  std::barrier<>* barrier = nullptr;
  std::minstd_rand random;
};
inline thread_local Place place;

inline void stumble() {
  for (unsigned steps = place.random() % 64; steps > 60; --steps) std::this_thread::yield();
}

inline unsigned thread() { return place.thread; }
inline unsigned threads() { return place.threads; }
inline unsigned block() { return place.block; }
inline unsigned blocks() { return place.blocks; }
inline void sync_threads() { place.barrier->arrive_and_wait(); }
inline void fence() {}

struct Pair {
  unsigned long long low, high;
};

template <class T>
std::atomic_ref<T> shared(const void* at) {
  return std::atomic_ref<T>(*static_cast<T*>(const_cast<void*>(at)));
}

// The halves of a line may arrive apart.
inline void store_line(void* at, Pair line) {
  stumble();
  auto* half = static_cast<unsigned long long*>(at);
  shared<unsigned long long>(half).store(line.low, std::memory_order_release);
  stumble();
  shared<unsigned long long>(half + 1).store(line.high, std::memory_order_release);
}

inline Pair load_line(const void* at) {
  std::this_thread::yield();
  const auto* half = static_cast<const unsigned long long*>(at);
  return {shared<unsigned long long>(half).load(std::memory_order_acquire),
          shared<unsigned long long>(half + 1).load(std::memory_order_acquire)};
}

inline void release(std::uint32_t* at, std::uint32_t value) {
  stumble();
  shared<std::uint32_t>(at).store(value, std::memory_order_release);
}

inline std::uint32_t acquire(const std::uint32_t* at) {
  std::this_thread::yield();
  return shared<std::uint32_t>(at).load(std::memory_order_acquire);
}

inline unsigned long long load8(const void* at) {
  unsigned long long value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}
inline void store8(void* at, unsigned long long value) { std::memcpy(at, &value, sizeof value); }

inline Pair load16(const void* at) {
  stumble();
  Pair value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}
inline void store16(void* at, Pair value) {
  stumble();
  std::memcpy(at, &value, sizeof value);
}

template <class T>
T peek(const T* at) {
  return shared<T>(at).load(std::memory_order_relaxed);
}
template <class T>
void poke(T* at, T value) {
  shared<T>(at).store(value, std::memory_order_relaxed);
}

inline unsigned long long now_ns() {
  return static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace accl::cuda::gpu

#include "engine/cuda/exchange.h"
#include "engine/cuda/launch_plan.h"

namespace accl::test {

class KernelSimulation {
 public:
  static constexpr unsigned kBlocks = 2;
  static constexpr unsigned kThreads = 4;  // at least one a peer
  static constexpr std::size_t kChunk = 48;

  explicit KernelSimulation(int ranks, std::chrono::nanoseconds deadline = std::chrono::seconds(30))
      : controls_(static_cast<std::size_t>(ranks)) {
    for (cuda::Control& control : controls_) {
      control = {0, 0, static_cast<std::uint64_t>(deadline.count())};
      regions_.emplace_back(static_cast<unsigned char*>(std::calloc(1, cuda::kRegionBytes)));
    }
  }

  int ranks() const { return static_cast<int>(regions_.size()); }
  cuda::Control& control(int rank) { return controls_[static_cast<std::size_t>(rank)]; }
  unsigned char* region(int rank) { return regions_[static_cast<std::size_t>(rank)].get(); }

  // Ends the kernels of all ranks, now and later.
  void abort() {
    for (cuda::Control& control : controls_) cuda::gpu::poke(&control.abort, std::uint32_t{1});
  }

  // Runs one rank's kernel to its end.
  template <class T>
  void launch(const cuda::KernelCall& call, int rank) {
    cuda::LaunchPlan plan = cuda::plan_launch(call, rank, ranks());
    if (plan.blocks == 0) return;
    cuda::Parameters& p = plan.parameters;
    p.chunk = kChunk;
    p.control = &control(rank);
    for (int r = 0; r < ranks(); ++r) p.regions[r] = region(r);
    const std::size_t bytes = call.two_shot ? std::min(p.part, p.bytes) : p.bytes;
    const auto blocks =
        static_cast<unsigned>(std::min<std::size_t>(kBlocks, (bytes + kChunk - 1) / kChunk));
    const bool moves = cuda::kernel_name(plan.kernel) == std::string("accl_move");
    run(rank, blocks, [&] {
      if (moves) {
        cuda::direct<false, cuda::Plain<T>>(p);
      } else if (call.two_shot) {
        cuda::two_shot<cuda::Plain<T>>(p);
      } else {
        cuda::direct<true, cuda::Plain<T>>(p);
      }
    });
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };

  template <class Kernel>
  void run(int rank, unsigned blocks, const Kernel& kernel) {
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    for (unsigned b = 0; b < blocks; ++b)
      barriers.push_back(std::make_unique<std::barrier<>>(kThreads));
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < blocks * kThreads; ++i) {
      threads.emplace_back([&, i] {
        const unsigned block = i / kThreads;
        const unsigned seed = (i + 1) * 7919 + static_cast<unsigned>(rank) * 104729 + ++launches_;
        cuda::gpu::place = {i % kThreads,          kThreads, block, blocks, barriers[block].get(),
                            std::minstd_rand(seed)};
        kernel();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<cuda::Control> controls_;
  std::vector<std::unique_ptr<unsigned char, Free>> regions_;
  std::atomic<unsigned> launches_ = 0;
};

}  // namespace accl::test
