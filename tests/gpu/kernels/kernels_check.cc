// Runs every kernel of engine/cuda on N ranks that share the first GPU (or have one each), with
// results checked on the host. Small enough to run under compute-sanitizer, which the Python tests
// are not. Ranks are processes, forked before CUDA starts.
//
// Usage: accl_kernels_check [--ranks] RANKS [--quick]; quick leaves out what takes long there.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "accl/error.h"
#include "base/text.h"
#include "driver/driver.h"
#include "engine/cuda/kernel_engine.h"
#include "engine/cuda/launch_plan.h"

namespace {

using namespace accl;

// What the ranks share: addresses, a barrier, and whether one of them has failed.
struct Shared {
  std::atomic<bool> failed;
  char addresses[cuda::kMostRanks][1024];
  std::atomic<int> arrived[4096];
};

class Ranks {
 public:
  Ranks(Shared& shared, int ranks) : shared_(shared), ranks_(ranks) {}
  void meet() {
    auto& arrived = shared_.arrived[next_++];
    arrived.fetch_add(1);
    while (arrived.load() < ranks_) {
      if (shared_.failed.load()) throw InternalError("another rank has failed");
      ::usleep(200);
    }
  }

 private:
  Shared& shared_;
  int ranks_;
  int next_ = 0;
};

constexpr Collective kCollectives[] = {
    Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce, Collective::kAllGather,
    Collective::kAllToAll,  Collective::kBroadcast,     Collective::kGather, Collective::kScatter};

constexpr DType kTypes[] = {DType::kFloat64,  DType::kFloat32,      DType::kFloat16,
                            DType::kBfloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2,
                            DType::kInt32,    DType::kInt64};

// Bit patterns of 0, 1, 2, ... 7 as elements: exact in every type, also their sums on few ranks.
std::uint64_t element(DType dtype, int value) {
  static constexpr std::uint64_t kHalf[] = {0,      0x3c00, 0x4000, 0x4200, 0x4400, 0x4500,
                                            0x4600, 0x4700, 0x4800, 0x4880, 0x4900, 0x4980,
                                            0x4a00, 0x4a80, 0x4b00, 0x4b80, 0x4c00};
  const auto bits = [](auto x) {
    std::uint64_t word = 0;
    std::memcpy(&word, &x, sizeof x);
    return word;
  };
  switch (dtype) {
    case DType::kFloat64:
      return bits(static_cast<double>(value));
    case DType::kFloat32:
      return bits(static_cast<float>(value));
    case DType::kFloat16:
      return kHalf[value];
    case DType::kBfloat16:
      return bits(static_cast<float>(value)) >> 16;
    case DType::kFloat8E4M3FN:
      return value == 0 ? 0 : ((kHalf[value] - 0x2000) >> 7) & 0x7f;
    case DType::kFloat8E5M2:
      return kHalf[value] >> 8;
    default:
      return static_cast<std::uint64_t>(value);
  }
}

// Small enough that sums over the ranks stay exact: 0 or 1, by rank and place.
int value_of(int rank, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 2);
}

std::vector<unsigned char> filled(DType dtype, std::size_t count, auto&& value) {
  const std::size_t size = size_of(dtype);
  std::vector<unsigned char> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = element(dtype, value(i));
    std::memcpy(bytes.data() + i * size, &word, size);
  }
  return bytes;
}

class Checker {
 public:
  Checker(cuda::KernelEngine& engine, int rank, int ranks)
      : engine_(engine), rank_(rank), ranks_(ranks) {
    driver::check(driver::table().memory_allocate(&input_, kBytes), "cuMemAlloc");
    driver::check(driver::table().memory_allocate(&output_, kBytes), "cuMemAlloc");
    driver::check(driver::table().stream_create(&stream_, driver::kStreamNonBlocking, 0), "stream");
  }

  // `offset`: bytes by which both buffers are off their alignment.
  void run(Collective collective, DType dtype, std::size_t count, bool two_shot,
           std::size_t offset) {
    run(collective, dtype, count, two_shot, offset, ReduceOp::kSum);
  }

  // All operations, with inputs whose results are exact in every type: 0 or 1, and factor 2.
  void run(Collective collective, DType dtype, std::size_t count, bool two_shot, std::size_t offset,
           ReduceOp op) {
    const auto n = static_cast<std::size_t>(ranks_);
    const bool many_in = collective == Collective::kReduceScatter ||
                         collective == Collective::kAllToAll || collective == Collective::kScatter;
    const bool many_out = collective == Collective::kAllGather ||
                          collective == Collective::kAllToAll || collective == Collective::kGather;
    const auto input =
        filled(dtype, count * (many_in ? n : 1), [&](std::size_t i) { return value_of(rank_, i); });
    const int root = static_cast<int>(count % n);
    const auto want = filled(dtype, count * (many_out ? n : 1), [&](std::size_t i) {
      return expected(collective, op, i, count, root);
    });
    cuda::KernelCall call;
    call.collective = collective;
    call.count = count;
    call.dtype = dtype;
    call.root = root;
    call.two_shot = two_shot;
    call.op = op;
    call.factor = 2.0;
    const std::size_t block = count * size_of(dtype);
    for (std::size_t r = 0; r < n; ++r) {
      call.inputs[r] = reinterpret_cast<void*>(input_ + offset + r * block);
      call.outputs[r] = reinterpret_cast<void*>(output_ + offset + r * block);
    }
    // A rank whose input or output is not used gives none.
    const bool reads =
        (collective != Collective::kBroadcast && collective != Collective::kScatter) ||
        rank_ == root;
    const bool writes =
        (collective != Collective::kReduce && collective != Collective::kGather) || rank_ == root;
    if (!reads) call.inputs.fill(nullptr);
    if (!writes) call.outputs.fill(nullptr);
    copy(input_ + offset, input.data(), input.size());
    driver::check(driver::table().memory_set(output_, 0x5a, want.size() + offset + 64), "set");
    // That is on the null stream, which the kernel's does not wait for.
    driver::check(driver::table().stream_synchronize(nullptr), "set");
    engine_.launch(call, stream_);
    driver::check(driver::table().stream_synchronize(stream_), "cuStreamSynchronize");
    if (engine_.gave_up()) throw InternalError("a kernel gave up");
    std::vector<unsigned char> got(want.size() + 64);
    copy(got.data(), output_ + offset, got.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const unsigned char right = writes && i < want.size() ? want[i] : 0x5a;
      if (got[i] == right) continue;
      throw InternalError(concat(name_of(collective), two_shot ? " (two_shot)" : "", " ",
                                 name_of(op), " of ", count, " ", name_of(dtype), ", offset ",
                                 offset, ": byte ", i, " is ", int{got[i]}, ", expected ",
                                 int{right}));
    }
    ++checks_;
  }

  int checks() const { return checks_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{16} << 20;

  int reduced(ReduceOp op, std::size_t place) const {
    int ones = 0;
    for (int r = 0; r < ranks_; ++r) ones += value_of(r, place);
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
        return ones == ranks_ ? 1 : 0;
      case ReduceOp::kMax:
        return ones > 0 ? 1 : 0;
      case ReduceOp::kPremulSum:
        return 2 * ones;
      default:
        return ones;
    }
  }

  int expected(Collective collective, ReduceOp op, std::size_t i, std::size_t count,
               int root) const {
    const auto sum = [&](std::size_t place) { return reduced(op, place); };
    const auto own = static_cast<std::size_t>(rank_) * count;
    switch (collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
        return sum(i);
      case Collective::kReduceScatter:
        return sum(own + i);
      case Collective::kAllGather:
      case Collective::kGather:
        return value_of(static_cast<int>(i / count), i % count);
      case Collective::kAllToAll:
        return value_of(static_cast<int>(i / count), own + i % count);
      case Collective::kScatter:
        return value_of(root, own + i);
      default:
        return value_of(root, i);
    }
  }

  void copy(auto to, auto from, std::size_t bytes) {
    const auto address = [](auto x) { return (driver::Pointer)x; };
    driver::check(driver::table().memory_copy(address(to), address(from), bytes, stream_), "copy");
    driver::check(driver::table().stream_synchronize(stream_), "copy");
  }

  cuda::KernelEngine& engine_;
  const int rank_;
  const int ranks_;
  driver::Pointer input_ = 0;
  driver::Pointer output_ = 0;
  driver::Stream stream_ = nullptr;
  int checks_ = 0;
};

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kPremulSum};

void check_each(Checker& checker, int ranks, bool quick) {
  const auto n = static_cast<std::size_t>(ranks);
  for (const DType dtype : kTypes) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, n - 1, n + 1, std::size_t{1027}, std::size_t{9001}}) {
      if (quick && count == 9001) continue;
      const std::size_t offset = count == 1027 ? size_of(dtype) : 0;
      for (const Collective collective : kCollectives)
        checker.run(collective, dtype, count, false, offset);
      checker.run(Collective::kAllReduce, dtype, count, true, offset);
    }
    for (const ReduceOp op : kOps) {
      for (const bool two_shot : {false, true})
        checker.run(Collective::kAllReduce, dtype, 333, two_shot, 0, op);
    }
  }
  // Bytes, at any address.
  for (const std::size_t count : {1U, 7U, 15U, 17U, 1000003U}) {
    if (quick && count > 1000) continue;
    for (const std::size_t offset : {1U, 3U, 8U}) {
      for (const Collective collective : kCollectives) {
        if (collective == Collective::kAllReduce || collective == Collective::kReduce ||
            collective == Collective::kReduceScatter)
          continue;
        checker.run(collective, DType::kUint8, count, false, offset);
      }
    }
  }
  if (quick) return;
  checker.run(Collective::kAllReduce, DType::kFloat32, 300'001, false, 0);
  checker.run(Collective::kAllReduce, DType::kFloat32, 600'001, true, 0);
}

// Calls of all kinds and sizes in turn, so that they meet each other in the slots.
void check_mixed(Checker& checker, int calls) {
  std::minstd_rand random(1);  // the same on all ranks
  for (int i = 0; i < calls; ++i) {
    const Collective collective = kCollectives[random() % std::size(kCollectives)];
    const DType dtype = kTypes[random() % std::size(kTypes)];
    const std::size_t count = random() % (std::size_t{1} << (1 + random() % 15));
    const std::size_t offset = random() % 4 == 0 ? size_of(dtype) : 0;
    const bool two_shot = collective == Collective::kAllReduce && random() % 2 == 0;
    checker.run(collective, dtype, count, two_shot, offset, kOps[random() % std::size(kOps)]);
  }
}

cuda::KernelCall lonely_call(driver::Pointer memory, bool two_shot) {
  cuda::KernelCall call;
  call.inputs.fill(reinterpret_cast<void*>(memory));
  call.outputs.fill(reinterpret_cast<void*>(memory));
  call.count = 100;
  call.two_shot = two_shot;
  return call;
}

std::unique_ptr<cuda::KernelEngine> connected(Shared& shared, Ranks& all, int rank, int ranks,
                                              int device) {
  auto engine = cuda::KernelEngine::open(rank, ranks, device);
  const std::string own = engine->address();
  std::snprintf(shared.addresses[rank], sizeof shared.addresses[rank], "%s", own.c_str());
  all.meet();
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) addresses.emplace_back(shared.addresses[r]);
  all.meet();  // before anybody writes the next address
  engine->connect(addresses);
  engine->set_deadline(Milliseconds{60'000});
  return engine;
}

// Rank 0 goes on alone: its kernel ends when it is told to, or at its deadline, and says so.
void check_giving_up(cuda::KernelEngine& engine, bool abort, bool two_shot) {
  driver::Pointer memory = 0;
  driver::check(driver::table().memory_allocate(&memory, 4096), "cuMemAlloc");
  if (!abort) engine.set_deadline(Milliseconds{100});
  const auto start = std::chrono::steady_clock::now();
  engine.launch(lonely_call(memory, two_shot), nullptr);
  if (abort) engine.abort();
  driver::check(driver::table().stream_synchronize(nullptr), "cuStreamSynchronize");
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  const char* what = abort ? "an aborted kernel" : "a kernel past its deadline";
  if (!engine.gave_up()) throw InternalError(concat(what, " did not say that it gave up"));
  if (spent.count() > 20.0) throw InternalError(concat(what, " took ", spent.count(), " s to end"));
  driver::check(driver::table().memory_free(memory), "cuMemFree");
}

int run_rank(Shared& shared, int rank, int ranks, bool quick) {
  int devices = 0;
  driver::check(driver::table().device_count(&devices), "cuDeviceGetCount");
  const int device = devices >= ranks ? rank : 0;
  Ranks all(shared, ranks);
  const driver::Current current(driver::primary_context(device));
  auto engine = connected(shared, all, rank, ranks, device);
  Checker checker(*engine, rank, ranks);
  check_each(checker, ranks, quick);
  check_mixed(checker, quick ? 50 : 2000);
  for (const bool abort : {true, false}) {
    for (const bool two_shot : {false, true}) {
      auto lonely = connected(shared, all, rank, ranks, device);
      if (rank == 0) check_giving_up(*lonely, abort, two_shot);
      all.meet();
    }
  }
  std::printf("rank %d: %d checks right\n", rank, checker.checks());
  return 0;
}

}  // namespace

int main(int arguments, char** values) {
  int ranks = 2;
  bool quick = false;
  for (int i = 1; i < arguments; ++i) {
    const std::string_view word = values[i];
    if (word == "--quick") {
      quick = true;
    } else if (word != "--ranks") {
      ranks = std::atoi(values[i]);
    }
  }
  if (ranks < 2 || ranks > cuda::kMostRanks) {
    std::fprintf(stderr, "usage: accl_kernels_check [--ranks] RANKS [--quick] (RANKS: 2 to %d)\n",
                 cuda::kMostRanks);
    return 2;
  }
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto& shared = *new (memory) Shared{};
  for (int r = 0; r < ranks; ++r) {
    if (::fork() != 0) continue;
    try {
      const int code = run_rank(shared, r, ranks, quick);
      std::fflush(nullptr);
      std::_Exit(code);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", r, error.what());
      shared.failed.store(true);
      std::fflush(nullptr);
      std::_Exit(1);
    }
  }
  int failed = 0;
  for (int r = 0; r < ranks; ++r) {
    int status = 0;
    ::wait(&status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  return failed == 0 ? 0 : 1;
}
