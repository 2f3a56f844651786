// Schedules: every algorithm gives the right result on every rank, in place and out of place, in
// whatever order the ranks run; what it moves is what docs/algorithms.md says.
#include "accl/schedule.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "accl/error.h"
#include "harness/test.h"
#include "schedule/parts.h"
#include "unit/schedule_simulator.h"

namespace accl::test {
namespace {

using C = Collective;

const std::vector<int> kRanks = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};

bool is_rooted(C collective) {
  return collective == C::kBroadcast || collective == C::kReduce || collective == C::kGather ||
         collective == C::kScatter;
}

bool can_be_in_place(C collective) {
  return collective != C::kAllToAll && collective != C::kBarrier;
}

std::vector<Algorithm> all_algorithms() {
  std::vector<Algorithm> rows;
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto of_collective = algorithms(static_cast<C>(c));
    rows.insert(rows.end(), of_collective.begin(), of_collective.end());
  }
  return rows;
}

std::set<std::size_t> awkward_counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 1000};
}

// --- What docs/algorithms.md says, written down a second time
// --------------------------------------------

std::uint64_t part(std::uint64_t segment, int ranks, int index, std::uint64_t element) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto i = static_cast<std::uint64_t>((index % ranks + ranks) % ranks);
  std::uint64_t step = (segment / element + n - 1) / n * element;
  if (segment >= 64 * n) step = (step + 63) / 64 * 64;
  const std::uint64_t begin = std::min(i * step, segment);
  return std::min(step, segment - begin);
}

std::uint64_t some(std::uint64_t bytes) { return bytes != 0 ? 1 : 0; }
std::uint64_t up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// What the formulas are made of: the request with the chunk filled in, and names as in the
// document.
struct Given {
  const Case& call;
  int r;
  int n = call.ranks;
  std::uint64_t e = call.element_bytes;
  std::uint64_t c = call.chunk_bytes;
  std::uint64_t S = call.count * e;  // bytes of an even block
  std::uint64_t pieces = up(S, c);

  std::uint64_t others() const { return static_cast<std::uint64_t>(n - 1); }
  std::uint64_t b(int row, int index) const { return call.block(row, index) * e; }
  std::uint64_t b(int index) const { return b(0, index); }

  // The sum of `one(segment)` over the segments of at most `parts` chunks.
  Traffic over_segments(int parts, const std::function<Traffic(std::uint64_t)>& one) const {
    Traffic sum;
    const std::uint64_t longest = static_cast<std::uint64_t>(parts) * c;
    for (std::uint64_t at = 0; at < S; at += longest) {
      const Traffic t = one(std::min(longest, S - at));
      sum.messages_sent += t.messages_sent;
      sum.bytes_sent += t.bytes_sent;
      sum.messages_received += t.messages_received;
      sum.bytes_received += t.bytes_received;
      sum.bytes_reduced += t.bytes_reduced;
    }
    return sum;
  }
};

Traffic all_reduce_direct(const Given& g) {
  const std::uint64_t m = g.others() * some(g.S);
  return {m, g.others() * g.S, m, g.others() * g.S, g.others() * g.S};
}

Traffic all_reduce_two_shot(const Given& g) {
  return g.over_segments(g.n, [&](std::uint64_t s) {
    const std::uint64_t own = part(s, g.n, g.r, g.e);
    std::uint64_t m = g.others() * some(own);
    for (int i = 0; i < g.n; ++i) m += i == g.r ? 0 : some(part(s, g.n, i, g.e));
    const std::uint64_t bytes = (s - own) + g.others() * own;
    return Traffic{m, bytes, m, bytes, g.others() * own};
  });
}

Traffic all_reduce_ring(const Given& g) {
  return g.over_segments(g.n, [&](std::uint64_t s) {
    const auto p = [&](int index) { return part(s, g.n, index, g.e); };
    std::uint64_t parts = 0;
    for (int i = 0; i < g.n; ++i) parts += some(p(i));
    const int r = g.r;
    return Traffic{2 * parts - some(p(r + 1)) - some(p(r + 2)), 2 * s - p(r + 1) - p(r + 2),
                   2 * parts - some(p(r)) - some(p(r + 1)), 2 * s - p(r) - p(r + 1), s - p(r)};
  });
}

Traffic all_reduce_halving_doubling(const Given& g) {
  return g.over_segments(2, [&](std::uint64_t s) {
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(g.n)));
    const int surplus = g.n - power;
    const bool paired = g.r < 2 * surplus;
    if (paired && g.r % 2 == 1) return Traffic{1, s, 1, s, 0};
    const int index = paired ? g.r / 2 : g.r - surplus;
    const auto group = [&](int of, int size) {
      std::uint64_t bytes = 0;
      for (int i = of / size * size; i < of / size * size + size; ++i) {
        bytes += part(s, power, i, g.e);
      }
      return bytes;
    };
    Traffic t;
    for (int size = 1; size < power; size *= 2) {
      const std::uint64_t kept = group(index, size);
      const std::uint64_t given = group(index ^ size, size);
      t.messages_sent += some(kept) + some(given);
      t.bytes_sent += kept + given;
      t.bytes_reduced += kept;
    }
    if (paired) {
      t.messages_sent += 1;
      t.bytes_sent += s;
      t.bytes_reduced += s;
    }
    t.messages_received = t.messages_sent;
    t.bytes_received = t.bytes_sent;
    return t;
  });
}

Traffic all_gather_direct(const Given& g) {
  Traffic t{g.others() * some(g.b(g.r)), g.others() * g.b(g.r), 0, 0, 0};
  for (int i = 0; i < g.n; ++i) {
    t.messages_received += i == g.r ? 0 : some(g.b(i));
    t.bytes_received += i == g.r ? 0 : g.b(i);
  }
  return t;
}

Traffic all_gather_ring(const Given& g) {
  const std::uint64_t m = g.others() * g.pieces;
  return {m, g.others() * g.S, m, g.others() * g.S, 0};
}

Traffic reduce_scatter_direct(const Given& g) {
  const Traffic t = all_gather_direct(g);  // the same blocks, the other way round
  return {t.messages_received, t.bytes_received, t.messages_sent, t.bytes_sent, t.bytes_sent};
}

Traffic reduce_scatter_ring(const Given& g) {
  Traffic t = all_gather_ring(g);
  t.bytes_reduced = t.bytes_received;
  return t;
}

Traffic broadcast_direct(const Given& g) {
  if (g.r == g.call.root) return {g.others() * some(g.S), g.others() * g.S, 0, 0, 0};
  return {0, 0, some(g.S), g.S, 0};
}

Traffic broadcast_ring(const Given& g) {
  const int position = (g.r - g.call.root + g.n) % g.n;
  Traffic t;
  if (position != g.n - 1) t.messages_sent = g.pieces, t.bytes_sent = g.S;
  if (position != 0) t.messages_received = g.pieces, t.bytes_received = g.S;
  return t;
}

Traffic broadcast_two_shot(const Given& g) {
  const int holders = g.n - 1;
  const int index = (g.r - g.call.root + g.n) % g.n - 1;  // -1: the root
  return g.over_segments(holders, [&](std::uint64_t s) {
    std::uint64_t parts = 0;
    for (int i = 0; i < holders; ++i) parts += some(part(s, holders, i, g.e));
    if (index < 0) return Traffic{parts, s, 0, 0, 0};
    const std::uint64_t own = part(s, holders, index, g.e);
    const std::uint64_t peers = g.others() - 1;
    return Traffic{peers * some(own), peers * own, parts, s, 0};
  });
}

// Children in the binomial tree below position p: as many powers of two below its lowest set bit as
// fit.
std::uint64_t children(const Given& g) {
  const int position = (g.r - g.call.root + g.n) % g.n;
  std::uint64_t count = 0;
  for (int bit = 1; (position & bit) == 0 && position + bit < g.n; bit *= 2) ++count;
  return count;
}

Traffic broadcast_tree(const Given& g) {
  const std::uint64_t parents = g.r == g.call.root ? 0 : 1;
  return {children(g) * g.pieces, children(g) * g.S, parents * g.pieces, parents * g.S, 0};
}

Traffic reduce_direct(const Given& g) {
  if (g.r == g.call.root) {
    return {0, 0, g.others() * some(g.S), g.others() * g.S, g.others() * g.S};
  }
  return {some(g.S), g.S, 0, 0, 0};
}

Traffic reduce_tree(const Given& g) {
  const Traffic t = broadcast_tree(g);  // the same edges, the other way round
  return {t.messages_received, t.bytes_received, t.messages_sent, t.bytes_sent, t.bytes_sent};
}

Traffic all_to_all(const Given& g) {
  Traffic t;
  for (int i = 0; i < g.n; ++i) {
    if (i == g.r) continue;
    t.messages_sent += some(g.b(g.r, i));
    t.bytes_sent += g.b(g.r, i);
    t.messages_received += some(g.b(i, g.r));
    t.bytes_received += g.b(i, g.r);
  }
  return t;
}

Traffic gather_direct(const Given& g) {
  if (g.r != g.call.root) return {some(g.b(g.r)), g.b(g.r), 0, 0, 0};
  Traffic t = all_gather_direct(g);
  t.messages_sent = t.bytes_sent = 0;
  return t;
}

Traffic scatter_direct(const Given& g) {
  const Traffic t = gather_direct(g);
  return {t.messages_received, t.bytes_received, t.messages_sent, t.bytes_sent, 0};
}

Traffic barrier_dissemination(const Given& g) {
  const auto m = static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(g.n - 1)));
  return {m, 0, m, 0, 0};
}

std::uint64_t log_up(int n) {
  return static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(n - 1)));
}

// One row an algorithm, as in the table of docs/algorithms.md. Rounds (the most of any rank) and
// bytes that all ranks send together are given for n > 1 ranks and S = k * n * c bytes a block.
struct Row {
  C collective;
  std::string_view name;
  Traffic (*traffic)(const Given&);
  std::uint64_t (*rounds)(int n, std::uint64_t k);
  std::uint64_t (*sent_by_all)(std::uint64_t n, std::uint64_t S);
  std::uint64_t longest_chunks;  // no message is longer than so many chunks; 0: as long as the call
};

using U = std::uint64_t;
U one_round(int, U) { return 1; }
U pieces_of(int n, U k) { return static_cast<U>(n) * k; }
U both_ways(U n, U S) { return 2 * (n - 1) * S; }
U to_everybody(U n, U S) { return n * (n - 1) * S; }
U once_each(U n, U S) { return (n - 1) * S; }

const std::vector<Row> kRows = {
    {C::kAllReduce, "direct", all_reduce_direct, one_round, to_everybody, 0},
    {C::kAllReduce, "two_shot", all_reduce_two_shot, [](int, U k) { return 2 * k; }, both_ways, 1},
    {C::kAllReduce, "ring", all_reduce_ring,
     [](int n, U k) { return 2 * static_cast<U>(n - 1) * k; }, both_ways, 1},
    {C::kAllReduce, "halving_doubling", all_reduce_halving_doubling,
     [](int n, U k) {
       const auto levels = static_cast<U>(std::bit_width(static_cast<unsigned>(n)) - 1);
       const U fold = std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 2;
       return (2 * levels + fold) * up(static_cast<U>(n) * k, 2);
     },
     both_ways, 2},
    {C::kAllGather, "direct", all_gather_direct, one_round, to_everybody, 0},
    {C::kAllGather, "ring", all_gather_ring,
     [](int n, U k) { return static_cast<U>(n - 1) * pieces_of(n, k); }, to_everybody, 1},
    {C::kReduceScatter, "direct", reduce_scatter_direct, one_round, to_everybody, 0},
    {C::kReduceScatter, "ring", reduce_scatter_ring,
     [](int n, U k) { return static_cast<U>(n - 1) * pieces_of(n, k); }, to_everybody, 1},
    {C::kBroadcast, "direct", broadcast_direct, one_round, once_each, 0},
    {C::kBroadcast, "ring", broadcast_ring,
     [](int n, U k) { return pieces_of(n, k) + (n > 2 ? 1 : 0); }, once_each, 1},
    {C::kBroadcast, "two_shot", broadcast_two_shot,
     [](int n, U k) { return (n > 2 ? 2 : 1) * up(pieces_of(n, k), static_cast<U>(n - 1)); },
     once_each, 1},
    {C::kBroadcast, "tree", broadcast_tree,
     [](int n, U k) { return (n > 3 ? 2 : 1) * pieces_of(n, k); }, once_each, 1},
    {C::kReduce, "direct", reduce_direct, one_round, once_each, 0},
    {C::kReduce, "tree", reduce_tree, [](int n, U k) { return (n > 3 ? 2 : 1) * pieces_of(n, k); },
     once_each, 1},
    {C::kAllToAll, "direct", all_to_all, one_round, to_everybody, 0},
    {C::kAllToAll, "pairwise", all_to_all, [](int n, U) { return static_cast<U>(n - 1); },
     to_everybody, 0},
    {C::kGather, "direct", gather_direct, one_round, once_each, 0},
    {C::kScatter, "direct", scatter_direct, one_round, once_each, 0},
    {C::kBarrier, "dissemination", barrier_dissemination, [](int n, U) { return log_up(n); },
     [](U, U) -> U { return 0; }, 0},
};

const Row& row_of(const Algorithm& algorithm) {
  for (const Row& row : kRows) {
    if (row.collective == algorithm.collective && row.name == algorithm.name) return row;
  }
  FAIL("no row in the test for " + std::string(name_of(algorithm.collective)) + "/" +
       std::string(algorithm.name));
}

std::uint64_t longest_message(const Schedule& schedule) {
  std::uint64_t longest = 0;
  for (const Loop& loop : schedule.loops) {
    for (const Round& round : loop.rounds) {
      for (const Send& s : round.sends) longest = std::max<std::uint64_t>(longest, s.bytes);
    }
  }
  return longest;
}

void check_against_document(const Row& row, const Case& c) {
  for (int rank = 0; rank < c.ranks; ++rank) {
    const Schedule schedule = plan(c.algorithm, c.request(rank));
    const Traffic expected = c.ranks == 1 ? Traffic{} : row.traffic(Given{c, rank});
    if (!(schedule.traffic() == expected)) {
      FAIL(c.name() + ": rank " + std::to_string(rank) + ": the traffic is not the documented one");
    }
    if (row.longest_chunks != 0 && longest_message(schedule) > row.longest_chunks * c.chunk_bytes) {
      FAIL(c.name() + ": a message is longer than documented");
    }
  }
}

// --- Walking the cases
// -----------------------------------------------------------------------------------

template <class Function>
void for_each_even_case(const Algorithm& algorithm, int ranks, Function function) {
  Case c{algorithm.collective, std::string(algorithm.name), ranks, 0, 0, 1, 64, false, {}};
  for (const std::size_t count : awkward_counts(ranks)) {
    for (const std::size_t element_bytes : {1, 2, 4, 8, 16}) {
      for (const std::size_t chunk_bytes : {64, 192, 65536}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !can_be_in_place(c.collective)) continue;
          c.count = c.collective == C::kBarrier ? 0 : count;
          c.element_bytes = element_bytes;
          c.chunk_bytes = chunk_bytes;
          c.in_place = in_place;
          function(c);
        }
      }
    }
  }
}

// The whole grid for a few roots; for the other roots the counts that fit into memory soon.
template <class Function>
void for_each_root(Case c, Function function) {
  const int roots = is_rooted(c.collective) ? c.ranks : 1;
  for (c.root = 0; c.root < roots; ++c.root) {
    const bool is_small = c.count <= static_cast<std::size_t>(c.ranks) + 1;
    const bool is_odd = c.element_bytes == 4 && c.chunk_bytes == 192;
    if (c.root < 2 || c.root == roots - 1 || is_small || is_odd) function(c);
  }
}

std::vector<std::size_t> random_counts(std::mt19937& random, int ranks) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(random() % 3 == 0 ? 0 : random() % 70);
  return counts;
}

Case random_uneven_case(const Algorithm& algorithm, int ranks, std::mt19937& random) {
  Case c{algorithm.collective, std::string(algorithm.name), ranks, 0, 0, 1, 64, false, {}};
  c.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  c.element_bytes = std::size_t{1} << random() % 5;
  c.chunk_bytes = 64 * (1 + random() % 3);
  c.in_place = can_be_in_place(c.collective) && random() % 2 == 0;
  const int lists = c.is_all_to_all() ? ranks : 1;
  for (int i = 0; i < lists; ++i) c.counts.push_back(random_counts(random, ranks));
  return c;
}

TEST(every_algorithm_is_right_for_every_awkward_case) {
  for (const Algorithm& algorithm : all_algorithms()) {
    const Row& row = row_of(algorithm);
    for (const int ranks : kRanks) {
      for_each_even_case(algorithm, ranks, [&](const Case& even) {
        for_each_root(even, [&](const Case& c) {
          const bool descends = (c.root + ranks) % 2 == 1;
          simulate(c, {descends ? Pace::Order::kDescending : Pace::Order::kAscending});
          check_against_document(row, c);
        });
      });
    }
  }
}

TEST(algorithms_take_uneven_blocks) {
  std::mt19937 random(20250101);
  for (const Algorithm& algorithm : all_algorithms()) {
    if (!algorithm.uneven) continue;
    for (const int ranks : kRanks) {
      for (int i = 0; i < 60; ++i) {
        const Case c = random_uneven_case(algorithm, ranks, random);
        simulate(c, {i % 2 == 0 ? Pace::Order::kAscending : Pace::Order::kDescending});
        simulate(c, {Pace::Order::kRandom, 5, 3, static_cast<std::uint32_t>(random())});
        check_against_document(row_of(algorithm), c);
      }
    }
  }
}

// Data goes in small pieces through narrow channels while ranks run in random order: what a send
// has yet to read must not be written, and nobody may wait for ever.
TEST(pieces_in_any_order_give_the_same_result) {
  std::uint32_t seed = 1;
  for (const Algorithm& algorithm : all_algorithms()) {
    for (const int ranks : {2, 3, 4, 5, 7, 8}) {
      for (const std::size_t count : {1, ranks + 1, 37, 150}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !can_be_in_place(algorithm.collective)) continue;
          Case c{algorithm.collective,
                 std::string(algorithm.name),
                 ranks,
                 0,
                 count,
                 4,
                 64,
                 in_place,
                 {}};
          if (c.collective == C::kBarrier) c.count = 0;
          if (is_rooted(c.collective)) c.root = static_cast<int>(count) % ranks;
          simulate(c, {Pace::Order::kRandom, 1, 1, seed});
          simulate(c, {Pace::Order::kRandom, 6, 4, seed++});
          simulate(c, {Pace::Order::kRandom, SIZE_MAX, SIZE_MAX, seed++});
        }
      }
    }
  }
}

TEST(rounds_and_totals_are_as_documented) {
  for (const Algorithm& algorithm : all_algorithms()) {
    const Row& row = row_of(algorithm);
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 64}) {
      for (const std::uint64_t k : {1, 2, 5}) {
        const std::size_t chunk = 4096;
        const std::uint64_t bytes =
            algorithm.collective == C::kBarrier ? 0 : k * static_cast<U>(ranks) * chunk;
        const Case c{algorithm.collective,
                     std::string(algorithm.name),
                     ranks,
                     0,
                     bytes / 4,
                     4,
                     chunk,
                     false,
                     {}};
        std::uint64_t rounds = 0;
        std::uint64_t sent = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Schedule schedule = plan(c.algorithm, c.request(rank));
          rounds = std::max(rounds, schedule.rounds());
          sent += schedule.traffic().bytes_sent;
        }
        if (rounds != row.rounds(ranks, k)) {
          FAIL(c.name() + ": " + std::to_string(rounds) + " rounds, expected " +
               std::to_string(row.rounds(ranks, k)));
        }
        CHECK_EQ(sent, row.sent_by_all(static_cast<U>(ranks), bytes));
      }
    }
  }
}

TEST(a_plan_does_not_grow_with_the_bytes) {
  for (const Algorithm& algorithm : all_algorithms()) {
    for (const int ranks : {2, 7, 64}) {
      PlanRequest request;
      request.collective = algorithm.collective;
      request.ranks = ranks;
      request.rank = ranks - 1;
      request.block_bytes = (std::size_t{1} << 40) + 16;
      request.element_bytes = 16;
      request.chunk_bytes = 64;
      const Schedule schedule = plan(algorithm.name, request);
      std::size_t planned = 0;
      for (const Loop& loop : schedule.loops) planned += loop.rounds.size();
      CHECK(planned <= 4 * static_cast<std::size_t>(ranks));
      CHECK(schedule.scratch_bytes <= 128);
    }
  }
}

TEST(parts_share_out_a_buffer) {
  using schedule::part_of;
  for (const int parts : {1, 2, 3, 7, 16}) {
    for (const std::size_t element : {1, 2, 4, 8, 16}) {
      for (const std::size_t elements : {0, 1, 5, 16, 17, 63, 64, 1000, 4096}) {
        const schedule::Span whole{128, elements * element};
        const bool in_lines = whole.bytes >= static_cast<std::size_t>(parts) * 64;
        std::size_t at = whole.offset;
        for (int i = 0; i < parts; ++i) {
          const auto p = part_of(whole, parts, i, element);
          CHECK_EQ(p.offset, at);
          CHECK_EQ(p.bytes % element, 0u);
          CHECK(p.bytes <= part_of(whole, parts, 0, element).bytes);
          if (in_lines && p.bytes != 0) CHECK_EQ(p.offset % 64, 0u);
          at += p.bytes;
        }
        CHECK_EQ(at, whole.offset + whole.bytes);
      }
    }
  }
}

// --- The registry and what plan() refuses
// ----------------------------------------------------------------

TEST(the_registry_knows_its_rows) {
  std::set<std::string> seen;
  for (const Algorithm& row : all_algorithms()) {
    CHECK(seen.insert(std::string(name_of(row.collective)) + "/" + std::string(row.name)).second);
    CHECK(find_algorithm(row.collective, row.name) != nullptr);
    CHECK(!row.summary.empty());
    CHECK(row.plan != nullptr);
    CHECK(row.default_chunk_bytes != 0 && row.default_chunk_bytes % 64 == 0);
  }
  CHECK_EQ(seen.size(), kRows.size());
  CHECK(algorithms(C::kSend).empty());
  CHECK(algorithms(C::kRecv).empty());
  CHECK(find_algorithm(C::kAllReduce, "Ring") == nullptr);
  CHECK(find_algorithm(C::kBarrier, "ring") == nullptr);
}

TEST(partial_sums_travel_only_where_the_row_says_so) {
  for (const Algorithm& row : all_algorithms()) {
    bool travels = false;
    for (int rank = 0; rank < 8; ++rank) {
      const Case c{row.collective, std::string(row.name), 8, 0, 1000, 4, 64, false, {}};
      for (const Loop& loop : plan(row.name, c.request(rank)).loops) {
        for (const Round& round : loop.rounds) {
          for (const Reduce& reduce : round.reduces) travels |= !reduce.last;
        }
      }
    }
    CHECK_EQ(travels, row.multi_hop);
  }
}

TEST(the_default_chunk_is_the_rows) {
  for (const Algorithm& row : all_algorithms()) {
    Case c{row.collective, std::string(row.name), 4, 0, 1 << 20, 4, 0, false, {}};
    CHECK_EQ(plan(row.name, c.request(1)).piece_bytes, row.default_chunk_bytes);
    c.chunk_bytes = 4096;
    CHECK_EQ(plan(row.name, c.request(1)).piece_bytes, 4096u);
  }
}

TEST(every_algorithm_is_in_the_document) {
  std::ifstream file(ACCL_CONTRACTS "/../../docs/algorithms.md");
  CHECK(file.good());
  std::multiset<std::string> found;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("### ")) found.insert(line);
    if (const std::size_t end = line.find(" |", line.find(" |") + 1);
        line.starts_with("| ") && end != std::string::npos) {
      found.insert(line.substr(0, end + 2));
    }
  }
  std::set<std::string> sections;
  for (const Algorithm& row : all_algorithms()) {
    const std::string collective(name_of(row.collective));
    const std::string name(row.name);
    for (const std::string& line :
         {"| " + collective + " | " + name + " |", "### " + collective + ": " + name}) {
      if (found.count(line) != 1) FAIL("docs/algorithms.md needs one line '" + line + "'");
      sections.insert(line);
    }
  }
  for (const std::string& line : found) {
    if (line.starts_with("### ") && !sections.contains(line)) {
      FAIL("docs/algorithms.md describes what does not exist: '" + line + "'");
    }
  }
}

PlanRequest good_request() {
  PlanRequest request;
  request.ranks = 4;
  request.rank = 2;
  request.block_bytes = 4096;
  request.element_bytes = 4;
  return request;
}

// What plan() makes of a good request after `change`.
template <class Change>
Schedule changed(std::string_view algorithm, Change change) {
  PlanRequest request = good_request();
  change(request);
  return plan(algorithm, request);
}

TEST(plan_refuses_what_cannot_be) {
  const auto refused = [](const char* words, auto change) {
    CHECK_THROWS(InvalidArgument, words, changed("ring", change));
  };
  CHECK_EQ(changed("ring", [](PlanRequest&) {}).loops.size(), 1u);
  refused("ranks is 0, expected at least 1", [](PlanRequest& r) { r.ranks = 0; });
  refused("rank is 4, expected 0 to 3", [](PlanRequest& r) { r.rank = 4; });
  refused("rank is -1, expected 0 to 3", [](PlanRequest& r) { r.rank = -1; });
  refused("root is 4, expected 0 to 3", [](PlanRequest& r) { r.root = 4; });
  refused("root is -1, expected 0 to 3", [](PlanRequest& r) { r.root = -1; });
  refused("element_bytes is 3", [](PlanRequest& r) { r.element_bytes = 3; });
  refused("element_bytes is 0", [](PlanRequest& r) { r.element_bytes = 0; });
  refused("block_bytes 4098", [](PlanRequest& r) { r.block_bytes = 4098; });
  refused("block_bytes is", [](PlanRequest& r) { r.block_bytes = std::size_t{1} << 62; });
  refused("chunk_bytes is 100, expected a multiple of 64",
          [](PlanRequest& r) { r.chunk_bytes = 100; });
  refused("chunk_bytes is 32", [](PlanRequest& r) { r.chunk_bytes = 32; });
  // So large that ranks * chunk_bytes would wrap round.
  refused("up to 1073741824", [](PlanRequest& r) { r.chunk_bytes = std::size_t{1} << 63; });
  refused("up to 1073741824", [](PlanRequest& r) { r.chunk_bytes = (1u << 30) + 64; });
  CHECK_THROWS(InvalidArgument, "expected one of: two_shot, direct, ring, halving_doubling",
               changed("rings", [](PlanRequest&) {}));
  CHECK_THROWS(InvalidArgument, "send and recv are not planned",
               changed("direct", [](PlanRequest& r) { r.collective = C::kSend; }));
}

TEST(plan_refuses_bad_uneven_blocks) {
  const auto refused = [](std::string_view algorithm, C collective, const char* words,
                          std::vector<std::size_t> blocks,
                          std::vector<std::size_t> receive_blocks) {
    CHECK_THROWS(InvalidArgument, words, changed(algorithm, [&](PlanRequest& r) {
                   r.collective = collective;
                   r.blocks = blocks;
                   r.receive_blocks = receive_blocks;
                 }));
  };
  const std::vector<std::size_t> good = {4, 8, 0, 12};
  refused("ring", C::kAllReduce, "algorithm 'ring' of all_reduce does not take uneven blocks", good,
          {});
  refused("ring", C::kAllGather, "does not take uneven blocks", good, {});
  refused("direct", C::kAllGather, "3 blocks and 0 receive_blocks for 4 ranks", {4, 8, 0}, {});
  refused("direct", C::kAllGather, "4 blocks and 4 receive_blocks", good, good);
  refused("direct", C::kAllToAll, "4 blocks and 0 receive_blocks", good, {});
  refused("pairwise", C::kAllToAll, "0 blocks and 4 receive_blocks", {}, good);
  refused("direct", C::kScatter, "a block of 6 bytes splits an element of 4", {4, 8, 6, 12}, {});
  refused("direct", C::kAllToAll, "rank 2 sends 0 bytes to itself but receives 4", good,
          {4, 8, 4, 12});
  const std::size_t huge = std::size_t{1} << 62;
  refused("direct", C::kGather, "the blocks together", {huge, huge, 0, 0}, {});
}

}  // namespace
}  // namespace accl::test
