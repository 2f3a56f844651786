#include "accl/rules.h"

#include <array>
#include <cstdio>

#include "base/text.h"

namespace accl {

namespace {

bool equal_or_any(int wanted, int given) noexcept { return wanted == -1 || wanted == given; }

std::string_view word_or_any(const std::string& word) noexcept {
  return word.empty() ? std::string_view("-1") : std::string_view(word);
}

template <class Number>
std::string number_or_any(Number value, Number any) {
  return value == any ? "-1" : std::to_string(value);
}

}  // namespace

bool Rule::matches(const RulesQuery& query) const noexcept {
  if (engine != query.engine || collective != query.collective) return false;
  // Uneven sizes differ between ranks: only what holds for every size is sure to hold on every
  // rank.
  const bool size_matches = query.uneven ? min_bytes == 0 && max_bytes == kAnyBytes
                                         : min_bytes <= query.bytes && query.bytes <= max_bytes;
  return size_matches && equal_or_any(nodes, query.nodes) && equal_or_any(ranks, query.ranks) &&
         equal_or_any(pipe_ops, query.pipe_ops);
}

const Rule* Rules::match(const RulesQuery& query) const noexcept {
  for (const Rule& rule : rows_) {
    if (rule.matches(query)) return &rule;
  }
  return nullptr;
}

// The fewest columns that say it: a row of NCCL's own ten can go to NCCL's own plugin.
std::string Rules::format(const Rule& rule) {
  const Choice& choice = rule.choice;
  std::string text =
      concat(rules_name_of(rule.collective), ",", rule.min_bytes, ",",
             number_or_any(rule.max_bytes, kAnyBytes), ",", word_or_any(choice.algorithm), ",",
             word_or_any(choice.protocol), ",", number_or_any(choice.channels, 0), ",",
             number_or_any(rule.nodes, -1), ",", number_or_any(rule.ranks, -1), ",",
             number_or_any(rule.pipe_ops, -1), ",-1");
  const bool has_chunk = choice.chunk_bytes != 0;
  if (rule.engine != Engine::kNccl || has_chunk) text += concat(",", name_of(rule.engine));
  if (has_chunk) text += concat(",", choice.chunk_bytes);
  return text;
}

// FNV-1a over the canonical rows in their order, each with a newline.
std::string Rules::digest() const {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Rule& rule : rows_) {
    for (const char c : format(rule) + '\n') {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    }
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

}  // namespace accl
