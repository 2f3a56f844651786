// The contract of DeviceCommunicator's data: every collective x dtype x operation that NCCL has x
// awkward count x 1 to 4 ranks, in place and out of place, even, uneven, and as lists of blocks.
#include <numeric>
#include <optional>
#include <utility>

#include "contract/elements.h"
#include "device/devices.h"

namespace accl::test {
namespace {

using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::size_t>;

constexpr ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax,  ReduceOp::kAvg,     ReduceOp::kPremulSum,
                             ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};
constexpr double kFactor = 2.0;

// What docs say that NCCL can do, told apart from the code that says it.
bool nccl_has(ReduceOp op, DType dtype) {
  const bool bits = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  const bool scales = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  if (bits || dtype == DType::kInt16 || dtype == DType::kUint16) return false;
  if (dtype == DType::kBool) return !scales;
  if (dtype == DType::kComplex64 || dtype == DType::kComplex128)
    return scales || op == ReduceOp::kSum;
  return true;
}

Bytes reduced_input(DType dtype, ReduceOp op, int rank, int ranks, std::size_t count) {
  Bytes data(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i)
    encode(data.data() + i * size_of(dtype), dtype, element(op, rank, ranks, i));
  return data;
}

Bytes reduced_result(DType dtype, ReduceOp op, int ranks, std::size_t count,
                     std::size_t first = 0) {
  Bytes data(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i)
    encode(data.data() + i * size_of(dtype), dtype,
           expected_element(op, dtype, ranks, first + i, kFactor));
  return data;
}

Bytes moved(int from, int to, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(from, to, i);
  return data;
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// One case: what is called, and how its buffers lie.
struct Case {
  DType dtype = DType::kInt32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 0;
  bool in_place = false;
  Counts counts = {};   // uneven
  bool blocks = false;  // the side with one block a rank is a list, apart in memory
  int root = 0;
};

class Run {
 public:
  Run(const DeviceRank& rank, const Case& what) : r_(rank), case_(what) {
    call_.dtype = what.dtype;
    call_.op = what.op;
    call_.factor = kFactor;
    call_.count = what.count;
    call_.counts = what.counts;
    call_.root = what.root;
  }

  void all_reduce() {
    start(Collective::kAllReduce);
    const Bytes input = reduced_input(case_.dtype, case_.op, r_.rank, r_.ranks, case_.count);
    const Memory in(input);
    const Memory out(input.size());
    call_.input.data = in.data();
    call_.output.data = (case_.in_place ? in : out).data();
    finish({&in, &out});
    expect(case_.in_place ? in : out, reduced_result(case_.dtype, case_.op, r_.ranks, case_.count));
    if (!case_.in_place) expect(in, input);
  }

  void reduce() {
    start(Collective::kReduce);
    const Bytes input = reduced_input(case_.dtype, case_.op, r_.rank, r_.ranks, case_.count);
    const Memory in(input);
    const Memory out(input.size());
    const bool is_root = r_.rank == case_.root;
    call_.input.data = in.data();
    if (is_root) call_.output.data = (case_.in_place ? in : out).data();
    finish({&in, &out});
    if (is_root)
      expect(case_.in_place ? in : out,
             reduced_result(case_.dtype, case_.op, r_.ranks, case_.count));
    if (!is_root || !case_.in_place) expect(in, input);
  }

  void reduce_scatter() {
    start(Collective::kReduceScatter);
    const Bytes input = reduced_input(case_.dtype, case_.op, r_.rank, r_.ranks, total());
    const Memory in(case_.blocks ? Bytes{} : input);
    const auto list = case_.blocks ? apart(input) : std::vector<std::unique_ptr<Memory>>{};
    const Memory out(bytes_of(r_.rank));
    set_side(call_.input, in, list);
    call_.output.data = case_.in_place ? in.data() + before(r_.rank) * element_bytes() : out.data();
    finish({&in, &out});
    const Bytes right =
        reduced_result(case_.dtype, case_.op, r_.ranks, count_of(r_.rank), before(r_.rank));
    if (case_.in_place)
      expect_bytes(call_.output.data, right);
    else
      expect(out, right);
  }

  void broadcast() {
    start(Collective::kBroadcast);
    const Bytes data = moved(case_.root, 0, case_.count * element_bytes());
    const bool is_root = r_.rank == case_.root;
    const Memory in(is_root ? data : Bytes(data.size()));
    const Memory out(data.size());
    call_.input.data = in.data();
    call_.output.data = (case_.in_place ? in : out).data();
    finish({&in, &out});
    expect(case_.in_place ? in : out, data);
  }

  void gather(Collective collective) {  // all_gather too
    start(collective);
    const bool receives = collective == Collective::kAllGather || r_.rank == case_.root;
    const Bytes own = moved(r_.rank, 0, bytes_of(r_.rank));
    std::vector<Bytes> parts;
    for (int s = 0; s < r_.ranks; ++s) parts.push_back(moved(s, 0, bytes_of(s)));
    const Bytes right = joined(parts);
    const Memory in(own);
    const Memory out(right.size());
    const auto list =
        case_.blocks ? apart(Bytes(right.size())) : std::vector<std::unique_ptr<Memory>>{};
    std::byte* const place = out.data() + before(r_.rank) * element_bytes();
    const bool in_place = case_.in_place && receives;
    if (in_place) std::copy(own.begin(), own.end(), place);
    call_.input.data = in_place ? place : in.data();
    if (receives) set_side(call_.output, out, list);
    finish({&in, &out});
    if (!receives) return;
    if (!case_.blocks) return expect(out, right);
    for (std::size_t s = 0; s < list.size(); ++s) expect(*list[s], parts[s]);
  }

  void scatter() {
    start(Collective::kScatter);
    const bool is_root = r_.rank == case_.root;
    std::vector<Bytes> parts;
    for (int s = 0; s < r_.ranks; ++s) parts.push_back(moved(case_.root, s, bytes_of(s)));
    const Memory in(joined(parts));
    const auto list = case_.blocks ? apart(joined(parts)) : std::vector<std::unique_ptr<Memory>>{};
    const Memory out(bytes_of(r_.rank));
    if (is_root) set_side(call_.input, in, list);
    const bool in_place = case_.in_place && is_root;
    call_.output.data = in_place ? in.data() + before(r_.rank) * element_bytes() : out.data();
    finish({&in, &out});
    const Bytes right = moved(case_.root, r_.rank, bytes_of(r_.rank));
    expect_bytes(call_.output.data, right);
  }

  // `sizes(from, to)` gives elements; null: count for all.
  void all_to_all(std::size_t (*sizes)(int, int) = nullptr) {
    start(Collective::kAllToAll);
    std::vector<Bytes> sent;
    std::vector<Bytes> right;
    for (int s = 0; s < r_.ranks; ++s) {
      const std::size_t there = sizes != nullptr ? sizes(r_.rank, s) : case_.count;
      const std::size_t back = sizes != nullptr ? sizes(s, r_.rank) : case_.count;
      sent.push_back(moved(r_.rank, s, there * element_bytes()));
      right.push_back(moved(s, r_.rank, back * element_bytes()));
      if (sizes == nullptr) continue;
      call_.counts.push_back(there);
      call_.receive_counts.push_back(back);
    }
    const Memory in(joined(sent));
    const Memory out(joined(right).size());
    call_.input.data = in.data();
    call_.output.data = out.data();
    finish({&in, &out});
    expect(out, joined(right));
    expect(in, joined(sent));
  }

  const Call& call() const { return call_; }

 private:
  std::size_t element_bytes() const { return size_of(case_.dtype); }
  std::size_t count_of(int rank) const {
    return case_.counts.empty() ? case_.count : case_.counts[static_cast<std::size_t>(rank)];
  }
  std::size_t bytes_of(int rank) const { return count_of(rank) * element_bytes(); }
  std::size_t before(int rank) const {
    std::size_t elements = 0;
    for (int s = 0; s < rank; ++s) elements += count_of(s);
    return elements;
  }
  std::size_t total() const { return before(r_.ranks); }

  // The parts of one array, each in memory of its own.
  std::vector<std::unique_ptr<Memory>> apart(const Bytes& whole) const {
    std::vector<std::unique_ptr<Memory>> list;
    for (int s = 0; s < r_.ranks; ++s) {
      const auto at = whole.begin() + static_cast<std::ptrdiff_t>(before(s) * element_bytes());
      list.push_back(
          std::make_unique<Memory>(Bytes(at, at + static_cast<std::ptrdiff_t>(bytes_of(s)))));
    }
    return list;
  }

  void set_side(Buffer& side, const Memory& whole,
                const std::vector<std::unique_ptr<Memory>>& list) const {
    side.data = whole.data();
    for (std::size_t s = 0; s < list.size(); ++s)
      side.blocks.emplace_back(list[s]->data(), bytes_of(static_cast<int>(s)));
  }

  void start(Collective collective) { call_.collective = collective; }

  void finish(std::initializer_list<const Memory*> buffers) const {
    const auto work = r_.communicator->enqueue(call_, r_.stream);
    CHECK(work->wait());
    CHECK(work->completed());
    CHECK(!work->error());
    for (const Memory* buffer : buffers) {
      if (!buffer->intact()) FAIL(name() + ": written outside of the buffer");
    }
  }

  void expect(const Memory& memory, const Bytes& right) const {
    if (memory.read() != right) FAIL(name() + ": wrong data");
    if (!memory.intact()) FAIL(name() + ": written outside of the buffer");
  }
  void expect_bytes(const void* at, const Bytes& right) const {
    const auto* bytes = static_cast<const std::byte*>(at);
    if (!std::equal(right.begin(), right.end(), bytes)) FAIL(name() + ": wrong data");
  }

  std::string name() const {
    return std::string(name_of(call_.collective)) + " of " + std::to_string(case_.count) + " " +
           std::string(name_of(case_.dtype)) + " " + std::string(name_of(case_.op)) +
           (case_.in_place ? " in place" : "") + (case_.counts.empty() ? "" : " uneven") +
           (case_.blocks ? " blocks" : "") + " root " + std::to_string(case_.root) + " rank " +
           std::to_string(r_.rank) + "/" + std::to_string(r_.ranks);
  }

  const DeviceRank& r_;
  const Case case_;
  Call call_;
};

Counts awkward_counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  Counts counts = {0, 1, n - 1, n, n + 1, 257};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

template <class Body>
void for_all_sizes(Body body) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) run_devices(ranks, device_options(), body);
}

template <class Body>
void for_all_dtypes(Body body) {
  for (int d = 0; d < kDTypeCount; ++d) body(static_cast<DType>(d));
}

TEST(device_reductions) {
  for_all_sizes([](const DeviceRank& r) {
    for_all_dtypes([&](DType dtype) {
      for (const ReduceOp op : kOps) {
        if (!nccl_has(op, dtype)) continue;
        for (const std::size_t count : awkward_counts(r.ranks)) {
          for (const bool in_place : {false, true}) {
            const Case what{.dtype = dtype,
                            .op = op,
                            .count = count,
                            .in_place = in_place,
                            .root = static_cast<int>(count) % r.ranks};
            Run(r, what).all_reduce();
            Run(r, what).reduce();
            Run(r, what).reduce_scatter();
          }
        }
      }
    });
  });
}

TEST(device_movements) {
  for_all_sizes([](const DeviceRank& r) {
    for_all_dtypes([&](DType dtype) {
      for (const std::size_t count : awkward_counts(r.ranks)) {
        for (const bool in_place : {false, true}) {
          const Case what{.dtype = dtype,
                          .count = count,
                          .in_place = in_place,
                          .root = static_cast<int>(count) % r.ranks};
          Run(r, what).broadcast();
          Run(r, what).gather(Collective::kAllGather);
          Run(r, what).gather(Collective::kGather);
          Run(r, what).scatter();
          if (!in_place) Run(r, what).all_to_all();
        }
      }
    });
  });
}

TEST(device_uneven_counts_and_blocks) {
  for_all_sizes([](const DeviceRank& r) {
    Counts counts = {3, 0, 5, 1};
    counts.resize(static_cast<std::size_t>(r.ranks));
    for (const DType dtype : {DType::kFloat32, DType::kComplex64, DType::kBool, DType::kUint8}) {
      for (int root = 0; root < r.ranks; ++root) {
        for (const bool uneven : {false, true}) {
          for (const auto& [in_place, blocks] :
               {std::pair{false, false}, {true, false}, {false, true}}) {
            const Case what{.dtype = dtype,
                            .count = uneven ? 0U : 2U,
                            .in_place = in_place,
                            .counts = uneven ? counts : Counts{},
                            .blocks = blocks,
                            .root = root};
            Run(r, what).reduce_scatter();
            Run(r, what).gather(Collective::kAllGather);
            Run(r, what).gather(Collective::kGather);
            Run(r, what).scatter();
          }
        }
      }
      Run(r, {.dtype = dtype}).all_to_all([](int from, int to) {
        return static_cast<std::size_t>((from * 2 + to * 3) % 4);
      });
    }
  });
}

// Two bytes move as bytes, but cannot be summed: the sentence names type and operation, nothing was
// started, and the communicator lives on.
TEST(device_refuses_what_nccl_cannot_reduce) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{64});
    for_all_dtypes([&](DType dtype) {
      for (const ReduceOp op : kOps) {
        if (nccl_has(op, dtype)) continue;
        Call call = all_reduce_of(memory);
        call.dtype = dtype;
        call.op = op;
        CHECK_THROWS(InvalidArgument, std::string(name_of(dtype)),
                     r.communicator->enqueue(call, r.stream));
        CHECK_THROWS(InvalidArgument, std::string(name_of(op)),
                     r.communicator->enqueue(call, r.stream));
        CHECK_THROWS(InvalidArgument, std::string(name_of(dtype)),
                     r.communicator->enqueue_group({all_reduce_of(memory), call}, r.stream));
      }
    });
    CHECK_EQ(r.communicator->statistics().nccl_calls, 0U);
    Run(r, {.count = 5}).all_reduce();
    Call call = all_reduce_of(memory);
    call.op = ReduceOp::kPremulSum;
    call.factor = 0.5;
    CHECK_THROWS(InvalidArgument, "whole numbers", r.communicator->enqueue(call, r.stream));
    call = all_reduce_of(memory);
    call.output.data = nullptr;
    CHECK_THROWS(InvalidArgument, "output is null", r.communicator->enqueue(call, r.stream));
    call = message_of(Collective::kRecv, memory, kAnySource);
    CHECK_THROWS(InvalidArgument, "any source", r.communicator->enqueue(call, r.stream));
    CHECK_THROWS(InvalidArgument, "empty", r.communicator->enqueue_group({}, r.stream));
    call = all_reduce_of(memory);
    call.forced.algorithm = "ring";
    CHECK_THROWS(InvalidArgument, "'ring' cannot be forced",
                 r.communicator->enqueue(call, r.stream));
    call.forced.algorithm = "direct";
    CHECK_THROWS(InvalidArgument, "'direct'", r.communicator->enqueue(call, r.stream));
    Run(r, {.count = 5}).all_reduce();
  });
}

TEST(device_scaled_sums_leave_no_operation_behind) {
  const auto held = [] {
    return fake_nccl_calls("ncclRedOpCreatePreMulSum") - fake_nccl_calls("ncclRedOpDestroy");
  };
  const long before = held();
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Case what{.op = ReduceOp::kPremulSum, .count = 3};
    Run(r, what).all_reduce();
    Run(r, what).reduce_scatter();
    const Memory memory(std::size_t{4});
    fake_nccl_fail_next_here("ncclAllReduce", nccl::kInvalidUsage);
    Call call = all_reduce_of(memory);
    call.op = ReduceOp::kPremulSum;
    CHECK_THROWS(SystemError, "invalid usage", r.communicator->enqueue(call, r.stream));
  });
  CHECK_EQ(held(), before);
}

TEST(device_messages_cross_in_groups) {
  for_all_sizes([](const DeviceRank& r) {
    std::vector<std::unique_ptr<Memory>> sent;
    std::vector<std::unique_ptr<Memory>> received;
    std::vector<Call> calls;
    for (int peer = 0; peer < r.ranks; ++peer) {
      sent.push_back(std::make_unique<Memory>(moved(r.rank, peer, 12)));
      received.push_back(std::make_unique<Memory>(std::size_t{12}));
      calls.push_back(message_of(Collective::kSend, *sent.back(), peer, 3));
      calls.push_back(message_of(Collective::kRecv, *received.back(), peer, 3));
    }
    std::rotate(calls.begin(), calls.begin() + r.rank, calls.end());
    CHECK(r.communicator->enqueue_group(calls, r.stream)->wait());
    for (int peer = 0; peer < r.ranks; ++peer)
      CHECK(received[static_cast<std::size_t>(peer)]->read() == moved(peer, r.rank, 12));
    CHECK_EQ(r.communicator->statistics().enqueued, calls.size());
    CHECK_EQ(r.communicator->statistics().nccl_calls, calls.size());
  });
}

TEST(device_messages_of_a_pair_match_in_order) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    for (int i = 0; i < 20; ++i) {
      const bool sends = (i + r.rank) % 2 == 0;
      if (sends) *memory.as<int>() = 100 * i;
      const auto kind = sends ? Collective::kSend : Collective::kRecv;
      CHECK(r.communicator->enqueue(message_of(kind, memory, 1 - r.rank), r.stream)->wait());
      CHECK_EQ(*memory.as<int>(), 100 * i);
    }
  });
}

TEST(device_group_of_collectives) {
  run_devices(3, device_options(), [](const DeviceRank& r) {
    const Memory a(std::size_t{4});
    const Memory b(std::size_t{4});
    *a.as<int>() = 1;
    *b.as<int>() = r.rank;
    const auto work = r.communicator->enqueue_group({all_reduce_of(a), all_reduce_of(b)}, r.stream);
    CHECK(work->wait());
    CHECK_EQ(*a.as<int>(), 3);
    CHECK_EQ(*b.as<int>(), 3);
    CHECK_EQ(r.communicator->statistics().completed, 2U);
  });
}

// One rank takes the same path as many: each call is one of NCCL's.
TEST(device_calls_reach_nccl_also_with_one_rank) {
  for (int ranks = 1; ranks <= 2; ++ranks) {
    const DeviceOptions options = device_options();
    run_devices(ranks, options, [&](const DeviceRank& r) {
      Run(r, {.count = 4}).all_reduce();
      Run(r, {.count = 4}).reduce();
      Run(r, {.count = 4}).reduce_scatter();
      Run(r, {.count = 4}).broadcast();
      Run(r, {.count = 4}).gather(Collective::kAllGather);
      Call barrier;
      barrier.collective = Collective::kBarrier;
      CHECK(r.communicator->enqueue(barrier, r.stream)->wait());
      const DeviceStatistics statistics = r.communicator->statistics();
      CHECK_EQ(statistics.enqueued, 6U);
      CHECK_EQ(statistics.completed, 6U);
      CHECK_EQ(statistics.nccl_calls, 6U);
      CHECK_EQ(statistics.kernel_launches, 0U);
      const std::string log = log_of(options.name, r.rank);
      CHECK_EQ(std::count(log.begin(), log.end(), '\n'), 6);
      CHECK(log.find("ncclReduceScatter count=4 type=int32 op=sum") != std::string::npos);
    });
  }
}

}  // namespace
}  // namespace accl::test
