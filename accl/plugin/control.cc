#include "plugin/control.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string_view>

#include "accl/error.h"
#include "base/text.h"

namespace accl::plugin {

namespace {

struct State {
  std::mutex mutex;
  std::array<std::optional<Decision>, kNcclFunctions> forced;
  accl_tuner_last last{};
};

State& state() {
  static auto& instance = *new State;  // never destroyed: NCCL may call while the process ends
  return instance;
}

// So that a process that forces nothing does not take the lock for it.
std::atomic<int> forced_count{0};

std::string word_or_any(const char* word) { return word == nullptr || *word == '\0' ? "-1" : word; }

// The grammar of a rules file decides what is accepted, so both speak alike.
Rule parse_choice(Collective collective, const char* algorithm, const char* protocol, int channels,
                  std::size_t chunk_bytes) {
  const auto number = [](auto value) { return value == 0 ? std::string("-1") : concat(value); };
  const std::string row = concat(rules_name_of(collective), ",0,-1,", word_or_any(algorithm), ",",
                                 word_or_any(protocol), ",", number(channels), ",-1,-1,-1,-1,nccl,",
                                 number(chunk_bytes));
  const Rules rules = Rules::parse(row, "forced choice");
  if (rules.rows().size() != 1) {
    throw RulesError(concat("The forced choice '", row, "' is not one row of a rules file."));
  }
  return rules.rows().front();
}

}  // namespace

Decision decision_of(const Choice& choice) noexcept {
  return {algorithm_index(choice.algorithm), protocol_index(choice.protocol), choice.channels,
          choice.chunk_bytes};
}

void force(const char* collective, const char* algorithm, const char* protocol, int channels,
           std::size_t chunk_bytes) {
  const std::string_view word = collective == nullptr ? "" : collective;
  const auto parsed = collective_from(word);
  const int function = parsed.has_value() ? function_of(*parsed) : -1;
  if (function < 0) {
    throw RulesError(concat("NCCL asks its tuner nothing about '", word,
                            "'; expected all_reduce, all_gather, reduce_scatter, broadcast or "
                            "reduce."));
  }
  if (channels < 0) {
    throw RulesError(
        concat("channels is ", channels, "; expected 1 to 64, or 0 to leave them to NCCL."));
  }
  const Rule rule = parse_choice(*parsed, algorithm, protocol, channels, chunk_bytes);
  const std::scoped_lock lock(state().mutex);
  state().forced[static_cast<std::size_t>(function)] = decision_of(rule.choice);
  forced_count = 1;
}

void clear_forced() noexcept {
  const std::scoped_lock lock(state().mutex);
  state().forced.fill(std::nullopt);
  forced_count = 0;
}

std::optional<Decision> forced(int function) noexcept {
  if (forced_count.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::scoped_lock lock(state().mutex);
  return state().forced[static_cast<std::size_t>(function)];
}

void count_init() noexcept {
  const std::scoped_lock lock(state().mutex);
  ++state().last.communicators;
  ++state().last.live;
}

void count_finalize() noexcept {
  const std::scoped_lock lock(state().mutex);
  --state().last.live;
}

void record_question(const accl_tuner_last& question) noexcept {
  const std::scoped_lock lock(state().mutex);
  accl_tuner_last& last = state().last;
  const accl_tuner_last old = last;
  last = question;
  last.communicators = old.communicators;
  last.live = old.live;
  last.questions = old.questions + 1;
  last.applied = old.applied + (question.outcome == ACCL_TUNER_APPLIED ? 1 : 0);
  last.ignored = old.ignored + (question.outcome == ACCL_TUNER_IGNORED ? 1 : 0);
  last.chunk_questions = old.chunk_questions;
  last.chunk_before = old.chunk_before;
  last.chunk_after = old.chunk_after;
}

void record_chunk(std::uint64_t before, std::uint64_t after) noexcept {
  const std::scoped_lock lock(state().mutex);
  ++state().last.chunk_questions;
  state().last.chunk_before = before;
  state().last.chunk_after = after;
}

bool report(accl_tuner_last* last) noexcept {
  if (last == nullptr || last->size != sizeof(accl_tuner_last)) return false;
  const std::scoped_lock lock(state().mutex);
  *last = state().last;
  last->size = sizeof(accl_tuner_last);
  return true;
}

void copy_table(const CostTable& table, float (*to)[ACCL_TUNER_MAX_PROTOCOLS]) noexcept {
  if (!table.usable()) return;
  for (int a = 0; a < std::min<int>(table.algorithms, ACCL_TUNER_MAX_ALGORITHMS); ++a) {
    for (int p = 0; p < std::min<int>(table.protocols, ACCL_TUNER_MAX_PROTOCOLS); ++p) {
      to[a][p] = table.at(a, p);
    }
  }
}

}  // namespace accl::plugin
