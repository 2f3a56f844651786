#include "plugin/cost_table.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace accl::plugin {

namespace {

constexpr std::array<std::string_view, 7> kAlgorithms = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};
constexpr std::array<Collective, kNcclFunctions> kCollectives = {
    Collective::kBroadcast, Collective::kReduce, Collective::kAllGather, Collective::kReduceScatter,
    Collective::kAllReduce};

int index_of(std::span<const std::string_view> words, std::string_view word) noexcept {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return static_cast<int>(i);
  }
  return -1;
}

// Whatever is no time, NCCL's -1 first of all, is not to be chosen.
bool legal(float cost) noexcept { return std::isfinite(cost) && cost >= 0; }

// The wanted part of a table: a run of algorithms by a run of protocols.
struct Block {
  int first_algorithm, end_algorithm, first_protocol, end_protocol;

  template <class Visit>
  void each(const CostTable& table, Visit visit) const noexcept {
    for (int a = first_algorithm; a < end_algorithm; ++a) {
      for (int p = first_protocol; p < end_protocol; ++p) {
        if (legal(table.at(a, p))) visit(table.at(a, p));
      }
    }
  }
};

// The least legal cost above `floor`; infinity where there is none.
float next_cost(const CostTable& table, const Block& block, float floor) noexcept {
  float next = std::numeric_limits<float>::infinity();
  block.each(table, [&](float cost) {
    if (cost > floor && cost < next) next = cost;
  });
  return next;
}

// A table as large as this holds every NCCL's several times over; more entries are not told apart.
constexpr std::size_t kMostCosts = 64;

}  // namespace

int algorithm_index(std::string_view word) noexcept { return index_of(kAlgorithms, word); }
int protocol_index(std::string_view word) noexcept { return index_of(kProtocols, word); }

bool collective_of(int function, Collective& collective) noexcept {
  if (function < 0 || function >= kNcclFunctions) return false;
  collective = kCollectives[static_cast<std::size_t>(function)];
  return true;
}

int function_of(Collective collective) noexcept {
  for (std::size_t i = 0; i < kCollectives.size(); ++i) {
    if (kCollectives[i] == collective) return static_cast<int>(i);
  }
  return -1;
}

float& CostTable::at(int algorithm, int protocol) const noexcept {
  return entries[static_cast<std::size_t>(algorithm) * static_cast<std::size_t>(protocols) +
                 static_cast<std::size_t>(protocol)];
}

int prefer(const CostTable& table, int algorithm, int protocol) noexcept {
  if (!table.usable() || algorithm >= table.algorithms || protocol >= table.protocols) return 0;
  const Block block{algorithm < 0 ? 0 : algorithm, algorithm < 0 ? table.algorithms : algorithm + 1,
                    protocol < 0 ? 0 : protocol, protocol < 0 ? table.protocols : protocol + 1};
  std::array<float, kMostCosts> costs{};
  std::size_t different = 0;
  for (float cost = next_cost(table, block, -1); std::isfinite(cost) && different < costs.size();
       cost = next_cost(table, block, cost)) {
    costs[different++] = cost;
  }
  int written = 0;
  block.each(table, [&](float& cost) {
    std::size_t place = 0;
    while (place < different && costs[place] < cost) ++place;
    cost = static_cast<float>(place) * std::numeric_limits<float>::min();
    ++written;
  });
  return written;
}

}  // namespace accl::plugin
