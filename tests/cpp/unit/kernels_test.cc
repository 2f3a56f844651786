// The CUDA kernels as far as they go without a GPU: the plan of a launch, and the exchange itself,
// simulated on threads.
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "accl/error.h"
#include "base/text.h"
#include "harness/test.h"
#include "kernel_simulation.h"

namespace {

using namespace accl;
using cuda::KernelCall;
using cuda::LaunchPlan;
using cuda::plan_launch;
using test::KernelSimulation;

KernelCall call_of(Collective collective, DType dtype, std::size_t count, bool two_shot = false) {
  KernelCall call;
  call.collective = collective;
  call.dtype = dtype;
  call.count = count;
  call.two_shot = two_shot;
  return call;
}

constexpr Collective kCollectives[] = {Collective::kAllReduce,     Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kBroadcast,
                                       Collective::kReduce,        Collective::kAllToAll,
                                       Collective::kGather,        Collective::kScatter};

TEST(kernel_plans_fit_the_slots_and_are_alike_on_all_ranks) {
  for (const Collective collective : kCollectives) {
    for (const bool two_shot : {false, true}) {
      for (const std::size_t count :
           {1U, 2U, 7U, 8U, 9U, 4095U, 4096U, 4097U, 1000003U, 4U << 20}) {
        for (int ranks = 2; ranks <= cuda::kMostRanks; ++ranks) {
          const KernelCall call = call_of(collective, DType::kFloat8E5M2, count, two_shot);
          const LaunchPlan plan = plan_launch(call, 0, ranks);
          const auto& p = plan.parameters;
          CHECK(plan.kernel >= 0);
          CHECK(plan.blocks >= 1 && plan.blocks <= cuda::kMostBlocks);
          CHECK(plan.threads >= 32 && plan.threads <= cuda::kMostThreads);
          CHECK_EQ(plan.threads % 32, 0U);
          CHECK_EQ(p.chunk % 16, 0U);
          const bool in_two = two_shot && collective == Collective::kAllReduce;
          CHECK(p.chunk <= (in_two ? cuda::kBulkBytes : cuda::kMostLineChunk));
          const std::size_t longest = in_two ? std::min(p.part, p.bytes) : p.bytes;
          CHECK((plan.blocks - 1) * p.chunk < longest);  // each block has something to do
          if (in_two) CHECK(p.part % 16 == 0 && p.part * static_cast<unsigned>(ranks) >= p.bytes);
          for (int rank = 1; rank < ranks; ++rank) {
            const LaunchPlan other = plan_launch(call, rank, ranks);
            CHECK_EQ(other.kernel, plan.kernel);
            CHECK_EQ(other.blocks, plan.blocks);
            CHECK_EQ(other.parameters.chunk, p.chunk);
            CHECK_EQ(other.parameters.part, p.part);
          }
        }
      }
    }
  }
}

TEST(small_messages_take_one_block) {
  const auto plan = plan_launch(call_of(Collective::kAllReduce, DType::kFloat32, 1024), 0, 8);
  CHECK_EQ(plan.blocks, 1U);
  CHECK_EQ(plan_launch(call_of(Collective::kAllReduce, DType::kFloat32, 2), 0, 8).threads, 32U);
}

TEST(kernels_take_what_they_can_and_nothing_else) {
  const auto takes = [](const KernelCall& call, int ranks = 2) {
    return plan_launch(call, 0, ranks).kernel >= 0;
  };
  const KernelCall sum = call_of(Collective::kAllReduce, DType::kFloat32, 4);
  CHECK(takes(sum) && takes(sum, cuda::kMostRanks));
  CHECK(!takes(sum, 1) && !takes(sum, cuda::kMostRanks + 1));
  for (const Collective none : {Collective::kBarrier, Collective::kSend, Collective::kRecv})
    CHECK(!takes(call_of(none, DType::kFloat32, 4)));
  for (const ReduceOp none : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    KernelCall bits = call_of(Collective::kAllReduce, DType::kInt32, 4);
    bits.op = none;
    CHECK(!takes(bits));
  }
  CHECK(!takes(call_of(Collective::kAllReduce, DType::kBool, 4)));
  CHECK(!takes(call_of(Collective::kReduce, DType::kComplex64, 4)));
  CHECK(takes(call_of(Collective::kAllGather, DType::kBool, 4)));
  CHECK(takes(call_of(Collective::kBroadcast, DType::kComplex128, 4)));
  KernelCall rooted = call_of(Collective::kBroadcast, DType::kFloat32, 4);
  rooted.root = 2;
  CHECK(!takes(rooted));
  rooted.root = -1;
  CHECK(!takes(rooted));
}

TEST(kernels_leave_large_and_absurd_sizes_alone) {
  const auto takes = [](std::size_t count, bool two_shot) {
    return plan_launch(call_of(Collective::kAllReduce, DType::kFloat32, count, two_shot), 0, 2)
               .kernel >= 0;
  };
  CHECK(takes(1U << 20, false) && !takes((1U << 20) + 1, false));
  CHECK(takes(16U << 20, true) && !takes((16U << 20) + 1, true));
  // Whose number of bytes does not fit a word, and would come out small.
  CHECK(!takes(std::size_t{1} << 62, false) && !takes((std::size_t{1} << 62) + 1, true));
}

TEST(an_empty_call_has_a_kernel_but_no_blocks) {
  for (const Collective collective : kCollectives) {
    const auto plan = plan_launch(call_of(collective, DType::kFloat32, 0), 0, 4);
    CHECK(plan.kernel >= 0);
    CHECK_EQ(plan.blocks, 0U);
  }
}

TEST(kernel_names_are_those_of_their_types) {
  std::set<std::string> names;
  for (int kernel = 0; kernel < cuda::kKernelCount; ++kernel)
    names.insert(cuda::kernel_name(kernel));
  CHECK_EQ(names.size(), static_cast<std::size_t>(cuda::kKernelCount));
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const bool two_shot : {false, true}) {
      const auto plan = plan_launch(call_of(Collective::kAllReduce, dtype, 1, two_shot), 0, 2);
      if (plan.kernel < 0) continue;
      CHECK_EQ(std::string(cuda::kernel_name(plan.kernel)),
               concat(two_shot ? "accl_two_shot_" : "accl_direct_", name_of(dtype)));
    }
  }
}

TEST(without_kernels_an_engine_says_why) {
  std::string why;
  if (cuda::KernelEngine::built_in(&why)) {
    CHECK_EQ(why, "");
    return;
  }
  CHECK(why.find("nvcc") != std::string::npos);
  CHECK_THROWS(SystemError, "nvcc", cuda::KernelEngine::open(0, 2, 0));
}

// One random call, as all ranks draw it from the same numbers.
struct Drawn {
  KernelCall call;
  std::size_t offset = 0;  // of buffers, from their alignment
  bool in_place = false;
  unsigned salt = 0;

  template <class T>
  static Drawn from(std::mt19937& random, int ranks, DType dtype) {
    Drawn drawn;
    constexpr std::size_t kCounts[] = {0, 1, 2, 3, 5, 11, 12, 13, 47, 48, 49, 101, 200};
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
                                 ReduceOp::kMax, ReduceOp::kAvg,     ReduceOp::kPremulSum};
    drawn.call = call_of(kCollectives[random() % 8], dtype, kCounts[random() % 13]);
    drawn.call.two_shot = drawn.call.collective == Collective::kAllReduce && random() % 2 == 0;
    drawn.call.op = kOps[random() % 6];
    drawn.call.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    drawn.offset = random() % 3 == 0 ? sizeof(T) * (random() % 5) : 0;
    drawn.in_place = random() % 3 == 0;
    drawn.salt = static_cast<unsigned>(random());
    return drawn;
  }
};

// One rank's side of a drawn call: its buffers, and what must be in them afterwards.
template <class T>
class Side {
 public:
  Side(const Drawn& drawn, int rank, int ranks)
      : drawn_(drawn),
        call_(drawn.call),
        rank_(rank),
        ranks_(static_cast<std::size_t>(ranks)),
        count_(call_.count) {
    const Collective c = call_.collective;
    many_in_ =
        c == Collective::kReduceScatter || c == Collective::kScatter || c == Collective::kAllToAll;
    many_out_ =
        c == Collective::kAllGather || c == Collective::kGather || c == Collective::kAllToAll;
    reads_ = rank == call_.root || (c != Collective::kBroadcast && c != Collective::kScatter);
    writes_ = rank == call_.root || (c != Collective::kReduce && c != Collective::kGather);
    // A rank whose input or output is not used gives none.
    in_place_ = drawn.in_place && c != Collective::kAllToAll && reads_ && writes_;
    call_.factor = 0.5 + rank;
    input_.assign(kGuard + drawn.offset + bytes(many_in_) + kGuard, 0xa5);
    output_.assign(kGuard + drawn.offset + bytes(many_out_) + kGuard, 0xa5);
    for (std::size_t i = 0; i < elements(many_in_); ++i) put(input_, i, value(rank, i));
    if (in_place_ && many_in_) output_ = input_;
    if (in_place_ && many_out_) std::memcpy(at(output_, own()), at(input_, 0), count_ * sizeof(T));
    if (in_place_ && !many_in_ && !many_out_) output_ = input_;
    want_ = output_;
    if (writes_) expect();
    untouched_ = input_;
    set_pointers();
  }

  const KernelCall& call() const { return call_; }

  void check() const {
    const std::string what =
        concat(name_of(call_.collective), call_.two_shot ? " (two_shot)" : "", " ",
               name_of(call_.op), " of ", count_, " ", name_of(call_.dtype), " on ", ranks_,
               " ranks, rank ", rank_, ", root ", call_.root, in_place_ ? ", in place" : "");
    if (input_ != untouched_) FAIL(what + ": the input was written");
    for (std::size_t i = 0; i < want_.size(); ++i) {
      if (output_[i] == want_[i]) continue;
      FAIL(concat(what, ": byte ", i, " is ", int{output_[i]}, ", expected ", int{want_[i]}));
    }
  }

 private:
  using Bytes = std::vector<unsigned char>;
  static constexpr std::size_t kGuard = 16;

  std::size_t elements(bool many) const { return many ? count_ * ranks_ : count_; }
  std::size_t bytes(bool many) const { return elements(many) * sizeof(T); }
  std::size_t own() const { return static_cast<std::size_t>(rank_) * count_; }
  unsigned char* at(Bytes& memory, std::size_t i) const {
    return memory.data() + kGuard + drawn_.offset + i * sizeof(T);
  }
  void put(Bytes& memory, std::size_t i, T x) const { std::memcpy(at(memory, i), &x, sizeof x); }

  // Different by call, rank and place, so that old or foreign data does not pass; floats that round
  // in every sum, so that the order of ranks shows; now and then a NaN for min and max.
  T value(int rank, std::size_t i) const {
    std::mt19937 random(drawn_.salt + static_cast<unsigned>(rank * 7919) +
                        static_cast<unsigned>(i) * 31);
    const auto word = static_cast<int>(random() % 20011) - 10000;
    if constexpr (std::is_floating_point_v<T>) {
      const bool compares = call_.op == ReduceOp::kMin || call_.op == ReduceOp::kMax;
      if (compares && word % 17 == 0) return std::numeric_limits<T>::quiet_NaN();
      return static_cast<T>(word) / static_cast<T>(7);
    } else {
      return static_cast<T>(word % 101);
    }
  }

  T reduced(std::size_t i) const {
    T total{};
    for (int r = 0; r < static_cast<int>(ranks_); ++r) {
      T x = value(r, i);
      if (call_.op == ReduceOp::kPremulSum) {
        if constexpr (std::is_floating_point_v<T>) {
          x *= static_cast<T>(0.5 + r);
        } else {
          x = static_cast<T>(static_cast<double>(x) * (0.5 + r));
        }
      }
      total = r == 0 ? x : combined(total, x);
    }
    return call_.op == ReduceOp::kAvg ? total / static_cast<T>(ranks_) : total;
  }

  T combined(T a, T b) const {
    switch (call_.op) {
      case ReduceOp::kProduct:
        return a * b;
      case ReduceOp::kMin:
        return a != a ? a : b != b ? b : std::min(a, b);
      case ReduceOp::kMax:
        return a != a ? a : b != b ? b : std::max(a, b);
      default:
        return a + b;
    }
  }

  void expect() {
    for (std::size_t i = 0; i < elements(many_out_); ++i) {
      const auto from = static_cast<int>(count_ == 0 ? 0 : i / count_);
      const std::size_t place = count_ == 0 ? 0 : i % count_;
      // In place, a reduce_scatter's and a scatter's output is the own block of the input.
      const std::size_t where = in_place_ && many_in_ ? own() + i : i;
      put(want_, where, wanted(i, from, place));
    }
  }

  T wanted(std::size_t i, int from, std::size_t place) const {
    switch (call_.collective) {
      case Collective::kReduceScatter:
        return reduced(own() + i);
      case Collective::kAllGather:
      case Collective::kGather:
        return value(from, place);
      case Collective::kAllToAll:
        return value(from, own() + place);
      case Collective::kScatter:
        return value(call_.root, own() + i);
      case Collective::kBroadcast:
        return value(call_.root, i);
      default:
        return reduced(i);
    }
  }

  void set_pointers() {
    Bytes& from = in_place_ ? output_ : input_;
    const std::size_t in = in_place_ && many_out_ ? own() : 0;
    const std::size_t out = in_place_ && many_in_ ? own() : 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      call_.inputs[r] = reads_ ? at(from, in + (many_in_ ? r * count_ : 0)) : nullptr;
      call_.outputs[r] = writes_ ? at(output_, out + (many_out_ ? r * count_ : 0)) : nullptr;
    }
  }

  const Drawn drawn_;
  KernelCall call_;
  const int rank_;
  const std::size_t ranks_;
  const std::size_t count_;
  bool many_in_ = false;
  bool many_out_ = false;
  bool reads_ = true;
  bool writes_ = true;
  bool in_place_ = false;
  Bytes input_;
  Bytes output_;
  Bytes want_;
  Bytes untouched_;
};

template <class Body>
void on_ranks(int ranks, const Body& body) {
  std::mutex mutex;
  std::exception_ptr fault;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!fault) fault = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (fault) std::rethrow_exception(fault);
}

template <class T>
void make_random_calls(KernelSimulation& simulation, DType dtype, int calls, unsigned seed) {
  on_ranks(simulation.ranks(), [&](int rank) {
    std::mt19937 random(seed);
    for (int i = 0; i < calls; ++i) {
      const Drawn drawn = Drawn::from<T>(random, simulation.ranks(), dtype);
      Side<T> side(drawn, rank, simulation.ranks());
      simulation.launch<T>(side.call(), rank);
      try {
        side.check();
      } catch (...) {  // the others need not wait
        simulation.abort();
        throw;
      }
    }
  });
}

TEST(kernels_exchange_right_data_whoever_is_late) {
  for (const int ranks : {2, 3, 4}) {
    KernelSimulation simulation(ranks);
    const auto seed = static_cast<unsigned>(ranks);
    make_random_calls<float>(simulation, DType::kFloat32, 60, seed);
    make_random_calls<std::int32_t>(simulation, DType::kInt32, 20, seed + 100);
    make_random_calls<double>(simulation, DType::kFloat64, 20, seed + 200);
  }
}

// As an earlier lap of the epochs would have left them: every slot and flag has the number of the
// first epoch of its parity, 2 or 3.
void leave_old_flags(unsigned char* region) {
  const std::size_t lines = cuda::kMostRanks * cuda::kSlotLines;
  for (std::size_t i = 0; i < 2 * lines * KernelSimulation::kBlocks; ++i) {
    const auto half = std::uint64_t{2 + i / lines % 2} << 32 | 0xdead;
    for (const std::size_t at : {0U, 8U})
      std::memcpy(region + cuda::kLineSlots + i * cuda::kLineBytes + at, &half, sizeof half);
  }
  const std::size_t flags = 2 * cuda::kMostRanks;
  for (std::size_t i = 0; i < 2 * flags * KernelSimulation::kBlocks; ++i) {
    const auto number = static_cast<std::uint32_t>(2 + i / flags % 2);
    std::memcpy(region + cuda::kBulkFlags + i * 4, &number, sizeof number);
  }
}

void set_epoch(KernelSimulation& simulation, std::uint32_t epoch) {
  for (int rank = 0; rank < simulation.ranks(); ++rank) {
    for (std::size_t block = 0; block < KernelSimulation::kBlocks; ++block)
      std::memcpy(simulation.region(rank) + cuda::kEpochs + block * 4, &epoch, sizeof epoch);
  }
}

TEST(epochs_alternate_and_are_never_zero) {
  for (const std::uint32_t epoch : {0U, 1U, 2U, cuda::kLastEpoch - 1, cuda::kLastEpoch}) {
    CHECK(cuda::after(epoch) != 0);
    CHECK_EQ((cuda::after(epoch) ^ epoch) & 1, 1U);
  }
}

// The last two epochs use one line each; then all that the old flags would let through is used,
// while a rank is late.
TEST(no_old_flag_passes_when_epochs_start_again) {
  for (const bool two_shot : {false, true}) {
    KernelSimulation simulation(3);
    for (int rank = 0; rank < 3; ++rank) leave_old_flags(simulation.region(rank));
    set_epoch(simulation, cuda::kLastEpoch - 2);
    on_ranks(3, [&](int rank) {
      for (const std::size_t count : {1U, 1U, 200U}) {
        if (count > 1 && rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        Drawn drawn;
        drawn.call = call_of(Collective::kAllReduce, DType::kFloat32, count, two_shot && count > 1);
        Side<float> side(drawn, rank, 3);
        simulation.launch<float>(side.call(), rank);
        side.check();
      }
    });
  }
}

TEST(random_calls_are_right_when_epochs_start_again) {
  KernelSimulation simulation(3);
  set_epoch(simulation, cuda::kLastEpoch - 12);
  make_random_calls<float>(simulation, DType::kFloat32, 30, 5);
  std::uint32_t epoch = 0;
  std::memcpy(&epoch, simulation.region(0) + cuda::kEpochs, sizeof epoch);
  CHECK(epoch > 1 && epoch < 1000);  // they have
}

TEST(a_kernel_without_its_peers_gives_up) {
  for (const bool two_shot : {false, true}) {
    for (const bool aborted : {false, true}) {
      KernelSimulation simulation(
          3, aborted ? std::chrono::minutes(10) : std::chrono::nanoseconds(20'000'000));
      std::array<float, 100> data{};
      KernelCall call = call_of(Collective::kAllReduce, DType::kFloat32, data.size(), two_shot);
      call.inputs.fill(data.data());
      call.outputs.fill(data.data());
      std::thread kernel([&] { simulation.launch<float>(call, 0); });
      if (aborted) cuda::gpu::poke(&simulation.control(0).abort, std::uint32_t{1});
      kernel.join();
      CHECK_EQ(simulation.control(0).gave_up, 1U);
      CHECK_EQ(simulation.control(1).gave_up, 0U);
    }
  }
}

}  // namespace
