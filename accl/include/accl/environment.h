// Environment variables, read once, in one place (src/base/environment.cc holds the only getenv).
// docs/environment.md is generated from this table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace accl {

enum class LogLevel : int { kDebug, kInfo, kWarn, kError };

// A value of each variable as it was when the process first asked. Wrong values are InvalidArgument
// when environment() is first called, naming the variable, its value and what is accepted.
struct Environment {
  LogLevel log = LogLevel::kWarn;  // ACCL_LOG: debug, info, warn, error
  std::string rules;               // ACCL_RULES: path of a rules file; empty: the defaults
  std::string
      host_id;  // ACCL_HOSTID: which host this process is on; empty: boot id and network namespace
  std::string trace_dir;     // ACCL_TRACE_DIR: where traces go on a timeout; empty: TMPDIR or /tmp
  std::string rules_digest;  // ACCL_RULES_DIGEST: what the rules must be, for NCCL's tuner plugin
  std::string nccl_library;  // ACCL_NCCL_LIBRARY: path of libnccl; empty: the one that is found
  std::string cuda_library;  // ACCL_CUDA_LIBRARY: path of the CUDA driver; empty: libcuda.so.1
  std::string nccl_host_id;  // NCCL_HOSTID: the host as NCCL takes it; empty: as it finds it
  bool nccl_shares_gpus = false;     // NCCL_MULTI_RANK_GPU_ENABLE is 1
  bool nccl_shows_warnings = false;  // NCCL_DEBUG asks NCCL's logger for warnings
};

struct EnvironmentVariable {
  std::string_view name;
  std::string_view default_value;
  std::string_view accepted;
  std::string_view meaning;
};

const Environment& environment();
std::span<const EnvironmentVariable>
environment_table() noexcept;  // for docs and `accl-perf --help`

// Reads the variables again. For tests and for programs that change them before the first
// communicator.
void reload_environment();

}  // namespace accl
