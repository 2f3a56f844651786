// The contract of the CPU engine: every collective x algorithm x protocol x dtype x awkward count x
// ranks, in place and out of place, with ranks as threads. What really ran is counted and held
// against the schedule.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "contract/elements.h"
#include "contract/ranks.h"
#include "harness/test.h"

namespace accl::test {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr std::size_t kGuardBytes = 64;

// A buffer between two guards, that knows whether it was written outside.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes, kGuard) {}
  std::byte* data() { return memory_.data() + kGuardBytes; }
  bool intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, is_guard) &&
           std::all_of(memory_.end() - kGuardBytes, memory_.end(), is_guard);
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

// One way to run a call.
struct Way {
  std::string algorithm;
  std::string protocol;
  std::size_t chunk_bytes = 0;
  bool in_place = false;
  bool background = false;
};

std::string name_of_case(const Communicator& c, const Call& call, const Way& way) {
  return std::string(name_of(call.collective)) + "/" + way.algorithm + "/" + way.protocol + "/" +
         std::to_string(way.chunk_bytes) + (way.in_place ? "/in" : "/out") + " " +
         std::string(name_of(call.dtype)) + " " + std::string(name_of(call.op)) + " count " +
         std::to_string(call.count) + " root " + std::to_string(call.root) + " rank " +
         std::to_string(c.rank()) + "/" + std::to_string(c.size());
}

Call call_of(Collective collective, DType dtype, ReduceOp op, std::size_t count, const Way& way) {
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  call.factor = 2.0;
  call.forced = {way.algorithm, way.protocol, 0, way.chunk_bytes};
  call.background = way.background;
  return call;
}

// Runs the call and holds what the executor counted against the algorithm's schedule.
void run(Communicator& c, const Call& call, const Way& way, const std::string& what) {
  const auto work = c.post(call);
  CHECK(work->wait());
  const WorkReport report = work->report();
  CHECK_EQ(report.algorithm, way.algorithm);
  PlanRequest request;
  request.collective = call.collective;
  request.rank = c.rank();
  request.ranks = c.size();
  request.root = call.root;
  request.element_bytes = size_of(call.dtype);
  request.block_bytes = call.count * request.element_bytes;
  request.chunk_bytes = report.chunk_bytes;
  for (const auto n : call.counts) request.blocks.push_back(n * request.element_bytes);
  for (const auto n : call.receive_counts)
    request.receive_blocks.push_back(n * request.element_bytes);
  if (!call.counts.empty()) request.block_bytes = 0;
  if (!(report.traffic == plan(report.algorithm, request).traffic())) {
    FAIL(what + ": the executor's traffic is not the schedule's");
  }
}

std::vector<std::byte> reduced_input(DType dtype, ReduceOp op, int rank, int ranks,
                                     std::size_t count, std::size_t first = 0) {
  std::vector<std::byte> data(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    encode(data.data() + i * size_of(dtype), dtype, element(op, rank, ranks, first + i));
  }
  return data;
}

std::vector<std::byte> reduced_result(DType dtype, ReduceOp op, int ranks, std::size_t count,
                                      std::size_t first = 0) {
  std::vector<std::byte> data(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    encode(data.data() + i * size_of(dtype), dtype,
           expected_element(op, dtype, ranks, first + i, 2.0));
  }
  return data;
}

bool same(const std::byte* a, const std::vector<std::byte>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size()) == 0;
}

void expect(bool good, const std::string& what) {
  if (!good) FAIL(what + ": wrong result");
}

void test_all_reduce(Communicator& c, DType dtype, ReduceOp op, std::size_t count, const Way& way) {
  Call call = call_of(Collective::kAllReduce, dtype, op, count, way);
  const std::string what = name_of_case(c, call, way);
  const auto input = reduced_input(dtype, op, c.rank(), c.size(), count);
  Guarded in(input.size());
  Guarded out(input.size());
  std::copy(input.begin(), input.end(), in.data());
  call.input.data = in.data();
  call.output.data = way.in_place ? in.data() : out.data();
  run(c, call, way, what);
  expect(
      same(static_cast<std::byte*>(call.output.data), reduced_result(dtype, op, c.size(), count)),
      what);
  expect(in.intact() && out.intact(), what + " (guards)");
  if (!way.in_place) expect(same(in.data(), input), what + " (input)");
}

void test_reduce(Communicator& c, DType dtype, ReduceOp op, std::size_t count, const Way& way,
                 int root) {
  Call call = call_of(Collective::kReduce, dtype, op, count, way);
  call.root = root;
  const std::string what = name_of_case(c, call, way);
  const auto input = reduced_input(dtype, op, c.rank(), c.size(), count);
  Guarded in(input.size());
  Guarded out(input.size());
  std::copy(input.begin(), input.end(), in.data());
  const bool is_root = c.rank() == root;
  call.input.data = in.data();
  if (is_root) call.output.data = way.in_place ? in.data() : out.data();
  run(c, call, way, what);
  if (is_root)
    expect(
        same(static_cast<std::byte*>(call.output.data), reduced_result(dtype, op, c.size(), count)),
        what);
  if (!is_root || !way.in_place) expect(same(in.data(), input), what + " (input)");
  expect(in.intact() && out.intact(), what + " (guards)");
}

void test_reduce_scatter(Communicator& c, DType dtype, ReduceOp op, std::size_t count,
                         const Way& way, const std::vector<std::size_t>& counts = {}) {
  Call call = call_of(Collective::kReduceScatter, dtype, op, count, way);
  call.counts = counts;
  const std::string what = name_of_case(c, call, way);
  const std::vector<std::size_t> all =
      counts.empty() ? std::vector<std::size_t>(static_cast<std::size_t>(c.size()), count) : counts;
  const std::size_t first = std::accumulate(all.begin(), all.begin() + c.rank(), std::size_t{0});
  const std::size_t own = all[static_cast<std::size_t>(c.rank())];
  const std::size_t total = std::accumulate(all.begin(), all.end(), std::size_t{0});
  const auto input = reduced_input(dtype, op, c.rank(), c.size(), total);
  Guarded in(input.size());
  Guarded out(own * size_of(dtype));
  std::copy(input.begin(), input.end(), in.data());
  call.input.data = in.data();
  call.output.data = way.in_place ? in.data() + first * size_of(dtype) : out.data();
  run(c, call, way, what);
  expect(same(static_cast<std::byte*>(call.output.data),
              reduced_result(dtype, op, c.size(), own, first)),
         what);
  expect(in.intact() && out.intact(), what + " (guards)");
  if (!way.in_place) expect(same(in.data(), input), what + " (input)");
}

std::vector<std::byte> moved(int from, int to, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(from, to, i);
  return data;
}

void test_broadcast(Communicator& c, DType dtype, std::size_t count, const Way& way, int root) {
  Call call = call_of(Collective::kBroadcast, dtype, ReduceOp::kSum, count, way);
  call.root = root;
  const std::string what = name_of_case(c, call, way);
  const auto data = moved(root, 0, count * size_of(dtype));
  Guarded in(data.size());
  Guarded out(data.size());
  const bool is_root = c.rank() == root;
  if (is_root) std::copy(data.begin(), data.end(), in.data());
  call.input.data = in.data();
  call.output.data = way.in_place ? in.data() : out.data();
  run(c, call, way, what);
  expect(same(static_cast<std::byte*>(call.output.data), data), what);
  expect(in.intact() && out.intact(), what + " (guards)");
}

// all_gather and gather; `counts` of elements, or `count` everywhere. `blocks`: output as a list of
// buffers.
void test_gathering(Communicator& c, Collective collective, DType dtype, std::size_t count,
                    const Way& way, int root, const std::vector<std::size_t>& counts = {},
                    bool blocks = false) {
  Call call = call_of(collective, dtype, ReduceOp::kSum, count, way);
  call.root = root;
  call.counts = counts;
  const std::string what = name_of_case(c, call, way);
  const bool is_root = collective == Collective::kAllGather || c.rank() == root;
  std::vector<std::size_t> bytes;
  for (int r = 0; r < c.size(); ++r) {
    bytes.push_back((counts.empty() ? count : counts[static_cast<std::size_t>(r)]) *
                    size_of(dtype));
  }
  const std::size_t own = bytes[static_cast<std::size_t>(c.rank())];
  const std::size_t total = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  const std::size_t before =
      std::accumulate(bytes.begin(), bytes.begin() + c.rank(), std::size_t{0});
  const auto input = moved(c.rank(), 0, own);
  Guarded in(own);
  Guarded out(total);
  std::vector<Guarded> list;
  for (const std::size_t b : bytes) list.emplace_back(b);
  std::byte* source = way.in_place && is_root && !blocks ? out.data() + before : in.data();
  std::copy(input.begin(), input.end(), source);
  call.input.data = source;
  if (is_root) {
    call.output.data = out.data();
    if (blocks) {
      for (std::size_t r = 0; r < bytes.size(); ++r)
        call.output.blocks.emplace_back(list[r].data(), bytes[r]);
    }
  }
  run(c, call, way, what);
  expect(in.intact() && out.intact(), what + " (guards)");
  if (!is_root) return;
  std::byte* at = out.data();
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    const auto right = moved(static_cast<int>(r), 0, bytes[r]);
    expect(same(blocks ? list[r].data() : at, right), what);
    expect(list[r].intact(), what + " (guards)");
    at += bytes[r];
  }
}

void test_scatter(Communicator& c, DType dtype, std::size_t count, const Way& way, int root,
                  const std::vector<std::size_t>& counts = {}) {
  Call call = call_of(Collective::kScatter, dtype, ReduceOp::kSum, count, way);
  call.root = root;
  call.counts = counts;
  const std::string what = name_of_case(c, call, way);
  std::vector<std::byte> all;
  std::size_t before = 0;
  std::size_t own = 0;
  for (int r = 0; r < c.size(); ++r) {
    const std::size_t bytes =
        (counts.empty() ? count : counts[static_cast<std::size_t>(r)]) * size_of(dtype);
    if (r < c.rank()) before += bytes;
    if (r == c.rank()) own = bytes;
    const auto part = moved(root, r, bytes);
    all.insert(all.end(), part.begin(), part.end());
  }
  Guarded in(all.size());
  Guarded out(own);
  const bool is_root = c.rank() == root;
  if (is_root) {
    std::copy(all.begin(), all.end(), in.data());
    call.input.data = in.data();
  }
  call.output.data = is_root && way.in_place ? in.data() + before : out.data();
  run(c, call, way, what);
  expect(same(static_cast<std::byte*>(call.output.data), moved(root, c.rank(), own)), what);
  expect(in.intact() && out.intact(), what + " (guards)");
}

// `sizes(from, to)` gives elements.
template <class Sizes>
void test_all_to_all(Communicator& c, DType dtype, std::optional<std::size_t> count, const Way& way,
                     Sizes sizes) {
  Call call = call_of(Collective::kAllToAll, dtype, ReduceOp::kSum, count.value_or(0), way);
  std::vector<std::byte> send;
  std::vector<std::byte> right;
  for (int r = 0; r < c.size(); ++r) {
    const auto out = moved(c.rank(), r, sizes(c.rank(), r) * size_of(dtype));
    send.insert(send.end(), out.begin(), out.end());
    const auto in = moved(r, c.rank(), sizes(r, c.rank()) * size_of(dtype));
    right.insert(right.end(), in.begin(), in.end());
    if (count) continue;
    call.counts.push_back(sizes(c.rank(), r));
    call.receive_counts.push_back(sizes(r, c.rank()));
  }
  const std::string what = name_of_case(c, call, way);
  Guarded out(right.size());
  call.input.data = send.data();
  call.output.data = out.data();
  const auto sent = send;
  run(c, call, way, what);
  expect(same(out.data(), right), what);
  expect(out.intact(), what + " (guards)");
  expect(send == sent, what + " (input)");
}

std::vector<std::size_t> awkward_counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> counts = {0, 1, n - 1, n, n + 1, 1000, 65537};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

template <class Function>
void for_each_way(Collective collective, bool can_be_in_place, Function function) {
  for (const Algorithm& algorithm : algorithms(collective)) {
    for (const char* protocol : {"inline", "bulk"}) {
      for (const std::size_t chunk : {std::size_t{0}, std::size_t{192}, std::size_t{4096}}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !can_be_in_place) continue;
          function(algorithm,
                   Way{std::string(algorithm.name), protocol, chunk, in_place, chunk == 4096});
        }
      }
    }
  }
}

template <class Function>
void for_each_dtype(Function function) {
  for (int d = 0; d < kDTypeCount; ++d) function(static_cast<DType>(d));
}

const std::vector<int> kRanks = {1, 2, 3, 4, 5, 8};

// The whole cross product of dtypes and operations at small counts; the large count for one dtype a
// size.
bool worth_it(DType dtype, ReduceOp op, std::size_t count, const Way& way) {
  if (count < 1000) return way.chunk_bytes != 4096 || op == ReduceOp::kSum;
  if (op != ReduceOp::kSum) return false;
  if (count < 65537) return way.chunk_bytes != 192 || size_of(dtype) == 4;
  return dtype == DType::kFloat32 || (dtype == DType::kBfloat16 && way.chunk_bytes == 0);
}

template <class Function>
void for_each_reduction(Communicator& c, Collective collective, Function function) {
  for_each_way(collective, true, [&](const Algorithm&, const Way& way) {
    for_each_dtype([&](DType dtype) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        const auto op = static_cast<ReduceOp>(o);
        if (!supports(op, dtype)) continue;
        for (const std::size_t count : awkward_counts(c.size())) {
          if (worth_it(dtype, op, count, way)) function(way, dtype, op, count);
        }
      }
    });
  });
}

template <class Function>
void for_each_move(Communicator& c, Collective collective, bool in_place, Function function) {
  for_each_way(collective, in_place, [&](const Algorithm& algorithm, const Way& way) {
    for_each_dtype([&](DType dtype) {
      for (const std::size_t count : awkward_counts(c.size())) {
        if (count > 1000 && dtype != DType::kFloat32) continue;
        function(algorithm, way, dtype, count);
      }
    });
  });
}

template <class Function>
void for_all_ranks(Function function) {
  for (const int ranks : kRanks) run_ranks(ranks, function);
}

std::vector<std::size_t> uneven_counts(int ranks, std::size_t seed) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r)
    counts.push_back((static_cast<std::size_t>(r) * 5 + seed * 3) % 4 * (seed + 1));
  return counts;
}

TEST(all_reduce_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_reduction(c, Collective::kAllReduce,
                       [&](const Way& way, DType dtype, ReduceOp op, std::size_t count) {
                         test_all_reduce(c, dtype, op, count, way);
                       });
  });
}

TEST(reduce_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_reduction(c, Collective::kReduce,
                       [&](const Way& way, DType dtype, ReduceOp op, std::size_t count) {
                         test_reduce(c, dtype, op, count, way, static_cast<int>(count) % c.size());
                       });
  });
}

TEST(reduce_scatter_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_reduction(c, Collective::kReduceScatter,
                       [&](const Way& way, DType dtype, ReduceOp op, std::size_t count) {
                         if (count <= 1000 || c.size() <= 4)
                           test_reduce_scatter(c, dtype, op, count, way);
                       });
    for_each_way(Collective::kReduceScatter, true, [&](const Algorithm& algorithm, const Way& way) {
      if (!algorithm.uneven) return;
      for (std::size_t seed = 0; seed < 4; ++seed) {
        test_reduce_scatter(c, DType::kFloat32, ReduceOp::kSum, 0, way,
                            uneven_counts(c.size(), seed * 31));
        test_reduce_scatter(c, DType::kBfloat16, ReduceOp::kAvg, 0, way,
                            uneven_counts(c.size(), seed));
        test_reduce_scatter(c, DType::kInt64, ReduceOp::kPremulSum, 0, way,
                            uneven_counts(c.size(), seed));
      }
    });
  });
}

TEST(broadcast_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_move(c, Collective::kBroadcast, true,
                  [&](const Algorithm&, const Way& way, DType dtype, std::size_t count) {
                    for (int root = 0; root < c.size(); ++root) {
                      if (count <= 1000 || root < 2) test_broadcast(c, dtype, count, way, root);
                    }
                  });
  });
}

TEST(all_gather_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_move(c, Collective::kAllGather, true,
                  [&](const Algorithm& algorithm, const Way& way, DType dtype, std::size_t count) {
                    test_gathering(c, Collective::kAllGather, dtype, count, way, 0);
                    if (count > 1000 || dtype != DType::kFloat32) return;
                    test_gathering(c, Collective::kAllGather, dtype, count, way, 0, {}, true);
                    if (!algorithm.uneven) return;
                    test_gathering(c, Collective::kAllGather, dtype, 0, way, 0,
                                   uneven_counts(c.size(), count % 97));
                    test_gathering(c, Collective::kAllGather, dtype, 0, way, 0,
                                   uneven_counts(c.size(), count % 97), true);
                  });
  });
}

TEST(gather_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_move(c, Collective::kGather, true,
                  [&](const Algorithm& algorithm, const Way& way, DType dtype, std::size_t count) {
                    const int root = static_cast<int>(count) % c.size();
                    test_gathering(c, Collective::kGather, dtype, count, way, root);
                    if (count > 1000 || dtype != DType::kInt16) return;
                    test_gathering(c, Collective::kGather, dtype, count, way, root, {}, true);
                    if (algorithm.uneven)
                      test_gathering(c, Collective::kGather, dtype, 0, way, root,
                                     uneven_counts(c.size(), count % 97), true);
                  });
  });
}

TEST(scatter_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_move(c, Collective::kScatter, true,
                  [&](const Algorithm& algorithm, const Way& way, DType dtype, std::size_t count) {
                    const int root = static_cast<int>(count) % c.size();
                    test_scatter(c, dtype, count, way, root);
                    if (count <= 1000 && algorithm.uneven)
                      test_scatter(c, dtype, 0, way, root, uneven_counts(c.size(), count % 97));
                  });
  });
}

TEST(all_to_all_is_right_in_every_way) {
  for_all_ranks([](Communicator& c) {
    for_each_move(c, Collective::kAllToAll, false,
                  [&](const Algorithm& algorithm, const Way& way, DType dtype, std::size_t count) {
                    if (count > 1000 && c.size() > 4) return;
                    test_all_to_all(c, dtype, count, way, [&](int, int) { return count; });
                    if (count > 1000 || !algorithm.uneven) return;
                    test_all_to_all(c, dtype, std::nullopt, way, [&](int from, int to) {
                      return static_cast<std::size_t>((from * 3 + to * 5) % 4) * (count + 1) / 2;
                    });
                  });
  });
}

TEST(barrier_holds_everybody) {
  for (const int ranks : kRanks) {
    std::atomic<int> arrived{0};
    run_ranks(ranks, [&](Communicator& c) {
      for (int round = 1; round <= 50; ++round) {
        ++arrived;
        Call call;
        call.collective = Collective::kBarrier;
        CHECK(c.post(call)->wait());
        CHECK(arrived.load() >= round * ranks);
      }
    });
  }
}

}  // namespace
}  // namespace accl::test
