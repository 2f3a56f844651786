// Source: which rules a communicator gets: those given by the control interface, else ACCL_RULES.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "accl/rules.h"

namespace accl::plugin {

// What was read, good or not. Made once and shared by the communicators.
struct Source {
  Rules rules;                // none where unusable
  std::string digest;         // of the whole file, as `accl-tune plugin` prints it; empty: no rules
  std::string steering;       // digest of the rows for NCCL: what the ranks must have in common
  std::string name;           // "rules.csv", or what stands for it in a sentence
  std::string fault;          // why there are none although some were asked for
  std::string wanted_digest;  // ACCL_RULES_DIGEST
  mutable std::atomic<bool> mentioned = false;  // what is said once a process has been said
  mutable std::atomic<std::uint64_t> communicators = 0;  // that have these rules
};
using SourcePtr = std::shared_ptr<const Source>;

// Of a communicator that the calling thread makes now. The environment and the file that it names
// are read at the first call and kept, good or bad. Throws bad_alloc alone.
SourcePtr current_source();

// See accl_tuner.h. Throws RulesError.
void give_rules(const char* text, const std::string& name, bool everywhere);
std::uint64_t taken_from_thread() noexcept;
void reload_source();

}  // namespace accl::plugin
