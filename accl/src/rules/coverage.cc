#include "rules/coverage.h"

#include <algorithm>
#include <map>

#include "rules/words.h"

namespace accl::rules {

namespace {

using Candidates = std::vector<const Rule*>;

// An earlier rule that names a number cannot help to cover a later one that takes any: there is
// always another number. So only what holds for all of the later rule's numbers counts.
bool holds_for_all(int earlier, int later) noexcept { return earlier == -1 || earlier == later; }

bool is_full(const Rule& rule) noexcept {
  return rule.min_bytes == 0 && rule.max_bytes == kAnyBytes;
}

bool overlaps(const Rule& a, const Rule& b) noexcept {
  return a.min_bytes <= b.max_bytes && b.min_bytes <= a.max_bytes;
}

// All that may take part, widest reach first.
Candidates candidates_for(const Rule& rule, std::span<const Rule> earlier) {
  // Nodes are the exception: with a given number of ranks they do have an end.
  const auto may_hold_for_nodes = [&](const Rule& e) {
    return holds_for_all(e.nodes, rule.nodes) ||
           (rule.nodes == -1 && rule.ranks != -1 && e.nodes <= rule.ranks);
  };
  const bool uneven_too = is_full(rule) && may_be_uneven(rule.engine, rule.collective);
  Candidates found;
  for (const Rule& e : earlier) {
    if (e.engine != rule.engine || e.collective != rule.collective) continue;
    if (!holds_for_all(e.ranks, rule.ranks) || !holds_for_all(e.pipe_ops, rule.pipe_ops)) continue;
    if (may_hold_for_nodes(e) && (uneven_too ? is_full(e) : overlaps(e, rule))) found.push_back(&e);
  }
  return found;
}

// The lines of those among `rules` whose ranges of bytes together hold that of `rule`; empty if
// they do not.
std::vector<int> cover_bytes(const Rule& rule, Candidates rules) {
  std::ranges::stable_sort(rules, {}, [](const Rule* r) { return r->min_bytes; });
  std::vector<int> lines;
  std::uint64_t next = rule.min_bytes;  // the first byte that is not covered yet
  for (auto at = rules.begin(); at != rules.end();) {
    const Rule* furthest = nullptr;
    for (; at != rules.end() && (*at)->min_bytes <= next; ++at) {
      if (furthest == nullptr || (*at)->max_bytes > furthest->max_bytes) furthest = *at;
    }
    if (furthest == nullptr || furthest->max_bytes < next) return {};
    lines.push_back(furthest->line);
    if (furthest->max_bytes >= rule.max_bytes) return lines;
    next = furthest->max_bytes + 1;
  }
  return {};
}

// Covers a rule for `rule.ranks` ranks and any number of nodes by rules that may name a number of
// nodes.
std::vector<int> cover_nodes(const Rule& rule, const Candidates& general,
                             const Candidates& particular) {
  std::map<int, Candidates> by_nodes;
  for (const Rule* e : particular) by_nodes[e->nodes].push_back(e);
  if (by_nodes.size() < static_cast<std::size_t>(rule.ranks))
    return {};  // some number is named by none
  std::vector<int> lines;
  for (auto& [nodes, rules] : by_nodes) {
    rules.insert(rules.end(), general.begin(), general.end());
    const auto part = cover_bytes(rule, rules);
    if (part.empty()) return {};
    lines.insert(lines.end(), part.begin(), part.end());
  }
  return lines;
}

}  // namespace

std::vector<int> covering_lines(const Rule& rule, std::span<const Rule> earlier) {
  const Candidates candidates = candidates_for(rule, earlier);
  Candidates general;
  Candidates particular;
  for (const Rule* e : candidates)
    (holds_for_all(e->nodes, rule.nodes) ? general : particular).push_back(e);
  for (const Rule* e : general) {
    if (e->min_bytes <= rule.min_bytes && e->max_bytes >= rule.max_bytes) return {e->line};
  }
  auto lines = cover_bytes(rule, general);
  if (lines.empty() && !particular.empty()) lines = cover_nodes(rule, general, particular);
  std::ranges::sort(lines);
  lines.erase(std::ranges::unique(lines).begin(), lines.end());
  return lines;
}

}  // namespace accl::rules
