// Ranks as threads with a fake GPU each (tests/fakes): what the tests of DeviceCommunicator share.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accl/device.h"
#include "accl/error.h"
#include "contract/ranks.h"
#include "driver/driver.h"
#include "fakes.h"
#include "harness/test.h"

// The fake driver, linked: what tests do themselves does not lean on what they test.
namespace accl::driver {
#define FAKE_DECLARE(member, symbol, parameters) \
  extern "C" Result cuda_##member parameters __asm__(symbol);
ACCL_DRIVER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
}  // namespace accl::driver

namespace accl::test {

inline constexpr int kMostRanks = 4;

// Throws where the driver refuses. `what` is the driver's name of the call.
inline void cuda_check(int result, const char* what) {
  if (result != 0) FAIL(std::string(what) + " returned " + std::to_string(result));
}

inline void use_device(int ordinal) {
  driver::Context context = nullptr;
  cuda_check(driver::cuda_init(0), "cuInit");
  cuda_check(driver::cuda_primary_context(&context, ordinal), "cuDevicePrimaryCtxRetain");
  cuda_check(driver::cuda_context_set(context), "cuCtxSetCurrent");
}

class OwnStream {
 public:
  OwnStream() {
    cuda_check(driver::cuda_stream_create(&stream_, driver::kStreamNonBlocking, 0),
               "cuStreamCreate");
  }
  ~OwnStream() { driver::cuda_stream_destroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator driver::Stream() const { return stream_; }
  void synchronize() const {
    cuda_check(driver::cuda_stream_synchronize(stream_), "cuStreamSynchronize");
  }

 private:
  driver::Stream stream_ = nullptr;
};

// Device memory between two guards, which here is host memory too.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    cuda_check(driver::cuda_memory_allocate(&memory_, bytes + 2 * kGuardBytes), "cuMemAlloc");
    std::memset(reinterpret_cast<void*>(memory_), kGuard, bytes + 2 * kGuardBytes);
  }
  explicit Memory(const std::vector<std::byte>& content) : Memory(content.size()) {
    write(content);
  }
  // Freeing waits for the streams, and those of a test that has failed may hang.
  ~Memory() {
    if (std::uncaught_exceptions() == 0) driver::cuda_memory_free(memory_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(memory_) + kGuardBytes; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  void write(const std::vector<std::byte>& content) const {
    std::copy(content.begin(), content.end(), data());
  }
  std::vector<std::byte> read() const { return {data(), data() + bytes_}; }
  bool intact() const {
    const std::byte* const begin = data() - kGuardBytes;
    const std::byte* const end = data() + bytes_;
    const auto is_guard = [](std::byte byte) { return byte == std::byte{kGuard}; };
    return std::all_of(begin, begin + kGuardBytes, is_guard) &&
           std::all_of(end, end + kGuardBytes, is_guard);
  }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr unsigned char kGuard = 0xa5;
  std::size_t bytes_;
  driver::Pointer memory_ = 0;
};

inline DeviceOptions device_options(Milliseconds timeout = Milliseconds{20'000}) {
  static std::atomic<int> number{0};
  DeviceOptions options;
  options.timeout = timeout;
  options.name = "test" + std::to_string(++number);  // tells communicators apart in the fake's log
  return options;
}

// Runs `function` on each of `ranks` threads, each with a device of its own, and returns each
// rank's exception (or null).
inline std::vector<std::exception_ptr> on_devices(int ranks,
                                                  const std::function<void(int)>& function) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        use_device(rank);
        function(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

// Throws the first cause: a rank that fails makes others fail.
inline void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  for (const auto& error : errors) {
    if (error && !is_kind<PeerError>(error)) std::rethrow_exception(error);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

struct DeviceRank {
  std::shared_ptr<DeviceCommunicator> communicator;
  const OwnStream& stream;
  int rank;
  int ranks;
};

// The same, each with a communicator (not shut down here) and a stream.
inline std::vector<std::exception_ptr> run_devices_with_errors(
    int ranks, const DeviceOptions& options, const std::function<void(DeviceRank)>& function) {
  const auto store = std::make_shared<HashStore>();
  return on_devices(ranks, [&](int rank) {
    DeviceOptions own = options;
    own.device = rank;
    const OwnStream stream;
    const DeviceRank made{DeviceCommunicator::create(store, rank, ranks, own), stream, rank, ranks};
    try {
      function(made);
    } catch (...) {
      fake_cuda_resume(stream);  // a test that has failed may have left it paused
      throw;
    }
  });
}

inline void run_devices(int ranks, const DeviceOptions& options,
                        const std::function<void(DeviceRank)>& function) {
  rethrow_first(run_devices_with_errors(ranks, options, [&](DeviceRank r) {
    function(r);
    r.communicator->shutdown();
  }));
}

inline Call all_reduce_of(const Memory& memory, std::size_t count = 1) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.input.data = call.output.data = memory.data();
  call.count = count;
  call.dtype = DType::kInt32;
  return call;
}

inline Call message_of(Collective collective, const Memory& memory, int peer,
                       std::size_t count = 1) {
  Call call = all_reduce_of(memory, count);
  call.collective = collective;
  call.peer = peer;
  return call;
}

// The fake NCCL's log of a communicator.
inline std::string log_of(const std::string& name, int rank) {
  std::string text(fake_nccl_log(name.c_str(), rank, nullptr, 0), '\0');
  fake_nccl_log(name.c_str(), rank, text.data(), text.size() + 1);
  return text;
}

inline bool soon(const std::function<bool()>& condition,
                 Milliseconds limit = Milliseconds{20'000}) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Where a test lets threads wait for each other.
class Gate {
 public:
  void open() { open_ = true; }
  void wait() const {
    CHECK(soon([this] { return open_.load(); }));
  }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace accl::test
