#include "communicator/planner.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "accl/error.h"
#include "base/text.h"
#include "communicator/digest.h"
#include "transport/transport.h"

namespace accl {

namespace {

constexpr std::size_t kMostPlans = 1024;
constexpr std::size_t kSmallestChunk = 64;  // bytes: a cache line
constexpr std::string_view kInline = "inline";
constexpr std::string_view kBulk = "bulk";

std::string join_names(std::span<const Algorithm> rows) {
  std::string text;
  for (const Algorithm& row : rows) text += concat(text.empty() ? "" : ", ", row.name);
  return text;
}

const Algorithm& find_forced(const Call& call, bool uneven) {
  const Algorithm* found = find_algorithm(call.collective, call.forced.algorithm);
  if (found == nullptr) {
    throw InvalidArgument(
        concat("Algorithm '", call.forced.algorithm, "' is unknown for ", name_of(call.collective),
               "; expected one of: ", join_names(algorithms(call.collective)), "."));
  }
  if (uneven && !found->uneven) {
    throw InvalidArgument(concat("Algorithm '", found->name, "' of ", name_of(call.collective),
                                 " does not take uneven counts."));
  }
  return *found;
}

void check_forced(const Call& call) {
  const Choice& forced = call.forced;
  if (!forced.protocol.empty() && forced.protocol != kInline && forced.protocol != kBulk) {
    throw InvalidArgument(concat("Protocol '", forced.protocol,
                                 "' is unknown for the CPU engine; expected inline or bulk."));
  }
  if (forced.channels < 0 || forced.channels > 1) {
    throw InvalidArgument(concat("channels ", forced.channels,
                                 " is out of range: the CPU engine has 1 (0 leaves it open)."));
  }
  if (forced.chunk_bytes != 0 && forced.chunk_bytes < kSmallestChunk) {
    throw InvalidArgument(concat("chunk_bytes ", forced.chunk_bytes,
                                 " is too small; expected 0 (the algorithm's own) or at least ",
                                 kSmallestChunk, "."));
  }
}

// The built-in default: the registry's first row that can do it.
const Algorithm& default_algorithm(Collective collective, bool uneven) {
  for (const Algorithm& row : algorithms(collective)) {
    if (!uneven || row.uneven) return row;
  }
  throw InternalError(concat("No algorithm is registered for ", name_of(collective), "."));
}

}  // namespace

std::size_t Planner::KeyHash::operator()(const Key& key) const noexcept {
  Digest digest;
  digest.add(static_cast<std::uint64_t>(key.collective))
      .add(key.block_bytes)
      .add(key.element_bytes);
  digest.add(static_cast<std::uint64_t>(key.root)).add(key.forced.chunk_bytes);
  if (!key.forced.algorithm.empty()) digest.add(key.forced.algorithm);
  if (!key.forced.protocol.empty()) digest.add(key.forced.protocol);
  return static_cast<std::size_t>(digest.value());
}

Planner::Planner(std::shared_ptr<const Rules> rules, int rank, int ranks, int nodes)
    : rules_(std::move(rules)), rank_(rank), ranks_(ranks), nodes_(nodes) {}

const Plan& Planner::plan(const Call& call, const CallSizes& sizes) {
  if (is_uneven(call)) return uneven_ = make(call, sizes);
  const int root = is_rooted(call.collective) ? call.root : 0;
  const std::size_t element = size_of(call.dtype);
  // The same call as last time needs no look-up.
  if (latest_ != nullptr) {
    const Key& key = latest_->first;
    if (key.collective == call.collective && key.block_bytes == sizes.block_bytes &&
        key.element_bytes == element && key.root == root && key.forced == call.forced) {
      return latest_->second;
    }
  }
  const Key key{call.collective, sizes.block_bytes, element, root, call.forced};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    Plan made = make(call, sizes);
    if (plans_.size() >= kMostPlans) plans_.clear();
    found = plans_.emplace(key, std::move(made)).first;
  }
  latest_ = &*found;
  return found->second;
}

Choice Planner::choose(const Call& call, const CallSizes& sizes) const {
  const bool uneven = is_uneven(call);
  check_forced(call);
  const Rule* rule =
      rules_->match({Engine::kCpu, call.collective, sizes.rules_bytes, uneven, ranks_, nodes_, 1});
  Choice choice = rule != nullptr ? rule->choice : Choice{};
  if (!call.forced.algorithm.empty()) {
    find_forced(call, uneven);
    // A rule's chunk was measured with the rule's algorithm.
    if (call.forced.algorithm != choice.algorithm) choice.chunk_bytes = 0;
    choice.algorithm = call.forced.algorithm;
  }
  const Algorithm* chosen =
      choice.algorithm.empty() ? nullptr : find_algorithm(call.collective, choice.algorithm);
  if (chosen == nullptr || (uneven && !chosen->uneven))
    chosen = &default_algorithm(call.collective, uneven);
  choice.algorithm = chosen->name;
  if (!call.forced.protocol.empty()) choice.protocol = call.forced.protocol;
  if (choice.protocol.empty()) choice.protocol = kInline;
  if (call.forced.chunk_bytes != 0) choice.chunk_bytes = call.forced.chunk_bytes;
  if (choice.chunk_bytes == 0) choice.chunk_bytes = chosen->default_chunk_bytes;
  // Whole lines, so that no piece splits an element.
  choice.chunk_bytes = choice.chunk_bytes / kSmallestChunk * kSmallestChunk;
  choice.channels = 1;
  return choice;
}

Plan Planner::make(const Call& call, const CallSizes& sizes) const {
  Plan plan;
  plan.choice = choose(call, sizes);
  plan.algorithm = find_algorithm(call.collective, plan.choice.algorithm);
  PlanRequest request;
  request.collective = call.collective;
  request.rank = rank_;
  request.ranks = ranks_;
  request.root = is_rooted(call.collective) ? call.root : 0;
  request.block_bytes = sizes.block_bytes;
  request.element_bytes = size_of(call.dtype);
  request.chunk_bytes = plan.choice.chunk_bytes;
  request.blocks = sizes.blocks;
  request.receive_blocks = sizes.receive_blocks;
  plan.schedule = std::make_shared<const Schedule>(accl::plan(plan.choice.algorithm, request));
  plan.inline_limit = plan.choice.protocol == kInline ? transport::kInlineMax : 0;
  plan.choice_digest = Digest()
                           .add(plan.choice.algorithm)
                           .add(plan.choice.protocol)
                           .add(plan.choice.chunk_bytes)
                           .value();
  return plan;
}

}  // namespace accl
