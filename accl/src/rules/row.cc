#include "rules/row.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include "accl/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "rules/words.h"

namespace accl::rules {

namespace {

enum Column : std::size_t {
  kCollectiveType,
  kMinBytes,
  kMaxBytes,
  kAlgorithm,
  kProtocol,
  kChannels,
  kNodes,
  kRanks,
  kPipeOps,
  kRegBuff,
  kEngine,
  kChunkBytes,
};
constexpr std::array<std::string_view, 12> kColumns = {
    "collective_type", "min_bytes", "max_bytes",  "algorithm", "protocol", "channels",
    "nNodes",          "nRanks",    "numPipeOps", "regBuff",   "engine",   "chunk_bytes"};
constexpr std::size_t kLeastColumns = 10;
constexpr std::string_view kAny = "-1";
constexpr std::string_view kOwnChoice = "-1 (the engine's own choice)";

// As a message shows it: short, and without the one control character that a line may hold.
std::string quote(std::string_view value) {
  constexpr std::size_t kMost = 60;
  std::size_t length = 0;
  while (length < value.size() && length < kMost) length += utf8_length(value, length);
  std::string text = concat("'", value.substr(0, length), length < value.size() ? "...'" : "'");
  std::ranges::replace(text, '\t', ' ');
  return text;
}

template <class Words>
std::string join(const Words& words, std::string_view between = ", ") {
  std::string text;
  for (const auto& word : words) text += concat(text.empty() ? "" : between, word);
  return text;
}

bool is_digits(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// nullopt where the digits are more than 64 bits hold.
std::optional<std::uint64_t> to_number(std::string_view digits) noexcept {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// For "64K" a sentence that spells it in bytes; nothing for what is no such size.
std::string suffix_hint(std::string_view value) {
  const std::size_t digits = std::min(value.find_first_not_of("0123456789"), value.size());
  const std::string_view suffix = value.substr(digits);
  if (digits == 0 || suffix.empty()) return {};
  const std::size_t power = std::string_view("kmgtKMGT").find(suffix[0]) % 4 + 1;
  const std::string_view rest = suffix.substr(1);
  if (std::string_view("kmgtKMGT").find(suffix[0]) == std::string_view::npos ||
      !(rest.empty() || rest == "B" || rest == "iB" || rest == "b")) {
    return {};
  }
  const auto number = to_number(value.substr(0, digits));
  const std::size_t shift = power * 10;
  if (!number || *number > (std::numeric_limits<std::uint64_t>::max() >> shift)) return {};
  return concat(" Sizes have no suffix here: write ", *number << shift, ".");
}

class RowParser {
 public:
  RowParser(std::string_view line, const Where& where) : where_(where) { split(line); }

  Rule parse() const {
    Rule rule;
    rule.line = where_.line;
    rule.engine = read_engine();
    rule.collective = read_collective(rule.engine);
    rule.min_bytes = read_min_bytes();
    rule.max_bytes = read_max_bytes();
    check_range(rule);
    rule.choice.algorithm = read_algorithm(rule);
    rule.choice.protocol = read_protocol(rule);
    rule.choice.channels = read_channels(rule);
    rule.nodes = read_count(kNodes, "the number of hosts");
    rule.ranks = read_count(kRanks, "the number of ranks");
    check_shape(rule);
    rule.pipe_ops = read_pipe_ops(rule);
    check_reg_buff();
    rule.choice.chunk_bytes = read_chunk(rule);
    return rule;
  }

 private:
  std::string_view field(Column column) const noexcept { return fields_[column]; }

  [[noreturn]] void fail(Column column, std::string_view text) const {
    where_.fail(concat(kColumns[column], " ", quote(field(column)), " ", text));
  }

  void split(std::string_view line) {
    const auto count = static_cast<std::size_t>(std::ranges::count(line, ',')) + 1;
    if (lower_starts_with(line, kColumns[kCollectiveType])) {
      where_.fail(concat("this is a header. Put # before it: '# collective_type,...'."));
    }
    if (line.find('#') != std::string_view::npos) {
      where_.fail("there is a # after a rule. Comments stand on lines of their own.");
    }
    if (count < kLeastColumns) fail_missing(count);
    if (count > kColumns.size()) {
      where_.fail(
          concat("there are ", count, " columns, expected 10 to 12: ", join(kColumns, ","), "."));
    }
    for (count_ = 0; count_ < count; ++count_) {
      const std::size_t end = std::min(line.find(','), line.size());
      fields_[count_] = trim(line.substr(0, end));
      if (fields_[count_].empty()) {
        where_.fail(concat("column ", count_ + 1, " (", kColumns[count_],
                           ") is empty. Write -1 for ",
                           "any, or to leave the choice to the engine."));
      }
      line.remove_prefix(std::min(end + 1, line.size()));
    }
  }

  static bool lower_starts_with(std::string_view text, std::string_view start) noexcept {
    if (text.size() < start.size()) return false;
    return std::ranges::equal(text.substr(0, start.size()), start, [](char a, char b) {
      return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
    });
  }

  [[noreturn]] void fail_missing(std::size_t count) const {
    const auto missing = std::span(kColumns).subspan(count, kLeastColumns - count);
    where_.fail(concat("there ", count == 1 ? "is 1 column" : concat("are ", count, " columns"),
                       ", expected 10 to 12, separated by commas; missing: ", join(missing), "."));
  }

  Engine read_engine() const {
    if (count_ <= kEngine) return Engine::kNccl;
    const auto engine = engine_from(field(kEngine));
    if (!engine) fail(kEngine, "is unknown; expected one of: cpu, nccl, cuda.");
    return *engine;
  }

  Collective read_collective(Engine engine) const {
    const auto steered = steered_collectives(engine);
    for (const Collective collective : steered) {
      if (field(kCollectiveType) == rules_name_of(collective)) return collective;
    }
    std::vector<std::string_view> names;
    for (const Collective collective : steered) names.push_back(rules_name_of(collective));
    const auto known = collective_from(field(kCollectiveType));
    if (known && std::ranges::find(steered, *known) != steered.end()) {
      fail(kCollectiveType, concat("is spelt ", rules_name_of(*known), " in a rules file."));
    }
    const bool is_cpu_word = known && !Rules::algorithm_words(Engine::kCpu, *known).empty();
    fail(kCollectiveType,
         concat(known ? "has no choices on" : "is unknown for", " engine ", name_of(engine),
                "; expected one of: ", join(names), ".", cpu_hint(is_cpu_word)));
  }

  // Rows without an engine are nccl's: a frequent slip where the CPU engine is meant.
  std::string cpu_hint(bool would_do) const {
    if (!would_do || count_ > kEngine) return {};
    return " A row without an engine column is for nccl; end it with ',cpu' for the CPU engine.";
  }

  // `any`: what may stand in place of a number, for the message.
  std::uint64_t read_number(Column column, std::uint64_t least, std::uint64_t most,
                            std::string_view what, std::string_view any) const {
    const std::string_view text = field(column);
    const std::string_view comma = any.empty() ? "" : ", or ";
    if (!is_digits(text)) {
      fail(column, concat("is not a number; expected ", what, comma, any, ".", suffix_hint(text)));
    }
    const auto value = to_number(text);
    if (!value || *value < least || *value > most) {
      const std::string range =
          least == most ? concat(least) : concat("from ", least, " to ", most);
      fail(column, concat("is out of range; expected ", what, ", ", range, comma, any, "."));
    }
    return *value;
  }

  std::uint64_t read_min_bytes() const {
    if (field(kMinBytes) == kAny) fail(kMinBytes, "is not a number; write 0 for no lower limit.");
    return read_number(kMinBytes, 0, kAnyBytes, "a number of bytes", "");
  }

  std::uint64_t read_max_bytes() const {
    if (field(kMaxBytes) == kAny) return kAnyBytes;
    return read_number(kMaxBytes, 0, kAnyBytes, "a number of bytes", "-1 (no limit)");
  }

  void check_range(const Rule& rule) const {
    if (rule.min_bytes <= rule.max_bytes) return;
    where_.fail(concat("min_bytes ", rule.min_bytes, " is above max_bytes ", rule.max_bytes,
                       ", so that no size matches."));
  }

  template <class Words>
  std::string read_word(Column column, const Words& words, std::string_view of,
                        std::string_view hint) const {
    if (field(column) == kAny) return {};
    if (std::ranges::find(words, field(column)) != words.end()) return std::string(field(column));
    fail(column, concat("is unknown for ", of, "; expected ", words.empty() ? "" : "one of: ",
                        join(words), words.empty() ? "" : ", or ", kOwnChoice, ".", hint));
  }

  std::string read_algorithm(const Rule& rule) const {
    const auto cpu = Rules::algorithm_words(Engine::kCpu, rule.collective);
    const bool is_cpu_word = std::ranges::find(cpu, field(kAlgorithm)) != cpu.end();
    return read_word(kAlgorithm, Rules::algorithm_words(rule.engine, rule.collective),
                     concat(rules_name_of(rule.collective), " on engine ", name_of(rule.engine)),
                     cpu_hint(is_cpu_word));
  }

  std::string read_protocol(const Rule& rule) const {
    const auto engine_words = protocols_of(rule.engine, {});
    const auto words = protocols_of(rule.engine, rule.choice.algorithm);
    const bool known = std::ranges::find(engine_words, field(kProtocol)) != engine_words.end();
    const auto cpu = protocols_of(Engine::kCpu, {});
    const bool is_cpu_word = std::ranges::find(cpu, field(kProtocol)) != cpu.end();
    return read_word(kProtocol, words,
                     known ? concat("algorithm ", rule.choice.algorithm)
                           : concat("engine ", name_of(rule.engine)),
                     cpu_hint(is_cpu_word));
  }

  int read_channels(const Rule& rule) const {
    if (field(kChannels) == kAny) return 0;
    const auto most = static_cast<std::uint64_t>(most_channels(rule.engine));
    const std::string what = concat("the number of channels of engine ", name_of(rule.engine));
    return static_cast<int>(read_number(kChannels, 1, most, what, kOwnChoice));
  }

  int read_count(Column column, std::string_view what) const {
    if (field(column) == kAny) return -1;
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<int>::max());
    return static_cast<int>(read_number(column, 1, kMost, what, "-1 (any)"));
  }

  // One host holds at least one rank; the reverse is mostly the two columns exchanged.
  void check_shape(const Rule& rule) const {
    if (rule.nodes == -1 || rule.ranks == -1 || rule.nodes <= rule.ranks) return;
    where_.fail(concat(
        "nNodes ", rule.nodes, " is above nRanks ", rule.ranks,
        ", which no communicator is (nNodes counts distinct hosts, and comes before nRanks)."));
  }

  int read_pipe_ops(const Rule& rule) const {
    if (rule.engine == Engine::kNccl || field(kPipeOps) == kAny) {
      return read_count(kPipeOps, "the number of aggregated operations");
    }
    fail(kPipeOps, concat("means nothing to engine ", name_of(rule.engine), "; expected -1."));
  }

  void check_reg_buff() const {
    if (field(kRegBuff) == kAny) return;
    fail(kRegBuff,
         "cannot be matched; expected -1. Whether buffers are registered may differ between ranks, "
         "and ranks that "
         "choose differently hang.");
  }

  std::size_t read_chunk(const Rule& rule) const {
    if (count_ <= kChunkBytes || field(kChunkBytes) == kAny) return 0;
    if (rule.engine == Engine::kNccl && rule.choice.protocol.empty()) {
      fail(kChunkBytes,
           "needs a protocol in the same row: NCCL cuts chunks to a grain that depends on it.");
    }
    const ChunkLimits limits = chunk_limits(rule.engine, rule.choice.protocol);
    const std::string what = concat("a multiple of ", limits.grain, " bytes");
    const std::uint64_t value =
        read_number(kChunkBytes, limits.grain, limits.most, what, kOwnChoice);
    if (value % limits.grain != 0) {
      fail(kChunkBytes, concat("is not ", what, ", its grain; the nearest below is ",
                               value - value % limits.grain, "."));
    }
    return static_cast<std::size_t>(value);
  }

  const Where& where_;
  std::array<std::string_view, kColumns.size()> fields_;
  std::size_t count_ = 0;
};

}  // namespace

void Where::fail(std::string_view text) const {
  throw RulesError(concat(name, ":", line, ": ", text));
}

Rule parse_row(std::string_view line, const Where& where) { return RowParser(line, where).parse(); }

std::string_view trim(std::string_view text) noexcept {
  constexpr std::string_view kSpace = " \t";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace accl::rules
