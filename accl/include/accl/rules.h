// Rules: the table from (collective, bytes, ranks, nodes) to (algorithm, protocol, channels,
// chunk).
//
// One grammar serves the built-in defaults, what accl-tune writes, and what stock NCCL's plugin
// loads; one strict parser reads it (docs/rules.md). Pure: no file is opened here but in load().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accl/types.h"

namespace accl {

// What is asked. `bytes` is nccl-tests' size: the larger of the send and receive buffers of one
// rank, i.e. count * ranks * element size for all_gather, reduce_scatter, all_to_all, gather and
// scatter. `uneven`: the sizes differ between ranks, so only rules that hold for every size may
// match.
struct RulesQuery {
  Engine engine = Engine::kCpu;
  Collective collective = Collective::kAllReduce;
  std::uint64_t bytes = 0;
  bool uneven = false;
  int ranks = 1;
  int nodes = 1;
  int pipe_ops = 1;
};

// What to do. Empty words, channels 0 and chunk_bytes 0 leave the choice to the engine.
struct Choice {
  std::string algorithm;
  std::string protocol;
  int channels = 0;
  std::size_t chunk_bytes = 0;
  bool operator==(const Choice&) const = default;
};

inline constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};

struct Rule {
  Engine engine = Engine::kNccl;
  Collective collective = Collective::kAllReduce;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = kAnyBytes;  // inclusive
  int nodes = -1;                       // -1: any
  int ranks = -1;
  int pipe_ops = -1;
  Choice choice;
  int line = 0;  // in the file, from 1
  bool matches(const RulesQuery&) const noexcept;
};

class Rules {
 public:
  Rules() = default;

  // Throws RulesError with "<name>:<line>: ..." that names the column, the value and the accepted
  // values: unknown word, missing or surplus column, number out of range, min above max, a rule
  // that can never match because earlier ones cover it.
  static Rules parse(std::string_view text, const std::string& name);

  // Reads a file and parses it. Throws RulesError, also where the file cannot be read.
  static Rules load(const std::string& path);

  // The rules that hold where the user gives none, in the same grammar.
  static const Rules& defaults();
  static std::string_view defaults_text() noexcept;

  // First match wins; nullptr where no rule matches.
  const Rule* match(const RulesQuery&) const noexcept;

  const std::vector<Rule>& rows() const noexcept { return rows_; }
  const std::string& name() const noexcept { return name_; }

  // The `# key: value` lines at the head of the file, in order.
  const std::vector<std::pair<std::string, std::string>>& provenance() const noexcept {
    return provenance_;
  }

  // The same for two files whose rows mean the same; independent of comments, spaces and names. 16
  // hex digits.
  std::string digest() const;

  // One row in canonical form, as the file spells it (without newline).
  static std::string format(const Rule&);

  // The words that the parser accepts, for error messages, --help and docs.
  static std::vector<std::string_view> algorithm_words(Engine, Collective);
  static std::vector<std::string_view> protocol_words(Engine);

 private:
  std::vector<Rule> rows_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> provenance_;
};

}  // namespace accl
