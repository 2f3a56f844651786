// The fakes are what fakes.h says: asynchronous, in stream order, right, and strict.
#include "fakes.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "harness/test.h"

namespace accl::driver {
#define FAKE_DECLARE(member, symbol, parameters) \
  extern "C" Result cuda_##member parameters __asm__(symbol);
ACCL_DRIVER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
}  // namespace accl::driver

namespace accl::nccl {
#define FAKE_DECLARE(member, symbol, parameters) \
  extern "C" Result nccl_##member parameters __asm__(symbol);
ACCL_NCCL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
}  // namespace accl::nccl

namespace accl::test {
namespace {

using namespace std::chrono_literals;
using namespace driver;
using namespace nccl;
using driver::kSuccess;
using CudaStream = driver::Stream;

constexpr int kDevices = 5;

// Makes a device current on this thread; one for each rank.
void use_device(int ordinal) {
  setenv("FAKE_CUDA_DEVICES", std::to_string(kDevices).c_str(), 1);
  CHECK_EQ(cuda_init(0), 0);
  Device device = 0;
  Context context = nullptr;
  CHECK_EQ(cuda_device_get(&device, ordinal), 0);
  CHECK_EQ(cuda_primary_context(&context, device), 0);
  CHECK_EQ(cuda_context_set(context), 0);
}

class OwnStream {
 public:
  OwnStream() { CHECK_EQ(cuda_stream_create(&stream_, kStreamNonBlocking, 0), 0); }
  ~OwnStream() { cuda_stream_destroy(stream_); }
  operator CudaStream() const { return stream_; }

 private:
  CudaStream stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(unsigned flags = kEventDisableTiming) {
    CHECK_EQ(cuda_event_create(&event_, flags), 0);
  }
  ~OwnEvent() { cuda_event_destroy(event_); }
  operator Event() const { return event_; }

 private:
  Event event_ = nullptr;
};

bool soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// Whether the function ends its process by abort(), with a sentence.
bool aborts(const std::function<void()>& function) {
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    function();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

// The driver.

TEST(fake_stream_is_asynchronous_and_in_order) {
  use_device(0);
  const OwnStream stream;
  const OwnEvent event;
  std::vector<int> order;
  static std::vector<int>* seen;
  seen = &order;
  fake_cuda_pause(stream);
  CHECK_EQ(cuda_host_function(stream, [](void*) { seen->push_back(1); }, nullptr), 0);
  CHECK_EQ(cuda_event_record(event, stream), 0);
  CHECK_EQ(cuda_host_function(stream, [](void*) { seen->push_back(2); }, nullptr), 0);
  CHECK_EQ(cuda_event_query(event), kNotReady);
  fake_cuda_resume(stream);
  CHECK_EQ(cuda_event_synchronize(event), 0);
  CHECK_EQ(cuda_event_query(event), 0);
  CHECK_EQ(cuda_stream_synchronize(stream), 0);
  CHECK_EQ(order, (std::vector<int>{1, 2}));
}

TEST(fake_event_of_one_stream_holds_another) {
  use_device(0);
  const OwnStream first;
  const OwnStream second;
  const OwnEvent event;
  const OwnEvent end;
  CHECK_EQ(cuda_event_query(event), 0);  // never recorded
  fake_cuda_pause(first);
  CHECK_EQ(cuda_event_record(event, first), 0);
  CHECK_EQ(cuda_stream_wait(second, event, 0), 0);
  CHECK_EQ(cuda_event_record(event, second), 0);  // the wait is for the earlier place
  CHECK_EQ(cuda_event_record(end, second), 0);
  std::this_thread::sleep_for(20ms);
  CHECK_EQ(cuda_event_query(end), kNotReady);
  fake_cuda_resume(first);
  CHECK_EQ(cuda_event_synchronize(end), 0);
}

TEST(fake_events_measure_time) {
  use_device(0);
  const OwnStream stream;
  const OwnEvent start(0);
  const OwnEvent end(0);
  CHECK_EQ(cuda_event_record(start, stream), 0);
  CHECK_EQ(cuda_host_function(stream, [](void*) { std::this_thread::sleep_for(5ms); }, nullptr), 0);
  CHECK_EQ(cuda_event_record(end, stream), 0);
  CHECK_EQ(cuda_event_synchronize(end), 0);
  float milliseconds = 0;
  CHECK_EQ(cuda_event_elapsed(&milliseconds, start, end), 0);
  CHECK(milliseconds >= 5.0F);
}

TEST(fake_memory_is_copied_in_stream_order) {
  use_device(0);
  const OwnStream stream;
  const std::size_t before = fake_cuda_live_bytes();
  Pointer from = 0;
  Pointer to = 0;
  CHECK_EQ(cuda_memory_allocate(&from, 100), 0);
  CHECK_EQ(cuda_memory_allocate(&to, 100), 0);
  CHECK_EQ(fake_cuda_live_bytes(), before + 200);
  CHECK_EQ(cuda_memory_set(from, 7, 100), 0);
  CHECK_EQ(cuda_stream_synchronize(nullptr), 0);
  CHECK_EQ(cuda_memory_copy(to, from, 100, stream), 0);
  CHECK_EQ(cuda_stream_synchronize(stream), 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(to);
  CHECK(std::all_of(bytes, bytes + 100, [](unsigned char byte) { return byte == 7; }));
  CHECK_EQ(cuda_memory_free(from), 0);
  CHECK_EQ(cuda_memory_free(to), 0);
  CHECK_EQ(cuda_memory_free(to), 1);
  CHECK_EQ(fake_cuda_live_bytes(), before);
}

TEST(fake_driver_is_of_one_context_a_thread) {
  use_device(1);
  const OwnStream stream;
  CHECK_EQ(fake_cuda_device_of(stream), 1);
  CHECK_EQ(fake_cuda_device_of(nullptr), 1);
  std::thread([&] {
    Event event = nullptr;
    CHECK_EQ(cuda_event_create(&event, 0), 201);
    use_device(0);
    CHECK_EQ(cuda_event_create(&event, 0), 0);
    CHECK_EQ(cuda_event_record(event, stream), 400);  // the stream is of another device
    CHECK_EQ(cuda_event_destroy(event), 0);
  }).join();
  Device device = 0;
  CHECK_EQ(cuda_device_get(&device, kDevices), 101);
  Uuid uuids[2];
  CHECK_EQ(cuda_device_uuid(&uuids[0], 0), 0);
  CHECK_EQ(cuda_device_uuid(&uuids[1], 1), 0);
  CHECK(std::memcmp(&uuids[0], &uuids[1], sizeof uuids[0]) != 0);
}

TEST(fake_capture_drops_work_and_spreads_by_events) {
  use_device(0);
  const OwnStream stream;
  const OwnStream side;
  const OwnEvent event;
  const OwnEvent outside;
  static std::atomic<int> ran;
  ran = 0;
  const auto count = [](void*) { ++ran; };
  CHECK_EQ(cuda_event_record(outside, side), 0);
  fake_cuda_set_capturing(stream, 1);
  int status = 0;
  CHECK_EQ(cuda_stream_capture_status(stream, &status), 0);
  CHECK_EQ(status, kCaptureActive);
  CHECK_EQ(cuda_host_function(stream, count, nullptr), 0);
  CHECK_EQ(cuda_stream_wait(stream, outside, 0), 905);
  CHECK_EQ(cuda_event_record(event, stream), 0);
  CHECK_EQ(cuda_event_query(event), 907);
  CHECK_EQ(cuda_event_synchronize(event), 907);
  CHECK_EQ(cuda_stream_wait(side, event, 0), 0);
  CHECK_EQ(cuda_host_function(side, count, nullptr), 0);
  fake_cuda_set_capturing(stream, 0);
  CHECK_EQ(cuda_stream_capture_status(side, &status), 0);
  CHECK_EQ(status, kCaptureNone);
  CHECK_EQ(cuda_stream_wait(side, event, 0), 907);
  CHECK_EQ(cuda_host_function(side, count, nullptr), 0);
  CHECK_EQ(cuda_stream_synchronize(side), 0);
  CHECK_EQ(cuda_stream_synchronize(stream), 0);
  CHECK_EQ(ran.load(), 1);
}

TEST(fake_capture_is_spoilt_by_unsafe_calls_unless_relaxed) {
  use_device(0);
  const OwnStream stream;
  const OwnEvent event;
  CHECK_EQ(cuda_event_record(event, nullptr), 0);
  fake_cuda_set_capturing(stream, 1);
  int mode = kCaptureRelaxed;
  CHECK_EQ(cuda_exchange_capture_mode(&mode), 0);
  CHECK_EQ(cuda_event_synchronize(event), 0);
  CHECK_EQ(cuda_event_query(event), 0);
  CHECK_EQ(cuda_exchange_capture_mode(&mode), 0);
  CHECK_EQ(mode, kCaptureRelaxed);
  CHECK_EQ(cuda_event_query(event), 900);
  CHECK_EQ(cuda_host_function(stream, [](void*) {}, nullptr), 901);
  fake_cuda_set_capturing(stream, 0);
  CHECK_EQ(cuda_stream_synchronize(stream), 0);
}

TEST(fake_handles_are_counted_and_not_used_after_their_end) {
  use_device(0);
  const long events = fake_cuda_live_events();
  const long streams = fake_cuda_live_streams();
  Event event = nullptr;
  CudaStream stream = nullptr;
  CHECK_EQ(cuda_event_create(&event, 0), 0);
  CHECK_EQ(cuda_stream_create(&stream, 0, 0), 0);
  CHECK_EQ(fake_cuda_live_events(), events + 1);
  CHECK_EQ(fake_cuda_live_streams(), streams + 1);
  CHECK_EQ(cuda_event_destroy(event), 0);
  CHECK_EQ(cuda_stream_destroy(stream), 0);
  CHECK_EQ(fake_cuda_live_events(), events);
  CHECK_EQ(fake_cuda_live_streams(), streams);
  CHECK(aborts([&] { cuda_event_query(event); }));
  CHECK(aborts([&] { cuda_event_destroy(event); }));
  CHECK(aborts([&] { cuda_stream_synchronize(stream); }));
  CHECK_EQ(cuda_event_query(nullptr), 400);
  CHECK_EQ(cuda_event_record(nullptr, nullptr), 400);
}

// NCCL.

struct Rank {
  int rank;
  int ranks;
  Comm comm;
  CudaStream stream;
};

UniqueId new_id() {
  UniqueId id{};
  CHECK_EQ(nccl_get_unique_id(&id), 0);
  return id;
}

// Runs a function on threads, each with a device of its own. One that fails leaves the others
// hanging in their streams: the process ends then, and says why.
void on_threads(int count, const std::function<void(int)>& function) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        use_device(i);
        function(i);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "FAIL on thread %d: %s\n", i, error.what());
        std::_Exit(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Each rank with a communicator and a stream of its own. `destroy` is false where the test aborts.
void run_ranks(int ranks, const std::function<void(Rank)>& function, bool destroy = true) {
  const UniqueId id = new_id();
  on_threads(ranks, [&](int rank) {
    Comm comm = nullptr;
    CHECK_EQ(nccl_comm_init(&comm, ranks, id, rank, nullptr), 0);
    const OwnStream stream;
    function({rank, ranks, comm, stream});
    if (!destroy) return;
    CHECK_EQ(cuda_stream_synchronize(stream), 0);
    CHECK_EQ(nccl_comm_finalize(comm), 0);
    CHECK_EQ(nccl_comm_destroy(comm), 0);
  });
}

std::vector<int> numbers(int first, std::size_t count) {
  std::vector<int> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = first + static_cast<int>(i);
  return made;
}

TEST(fake_collectives_are_right_for_1_to_5_ranks) {
  for (int ranks = 1; ranks <= kDevices; ++ranks) {
    run_ranks(ranks, [](Rank r) {
      constexpr std::size_t kCount = 7;
      const auto n = static_cast<std::size_t>(r.ranks);
      const auto own = numbers(100 * r.rank, kCount);
      const auto wide = numbers(100 * r.rank, kCount * n);
      const int root = r.ranks - 1;
      std::vector<int> reduced(kCount);
      std::vector<int> at_root(kCount, -1);
      std::vector<int> scattered(kCount);
      std::vector<int> gathered(kCount * n);
      std::vector<int> told(kCount);
      const Type type = Type::kInt32;
      CHECK_EQ(nccl_all_reduce(own.data(), reduced.data(), kCount, type, kSum, r.comm, r.stream),
               0);
      CHECK_EQ(nccl_reduce(own.data(), at_root.data(), kCount, type, kMax, root, r.comm, r.stream),
               0);
      CHECK_EQ(
          nccl_reduce_scatter(wide.data(), scattered.data(), kCount, type, kMin, r.comm, r.stream),
          0);
      CHECK_EQ(nccl_all_gather(own.data(), gathered.data(), kCount, type, r.comm, r.stream), 0);
      CHECK_EQ(nccl_broadcast(own.data(), told.data(), kCount, type, root, r.comm, r.stream), 0);
      CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
      for (std::size_t i = 0; i < kCount; ++i) {
        const int at = static_cast<int>(i);
        CHECK_EQ(reduced[i], r.ranks * at + 100 * (r.ranks * (r.ranks - 1) / 2));
        CHECK_EQ(at_root[i], r.rank == root ? 100 * root + at : -1);
        CHECK_EQ(scattered[i], r.rank * static_cast<int>(kCount) + at);
        for (std::size_t s = 0; s < n; ++s)
          CHECK_EQ(gathered[s * kCount + i], 100 * static_cast<int>(s) + at);
        CHECK_EQ(told[i], 100 * root + at);
      }
    });
  }
}

TEST(fake_collectives_work_in_place) {
  run_ranks(3, [](Rank r) {
    std::vector<int> sum = numbers(r.rank, 4);
    std::vector<int> gathered(6, -1);
    std::vector<int> scattered = numbers(0, 6);
    const auto at = static_cast<std::size_t>(r.rank) * 2;
    gathered[at] = gathered[at + 1] = r.rank;
    const Type type = Type::kInt32;
    CHECK_EQ(nccl_all_reduce(sum.data(), sum.data(), 4, type, kSum, r.comm, r.stream), 0);
    CHECK_EQ(nccl_all_gather(&gathered[at], gathered.data(), 2, type, r.comm, r.stream), 0);
    CHECK_EQ(nccl_reduce_scatter(scattered.data(), &scattered[at], 2, type, kSum, r.comm, r.stream),
             0);
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    CHECK_EQ(sum, (std::vector<int>{3, 6, 9, 12}));
    CHECK_EQ(gathered, (std::vector<int>{0, 0, 1, 1, 2, 2}));
    CHECK_EQ(scattered[at + 1], 3 * (2 * r.rank + 1));
  });
}

// One element of each rank, reduced.
template <class T>
T reduce_one(const std::vector<T>& inputs, Type type, Op op, double factor = 0) {
  T result{};
  run_ranks(static_cast<int>(inputs.size()), [&](Rank r) {
    Op used = op;
    if (factor != 0) {
      T scalar = static_cast<T>(factor);
      CHECK_EQ(nccl_redop_create_premul_sum(&used, &scalar, type, kScalarOnHost, r.comm), 0);
    }
    T own = inputs[static_cast<std::size_t>(r.rank)];
    CHECK_EQ(nccl_all_reduce(&own, &own, 1, type, used, r.comm, r.stream), 0);
    if (factor != 0) CHECK_EQ(nccl_redop_destroy(used, r.comm), 0);
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    if (r.rank == 0) result = own;
  });
  return result;
}

TEST(fake_types_and_operations) {
  using U8 = std::vector<std::uint8_t>;
  using U16 = std::vector<std::uint16_t>;
  CHECK_EQ(reduce_one<std::int8_t>({100, 100}, Type::kInt8, kSum), -56);  // wraps around
  CHECK_EQ(reduce_one<std::int32_t>({-7, 4}, Type::kInt32, kAvg), -1);    // towards zero
  CHECK_EQ(reduce_one<std::uint64_t>({3, 5}, Type::kUint64, kProduct), 15U);
  CHECK_EQ(reduce_one<float>({1.5F, 2.0F, -8.0F}, Type::kFloat32, kMin), -8.0F);
  CHECK_EQ(reduce_one<double>({1.0, 2.0}, Type::kFloat64, kSum, 0.5), 1.5);
  CHECK_EQ(reduce_one<std::int64_t>({1, 2}, Type::kInt64, kSum, 3), 9);
  CHECK_EQ(reduce_one(U16{0x3c00, 0x4000}, Type::kFloat16, kSum), 0x4200);  // 1 + 2
  CHECK_EQ(reduce_one(U16{0x7bff, 0x7bff}, Type::kFloat16, kSum), 0x7c00);  // infinity
  CHECK_EQ(reduce_one(U16{0x0001, 0x0001}, Type::kFloat16, kSum), 0x0002);  // subnormal
  CHECK_EQ(reduce_one(U16{0x6800, 0x3c00}, Type::kFloat16, kSum),
           0x6800);  // 2048 + 1, ties to even
  CHECK_EQ(reduce_one(U16{0x3f80, 0x4000}, Type::kBfloat16, kAvg), 0x3fc0);  // 1.5
  CHECK_EQ(reduce_one(U8{0x38, 0x40}, Type::kFloat8E4M3, kSum), 0x44);       // 1 + 2
  CHECK_EQ(reduce_one(U8{0x7e, 0x7e}, Type::kFloat8E4M3, kSum), 0x7e);       // 448 is the largest
  CHECK_EQ(reduce_one(U8{0x3c, 0x40}, Type::kFloat8E5M2, kProduct), 0x40);   // 1 * 2
}

TEST(fake_messages_cross_in_groups) {
  run_ranks(4, [](Rank r) {
    std::vector<int> sent(4, r.rank);
    std::vector<int> received(4, -1);
    CHECK_EQ(nccl_group_start(), 0);
    for (int peer = 0; peer < r.ranks; ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      CHECK_EQ(nccl_send(&sent[at], 1, Type::kInt32, peer, r.comm, r.stream), 0);
      CHECK_EQ(nccl_recv(&received[at], 1, Type::kInt32, peer, r.comm, r.stream), 0);
    }
    CHECK_EQ(nccl_group_end(), 0);
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    CHECK_EQ(received, (std::vector<int>{0, 1, 2, 3}));
  });
}

TEST(fake_call_returns_before_the_others_come) {
  std::atomic<bool> first_returned{false};
  run_ranks(2, [&](Rank r) {
    int value = 1;
    if (r.rank == 1) CHECK(soon([&] { return first_returned.load(); }));
    CHECK_EQ(nccl_all_reduce(&value, &value, 1, Type::kInt32, kSum, r.comm, r.stream), 0);
    if (r.rank == 0) first_returned = true;
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    CHECK_EQ(value, 2);
  });
}

TEST(fake_abort_frees_the_streams_of_its_rank_alone) {
  std::atomic<bool> aborted{false};
  run_ranks(
      3,
      [&](Rank r) {
        static int values[3];
        const OwnEvent event;
        if (r.rank != 2) {  // rank 2 does not come
          int* value = &values[r.rank];
          CHECK_EQ(nccl_all_reduce(value, value, 1, Type::kInt32, kSum, r.comm, r.stream), 0);
        }
        CHECK_EQ(cuda_event_record(event, r.stream), 0);
        if (r.rank == 1) {
          CHECK(soon([&] { return aborted.load(); }));
          std::this_thread::sleep_for(20ms);
          CHECK_EQ(cuda_event_query(event), kNotReady);
        }
        CHECK_EQ(nccl_comm_abort(r.comm), 0);
        CHECK_EQ(cuda_event_synchronize(event), 0);
        if (r.rank == 0) aborted = true;
      },
      false);
}

TEST(fake_abort_frees_a_blocked_init) {
  use_device(0);
  const UniqueId id = new_id();
  static Comm made;
  made = nullptr;
  std::atomic<int> result{-1};
  std::thread thread([&] {
    use_device(0);
    result = nccl_comm_init(&made, 2, id, 0, nullptr);
  });
  // NCCL writes the handle before it waits; a test reads it there as our code may not.
  CHECK(soon([&] { return __atomic_load_n(&made, __ATOMIC_ACQUIRE) != nullptr; }));
  CHECK_EQ(nccl_comm_abort(__atomic_load_n(&made, __ATOMIC_ACQUIRE)), 0);
  thread.join();
  CHECK_EQ(result.load(), kInternalError);
}

TEST(fake_waiting_inits_and_splits_can_be_ended) {
  use_device(0);
  const UniqueId id = new_id();
  std::atomic<int> result{-1};
  std::thread thread([&] {
    use_device(0);
    Comm comm = nullptr;
    result = nccl_comm_init(&comm, 2, id, 0, nullptr);
  });
  CHECK(soon([&] {
    fake_nccl_end_waiting_inits();
    return result.load() != -1;
  }));
  thread.join();
  CHECK_EQ(result.load(), kInvalidUsage);
  run_ranks(2, [](Rank r) {
    if (r.rank == 1) return;
    std::atomic<bool> ended{false};
    std::thread ender([&] {
      while (!ended) {
        fake_nccl_end_waiting_inits();
        std::this_thread::sleep_for(1ms);
      }
    });
    Comm child = nullptr;
    CHECK_EQ(nccl_comm_split(r.comm, 0, 0, &child, nullptr), kInternalError);
    ended = true;
    ender.join();
  });
}

TEST(fake_mismatch_hangs_until_the_abort) {
  const long before = fake_nccl_mismatches();
  run_ranks(
      2,
      [&](Rank r) {
        static int values[2][2];
        const OwnEvent event;
        const auto count = static_cast<std::size_t>(r.rank + 1);
        CHECK_EQ(nccl_all_reduce(values[r.rank], values[r.rank], count, Type::kInt32, kSum, r.comm,
                                 r.stream),
                 0);
        CHECK_EQ(cuda_event_record(event, r.stream), 0);
        CHECK(soon([&] { return fake_nccl_mismatches() == before + 1; }));
        CHECK_EQ(cuda_event_query(event), kNotReady);
        CHECK_EQ(nccl_comm_abort(r.comm), 0);
        CHECK_EQ(cuda_event_synchronize(event), 0);
      },
      false);
}

TEST(fake_split_orders_by_key_then_rank) {
  run_ranks(5, [](Rank r) {
    // Ranks 0, 2, 4 in reverse order, 1 and 3 as they are; then rank 4 stays out.
    Comm child = nullptr;
    const bool even = r.rank % 2 == 0;
    CHECK_EQ(nccl_comm_split(r.comm, r.rank % 2, even ? -r.rank : 0, &child, nullptr), 0);
    int rank = -1;
    int ranks = -1;
    CHECK_EQ(nccl_comm_rank(child, &rank), 0);
    CHECK_EQ(nccl_comm_ranks(child, &ranks), 0);
    CHECK_EQ(ranks, even ? 3 : 2);
    CHECK_EQ(rank, even ? 2 - r.rank / 2 : r.rank / 2);
    int value = r.rank;
    CHECK_EQ(nccl_all_reduce(&value, &value, 1, Type::kInt32, kSum, child, r.stream), 0);
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    CHECK_EQ(value, even ? 6 : 4);
    Comm other = nullptr;
    CHECK_EQ(nccl_comm_split(r.comm, r.rank == 4 ? kNoColor : 0, 0, &other, nullptr), 0);
    CHECK_EQ(other == nullptr, r.rank == 4);
    CHECK_EQ(nccl_comm_destroy(other), 0);
    CHECK_EQ(nccl_comm_destroy(child), 0);
  });
}

TEST(fake_init_without_blocking) {
  const UniqueId id = new_id();
  std::atomic<bool> waits{false};
  on_threads(2, [&](int rank) {
    Config config;
    config.blocking = 0;
    Comm comm = nullptr;
    if (rank == 1) CHECK(soon([&] { return waits.load(); }));
    CHECK_EQ(nccl_comm_init(&comm, 2, id, rank, &config), kInProgress);
    Result state = 0;
    int value = 1;
    if (rank == 0) {
      CHECK_EQ(nccl_comm_error(comm, &state), 0);
      CHECK_EQ(state, kInProgress);
      CHECK_EQ(nccl_all_reduce(&value, &value, 1, Type::kInt32, kSum, comm, nullptr),
               kInvalidArgument);
      waits = true;
    }
    CHECK(soon([&] { return nccl_comm_error(comm, &state) == 0 && state == 0; }));
    CHECK_EQ(nccl_all_reduce(&value, &value, 1, Type::kInt32, kSum, comm, nullptr), 0);
    CHECK_EQ(nccl_comm_finalize(comm), kInProgress);
    CHECK(soon([&] { return nccl_comm_error(comm, &state) == 0 && state == 0; }));
    CHECK_EQ(value, 2);
    CHECK_EQ(nccl_comm_destroy(comm), 0);
  });
}

TEST(fake_configuration_is_checked_as_nccl_does) {
  use_device(0);
  const auto init_with = [](auto change) {
    Config config;
    change(config);
    Comm comm = nullptr;
    const Result result = nccl_comm_init(&comm, 1, new_id(), 0, &config);
    CHECK_EQ(nccl_comm_destroy(comm), 0);
    return result;
  };
  CHECK_EQ(init_with([](Config& c) { c.min_ctas = 4, c.max_ctas = 8; }), 0);
  CHECK_EQ(init_with([](Config& c) { c.magic = 0; }), kInvalidArgument);
  CHECK_EQ(init_with([](Config& c) { c.min_ctas = 9, c.max_ctas = 8; }), kInvalidArgument);
  CHECK_EQ(init_with([](Config& c) { c.min_ctas = 4; }), kInvalidArgument);  // above undefined
  CHECK_EQ(init_with([](Config& c) { c.max_ctas = 8; }), 0);
  CHECK_EQ(init_with([](Config& c) { c.blocking = 2; }), kInvalidArgument);
  CHECK_EQ(init_with([](Config& c) { c.comm_name = "named", c.traffic_class = 5; }), 0);
  Config seen;
  CHECK_EQ(fake_nccl_last_config("named", 0, &seen), 1);
  CHECK_EQ(std::string(seen.comm_name), "named");
  CHECK_EQ(seen.traffic_class, 5);
  CHECK_EQ(fake_nccl_last_config("nobody", 0, &seen), 0);
}

TEST(fake_init_refuses_two_ranks_on_one_gpu) {
  const UniqueId id = new_id();
  on_threads(2, [&](int) {
    static std::atomic<int> next{0};
    use_device(0);
    Comm comm = nullptr;
    CHECK_EQ(nccl_comm_init(&comm, 2, id, next++, nullptr), kInvalidUsage);
    CHECK(comm == nullptr);
  });
}

TEST(fake_calls_are_checked) {
  run_ranks(1, [](Rank r) {
    int value = 5;
    const auto reduce = [&](void* data, int type, Op op, CudaStream stream) {
      return nccl_all_reduce(data, data, 1, static_cast<Type>(type), op, r.comm, stream);
    };
    CHECK_EQ(reduce(nullptr, 2, kSum, r.stream), kInvalidArgument);
    CHECK_EQ(reduce(&value, 12, kSum, r.stream), kInvalidArgument);
    CHECK_EQ(reduce(&value, 2, 77, r.stream), kInvalidArgument);
    CHECK_EQ(nccl_broadcast(&value, &value, 1, Type::kInt32, 1, r.comm, r.stream),
             kInvalidArgument);
    Op op = 0;
    float two = 2;
    CHECK_EQ(nccl_redop_create_premul_sum(&op, &two, Type::kFloat32, kScalarOnHost, r.comm), 0);
    CHECK_EQ(reduce(&value, 2, op, r.stream), kInvalidArgument);  // of another type
    CHECK_EQ(nccl_redop_destroy(op, r.comm), 0);
    CHECK_EQ(nccl_redop_destroy(op, r.comm), kInvalidArgument);
    const OwnStream other;
    CHECK_EQ(nccl_group_start(), 0);
    CHECK_EQ(reduce(&value, 2, kSum, r.stream), 0);
    CHECK_EQ(reduce(&value, 2, kSum, other), 0);
    CHECK_EQ(nccl_group_end(), kInvalidUsage);
    CHECK_EQ(nccl_group_start(), 0);
    CHECK_EQ(reduce(&value, 12, kSum, r.stream), kInvalidArgument);
    CHECK_EQ(reduce(&value, 2, kSum, r.stream), 0);
    CHECK_EQ(nccl_group_end(), kInvalidArgument);  // and nothing was launched
    CHECK_EQ(nccl_group_end(), kInvalidUsage);
    CHECK_EQ(reduce(&value, 2, kSum, r.stream), 0);
  });
}

TEST(fake_failures_errors_and_log) {
  use_device(0);
  Config config;
  config.comm_name = "logged";
  Comm comm = nullptr;
  CHECK_EQ(nccl_comm_init(&comm, 1, new_id(), 0, &config), 0);
  int value = 3;
  const auto reduce = [&] {
    return nccl_all_reduce(&value, &value, 1, Type::kInt32, kAvg, comm, nullptr);
  };
  const long before = fake_nccl_calls("ncclAllReduce");
  fake_nccl_fail_next("ncclAllReduce", kSystemError);
  CHECK_EQ(reduce(), kSystemError);
  CHECK_EQ(reduce(), 0);
  std::thread([] { fake_nccl_fail_next_here("ncclAllReduce", kSystemError); }).join();
  CHECK_EQ(reduce(), 0);
  CHECK_EQ(fake_nccl_calls("ncclAllReduce"), before + 3);
  fake_cuda_set_capturing(nullptr, 1);
  CHECK_EQ(reduce(), 0);
  fake_cuda_set_capturing(nullptr, 0);
  char text[512];
  const std::string line = "ncclAllReduce count=1 type=int32 op=avg captured=";
  const std::string all = line + "0\n" + line + "0\n" + line + "1\n";
  CHECK_EQ(fake_nccl_log("logged", 0, text, sizeof text), all.size());
  CHECK_EQ(std::string(text), all);
  CHECK_EQ(fake_nccl_set_async_error("logged", -1, kRemoteError), 1);
  Result state = 0;
  CHECK_EQ(nccl_comm_error(comm, &state), 0);
  CHECK_EQ(state, kRemoteError);
  CHECK_EQ(reduce(), kRemoteError);
  const long live = fake_nccl_live_communicators();
  CHECK_EQ(nccl_comm_abort(comm), 0);
  CHECK_EQ(fake_nccl_live_communicators(), live - 1);
  CHECK(aborts([&] { nccl_comm_error(comm, &state); }));
  CHECK(aborts([&] { nccl_comm_abort(comm); }));
}

// The tuner plugin. NCCL loads one a process, so it is there for all tests of this program.

const bool plugin_is_set = setenv("NCCL_TUNER_PLUGIN", FAKES_TUNER_PLUGIN, 1) == 0;

TEST(fake_nccl_asks_the_tuner_plugin) {
  CHECK(plugin_is_set);
  void* plugin = dlopen(FAKES_TUNER_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  CHECK(plugin != nullptr);
  using Force = int (*)(const char*, const char*, const char*, int, std::size_t);
  const auto force = reinterpret_cast<Force>(dlsym(plugin, "accl_tuner_force"));
  const auto clear = reinterpret_cast<void (*)()>(dlsym(plugin, "accl_tuner_clear"));
  CHECK_EQ(force("allreduce", "tree", "simple", 3, 0), 0);
  std::string log;
  run_ranks(2, [&](Rank r) {
    std::vector<int> values(64, 1);
    CHECK_EQ(
        nccl_all_reduce(values.data(), values.data(), 64, Type::kInt32, kSum, r.comm, r.stream), 0);
    CHECK_EQ(nccl_all_gather(values.data(), values.data(), 0, Type::kInt32, r.comm, r.stream), 0);
    CHECK_EQ(nccl_broadcast(values.data(), values.data(), 64, Type::kInt32, 0, r.comm, r.stream),
             0);
    CHECK_EQ(cuda_stream_synchronize(r.stream), 0);
    CHECK_EQ(values[63], 2);
    if (r.rank != 1) return;
    char text[512];
    fake_nccl_log(nullptr, 1, text, sizeof text);
    log = text;
  });
  clear();
  CHECK_EQ(log,
           "ncclAllReduce count=64 type=int32 op=sum captured=0 algorithm=tree protocol=simple "
           "channels=3\n"
           "ncclAllGather count=0 type=int32 captured=0\n"
           "ncclBroadcast count=64 type=int32 root=0 captured=0 algorithm=ring protocol=ll "
           "channels=0\n");
}

}  // namespace
}  // namespace accl::test
