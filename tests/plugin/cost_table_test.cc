// The pure half: how a choice is written into NCCL's table.
#include "plugin/cost_table.h"

#include <array>
#include <cmath>
#include <limits>

#include "harness/test.h"

using namespace accl;
using namespace accl::plugin;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Flat = std::array<float, 21>;  // float[7][3]

Flat costs() {
  Flat flat{};
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = 10.0F + static_cast<float>(i);
  return flat;
}

CostTable view(Flat& flat) { return {flat.data(), 7, 3}; }

// The scan by which NCCL chooses: the first least entry that is not negative.
int chosen(const Flat& flat) {
  int best = -1;
  float least = 3.6e9F;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    if (flat[i] >= 0 && flat[i] < least) {
      least = flat[i];
      best = static_cast<int>(i);
    }
  }
  return best;
}

}  // namespace

TEST(one_entry_becomes_zero_and_no_other_changes) {
  for (int a = 0; a < 7; ++a) {
    for (int p = 0; p < 3; ++p) {
      Flat flat = costs();
      Flat wanted = flat;
      wanted[static_cast<std::size_t>(a * 3 + p)] = 0.0F;
      CHECK_EQ(prefer(view(flat), a, p), 1);
      CHECK(flat == wanted);
      CHECK_EQ(chosen(flat), a * 3 + p);
    }
  }
}

TEST(an_ignored_entry_leaves_the_table_alone) {
  for (const float cost : {-1.0F, -0.5F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Flat flat = costs();
    flat[4] = cost;
    Flat before = flat;
    CHECK_EQ(prefer(view(flat), kNcclRing, kNcclLl128), 0);
    for (std::size_t i = 0; i < flat.size(); ++i) CHECK(i == 4 || flat[i] == before[i]);
    CHECK(!(flat[4] == 0.0F));
  }
}

TEST(an_algorithm_with_any_protocol_keeps_their_order) {
  Flat flat = costs();
  flat[3] = 30.0F;  // ring ll
  flat[4] = 7.0F;   // ring ll128
  flat[5] = 12.0F;  // ring simple
  CHECK_EQ(prefer(view(flat), kNcclRing, -1), 3);
  CHECK_EQ(chosen(flat), 4);
  CHECK_EQ(flat[4], 0.0F);
  CHECK(flat[4] < flat[5] && flat[5] < flat[3]);
  for (std::size_t i = 0; i < flat.size(); ++i) {
    if (i < 3 || i > 5) CHECK_EQ(flat[i], 10.0F + static_cast<float>(i));
    if (i < 3 || i > 5) CHECK(flat[3] < flat[i]);
  }
}

TEST(equal_costs_stay_equal_and_ignored_ones_ignored) {
  Flat flat = costs();
  flat[3] = 5.0F;
  flat[4] = -1.0F;
  flat[5] = 5.0F;
  CHECK_EQ(prefer(view(flat), kNcclRing, -1), 2);
  CHECK_EQ(flat[3], 0.0F);
  CHECK_EQ(flat[4], -1.0F);
  CHECK_EQ(flat[5], 0.0F);
  CHECK_EQ(chosen(flat), 3);
}

TEST(costs_that_differ_by_one_bit_keep_their_order) {
  Flat flat = costs();
  flat[3] = std::nextafter(1e8F, 2e8F);
  flat[4] = 1e8F;
  flat[5] = std::numeric_limits<float>::max();
  CHECK_EQ(prefer(view(flat), kNcclRing, -1), 3);
  CHECK(flat[4] < flat[3] && flat[3] < flat[5]);
  CHECK_EQ(chosen(flat), 4);
}

TEST(a_protocol_with_any_algorithm_keeps_their_order) {
  Flat flat = costs();
  flat[2] = 50.0F;  // tree simple
  flat[5] = 40.0F;  // ring simple
  for (const std::size_t i : {8UL, 11UL, 14UL, 17UL, 20UL}) flat[i] = -1.0F;
  CHECK_EQ(prefer(view(flat), -1, kNcclSimple), 2);
  CHECK_EQ(chosen(flat), 5);
  CHECK(flat[5] < flat[2]);
  for (const std::size_t i : {8UL, 11UL, 14UL, 17UL, 20UL}) CHECK_EQ(flat[i], -1.0F);
}

TEST(tables_of_other_sizes_are_kept_to) {
  std::array<float, 12> guarded{};
  guarded.fill(9.0F);
  CHECK_EQ(prefer({guarded.data(), 2, 3}, kNcclPat, kNcclSimple), 0);
  CHECK_EQ(prefer({guarded.data(), 2, 2}, kNcclRing, kNcclSimple), 0);
  CHECK_EQ(prefer({guarded.data(), 2, 2}, kNcclRing, -1), 2);
  for (std::size_t i = 0; i < guarded.size(); ++i) {
    CHECK_EQ(guarded[i], i == 2 || i == 3 ? 0.0F : 9.0F);  // the stride is the table's own
  }
  CHECK_EQ(prefer({nullptr, 7, 3}, kNcclRing, kNcclLl), 0);
  CHECK_EQ(prefer({guarded.data(), 0, 3}, -1, kNcclLl), 0);
  CHECK_EQ(prefer({guarded.data(), 7, -3}, kNcclRing, -1), 0);
}

TEST(a_larger_table_keeps_what_is_cheapest_first) {
  std::array<float, 300> large{};  // more entries than are told apart
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = 1000.0F - static_cast<float>(i);
  CHECK_EQ(prefer({large.data(), 100, 3}, -1, -1), 300);
  CHECK_EQ(large[299], 0.0F);
  for (std::size_t i = 1; i < large.size(); ++i) CHECK(large[i] <= large[i - 1]);
}

TEST(words_and_functions_have_the_numbers_of_nccl) {
  CHECK_EQ(algorithm_index("tree"), 0);
  CHECK_EQ(algorithm_index("ring"), 1);
  CHECK_EQ(algorithm_index("collnet_direct"), 2);
  CHECK_EQ(algorithm_index("collnet_chain"), 3);
  CHECK_EQ(algorithm_index("nvls"), 4);
  CHECK_EQ(algorithm_index("nvls_tree"), 5);
  CHECK_EQ(algorithm_index("pat"), 6);
  CHECK_EQ(algorithm_index(""), -1);
  CHECK_EQ(protocol_index("ll"), 0);
  CHECK_EQ(protocol_index("ll128"), 1);
  CHECK_EQ(protocol_index("simple"), 2);
  Collective collective{};
  for (const auto& [function, wanted] : {std::pair{0, Collective::kBroadcast},
                                         {1, Collective::kReduce},
                                         {2, Collective::kAllGather},
                                         {3, Collective::kReduceScatter},
                                         {4, Collective::kAllReduce}}) {
    CHECK(collective_of(function, collective));
    CHECK(collective == wanted);
    CHECK_EQ(function_of(wanted), function);
  }
  CHECK(!collective_of(-1, collective));
  CHECK(!collective_of(5, collective));
  CHECK_EQ(function_of(Collective::kAllToAll), -1);
}
