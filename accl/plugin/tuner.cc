#include "plugin/tuner.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <sstream>
#include <utility>

#include "base/text.h"

namespace accl::plugin {

namespace {

int clamp_to_int(std::size_t value) noexcept {
  return static_cast<int>(std::min<std::size_t>(value, std::numeric_limits<int>::max()));
}

std::uint64_t number_of(const std::string& digest) { return std::stoull(digest, nullptr, 16); }

std::string hex(std::uint64_t value) {
  std::ostringstream stream;
  stream << std::hex;
  stream.width(16);
  stream.fill('0');
  stream << value;
  return stream.str();
}

std::string described(std::uint64_t digest) {
  return digest == number_of(Rules().digest()) ? "none" : concat("others, of digest ", hex(digest));
}

// The least chunk of a protocol that NCCL does not round down to nothing.
std::size_t grain_of(int protocol) noexcept {
  if (protocol == kNcclLl) return 16;
  return protocol == kNcclLl128 ? 1920 : 512;
}

// A chunk and whom it is for, in one word that threads exchange without a lock. Chunks are at most
// 2 MiB; algorithm and protocol are -1 or small.
std::uint64_t pack(const Decision& d) noexcept {
  if (d.chunk_bytes == 0) return 0;
  return (std::uint64_t{d.chunk_bytes} << 16) | (static_cast<std::uint64_t>(d.algorithm + 1) << 8) |
         static_cast<std::uint64_t>(d.protocol + 1);
}

Decision unpack(std::uint64_t word) noexcept {
  return {static_cast<int>((word >> 8) & 0xFF) - 1, static_cast<int>(word & 0xFF) - 1, 0,
          static_cast<std::size_t>(word >> 16)};
}

}  // namespace

Tuner::Tuner(const Shape& shape, NcclLogger logger, SourcePtr source)
    : shape_(shape),
      voice_(logger),
      source_(std::move(source)),
      told_of_row_(source_->rules.rows().size()) {
  const bool first = !source_->mentioned.exchange(true);
  if (!source_->fault.empty()) {
    if (first) {
      voice_.warn(concat("ACCL-N tuner: the rules cannot be used, so NCCL chooses by itself: ",
                         source_->fault));
    }
  } else if (source_->digest.empty()) {
    if (first) {
      voice_.inform("ACCL-N tuner: ACCL_RULES is not set, so NCCL chooses by itself.");
    }
  } else {
    voice_.inform(concat("ACCL-N tuner: rules of ", source_->name, ", digest ", source_->digest,
                         ", for a communicator of ", shape_.ranks, " ranks on ", shape_.nodes,
                         " nodes."));
  }
}

Tuner::~Tuner() {
  try {
    peers_differ();  // the last chance to say why the job ends
  } catch (const std::exception&) {
    // No memory for the sentence.
  }
}

bool Tuner::agree() { return digest_as_wanted() && host_agrees(); }

bool Tuner::digest_as_wanted() {
  const std::string& wanted = source_->wanted_digest;
  if (wanted.empty() || wanted == source_->digest) return true;
  voice_.refuse(concat(
      "ACCL-N tuner: ACCL_RULES_DIGEST is '", wanted, "', but this rank has ", source_->name,
      source_->digest.empty() ? source_->fault.empty() ? "" : concat(": ", source_->fault)
                              : concat(" with digest ", source_->digest),
      ". Ranks that choose differently hang, so the communicator is not made. Give every rank the "
      "same file in ACCL_RULES, and the digest that 'accl-tune plugin' prints for it."));
  return false;
}

bool Tuner::host_agrees() {
  if (!shape_.communicator.has_value()) return true;
  try {
    board_ = std::make_unique<Board>(*shape_.communicator);
  } catch (const std::exception& error) {
    voice_.warn(concat("ACCL-N tuner: the ranks of this host cannot compare their rules (",
                       error.what(), ") Make sure that all have the same; they hang otherwise."));
    return true;
  }
  if (board_->agree(number_of(source_->steering))) return true;
  told_of_difference_ = true;
  voice_.refuse(difference());
  return false;
}

std::string Tuner::difference() const {
  const std::uint64_t mine = number_of(source_->steering);
  const bool first = board_->published() == mine;
  return concat("ACCL-N tuner: the ranks of this host have different rules for NCCL: this one has ",
                source_->name, " (digest ", source_->steering, "), another has ",
                described(first ? board_->other() : board_->published()),
                ". Ranks that choose differently hang, so the communicator is not made. Give every "
                "rank the same file in ACCL_RULES.");
}

// Whether a difference came up, also after this rank had passed; then it is said here, once.
bool Tuner::peers_differ() {
  if (board_ == nullptr || !board_->differs()) return false;
  if (!told_of_difference_.exchange(true)) voice_.refuse(difference());
  return true;
}

std::optional<Tuner::Found> Tuner::find(const Question& question) const {
  RulesQuery query;
  query.engine = Engine::kNccl;
  if (!collective_of(question.function, query.collective)) return std::nullopt;
  if (const auto decision = forced(question.function)) return Found{*decision};
  query.bytes = question.bytes;
  query.ranks = clamp_to_int(shape_.ranks);
  query.nodes = clamp_to_int(shape_.nodes);
  query.pipe_ops = question.pipe_ops;
  const Rule* rule = source_->rules.match(query);
  if (rule == nullptr) return std::nullopt;
  return Found{decision_of(rule->choice), rule,
               static_cast<std::size_t>(rule - source_->rules.rows().data())};
}

void Tuner::answer(const Question& question) {
  accl_tuner_last record{};
  record.communicator = shape_.communicator.value_or(0);
  record.ranks = shape_.ranks;
  record.nodes = shape_.nodes;
  record.version = shape_.version;
  record.message_bytes = question.bytes;
  record.function = question.function;
  record.pipe_ops = question.pipe_ops;
  record.registered = question.registered;
  record.algorithms = question.table.algorithms;
  record.protocols = question.table.protocols;
  if (question.channels != nullptr) record.channels_before = *question.channels;
  copy_table(question.table, record.before);

  const bool differ = peers_differ();
  const auto found = differ ? std::nullopt : find(question);
  record.outcome = differ ? ACCL_TUNER_DIFFER : ACCL_TUNER_LEFT;
  if (found.has_value()) {
    record.forced = found->rule == nullptr ? 1 : 0;
    record.line = found->rule == nullptr ? 0 : found->rule->line;
    record.outcome = apply(question, *found, record);
  }
  if (question.function >= 0 && question.function < kNcclFunctions) {
    chunks_[static_cast<std::size_t>(question.function)] =
        record.outcome == ACCL_TUNER_APPLIED ? pack(found->decision) : 0;
  }
  copy_table(question.table, record.after);
  if (question.channels != nullptr) record.channels_after = *question.channels;
  record_question(record);
}

int Tuner::apply(const Question& question, const Found& found, accl_tuner_last& record) {
  const Decision& wanted = found.decision;
  if (wanted.algorithm >= 0 || wanted.protocol >= 0) {
    record.entries = prefer(question.table, wanted.algorithm, wanted.protocol);
    if (record.entries == 0) {
      tell_ignored(question, found);
      return ACCL_TUNER_IGNORED;
    }
  }
  if (wanted.channels > 0 && question.channels != nullptr) *question.channels = wanted.channels;
  const bool nothing = record.entries == 0 && wanted.channels <= 0 && wanted.chunk_bytes == 0;
  return nothing ? ACCL_TUNER_LEFT : ACCL_TUNER_APPLIED;
}

void Tuner::tell_ignored(const Question& question, const Found& found) {
  if (found.rule == nullptr || told_of_row_[found.row].exchange(true)) return;
  voice_.warn(concat("ACCL-N tuner: ", source_->name, ":", found.rule->line, ": NCCL rules out '",
                     Rules::format(*found.rule), "' here (first seen at ", question.bytes,
                     " bytes), so it chooses by itself where this rule matches. Either the machine "
                     "does not have it, or NCCL_ALGO or NCCL_PROTO exclude it."));
}

// NCCL asks in parts of a channel, so the size is not the one that rules are for: what the last
// question about the collective found holds. Every rank asks in the same order.
void Tuner::answer_chunk(int function, int algorithm, int protocol, std::size_t* chunk) {
  if (chunk == nullptr || function < 0 || function >= kNcclFunctions) return;
  const std::size_t before = *chunk;
  const Decision wanted = unpack(chunks_[static_cast<std::size_t>(function)]);
  if (wanted.chunk_bytes >= grain_of(protocol) && wanted.protocol == protocol &&
      (wanted.algorithm < 0 || wanted.algorithm == algorithm)) {
    *chunk = wanted.chunk_bytes;
  }
  record_chunk(before, *chunk);
}

}  // namespace accl::plugin
