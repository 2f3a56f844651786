// Control: what a process forces, and what it can read of NCCL's last question (accl_tuner.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "accl/rules.h"
#include "plugin/accl_tuner.h"
#include "plugin/cost_table.h"

namespace accl::plugin {

// A choice in NCCL's numbers; -1 and 0 leave it to NCCL.
struct Decision {
  int algorithm = -1;
  int protocol = -1;
  int channels = 0;
  std::size_t chunk_bytes = 0;
};
Decision decision_of(const Choice&) noexcept;

// Forced choices, for all communicators of the process.
void force(const char* collective, const char* algorithm, const char* protocol, int channels,
           std::size_t chunk_bytes);  // throws RulesError
void clear_forced() noexcept;
std::optional<Decision> forced(int function) noexcept;

// The last question, and counts. Filled by the communicators, read by accl_tuner_report.
void count_init() noexcept;
void count_finalize() noexcept;
void record_question(const accl_tuner_last& question) noexcept;  // counts are the record's own
void record_chunk(std::uint64_t before, std::uint64_t after) noexcept;
bool report(accl_tuner_last* last) noexcept;

// Copies what fits of a table.
void copy_table(const CostTable& table, float (*to)[ACCL_TUNER_MAX_PROTOCOLS]) noexcept;

}  // namespace accl::plugin
