#include "accl/environment.h"

#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "accl/error.h"
#include "base/process_environment.h"
#include "base/text.h"

namespace accl {

namespace {

constexpr std::array<EnvironmentVariable, 7> kTable = {{
    {"ACCL_LOG", "warn", "debug, info, warn, error",
     "The least level of the log lines written to stderr."},
    {"ACCL_RULES", "", "path of a rules file",
     "The rules by which algorithms are chosen; must be the same on every rank. Unset: the "
     "built-in defaults. Set but "
     "unreadable or wrong: an error."},
    {"ACCL_HOSTID", "", "any text without a line break",
     "Which host this process is on; ranks with equal values share memory. Unset: boot id and "
     "network namespace."},
    {"ACCL_TRACE_DIR", "", "path of a directory",
     "Where a communicator writes its trace on a timeout or when a peer is lost. Unset: TMPDIR, "
     "else /tmp."},
    {"ACCL_RULES_DIGEST", "", "a digest of 16 hexadecimal digits",
     "What the digest of ACCL_RULES must be on every rank; NCCL's tuner plugin makes no "
     "communicator where it is another. Unset: only the ranks of one host compare their rules."},
    {"ACCL_NCCL_LIBRARY", "", "path of a library",
     "The libnccl to use where the process holds none yet. Unset: that of the nvidia-nccl wheel, "
     "else the system's."},
    {"ACCL_CUDA_LIBRARY", "", "path of a library",
     "The CUDA driver to use, for tests. Unset: libcuda.so.1."},
}};

std::string read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// NCCL's levels from which on it writes warnings; it reads them in any case.
bool shows_warnings(std::string level) {
  for (char& c : level) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return level == "WARN" || level == "INFO" || level == "ABORT" || level == "TRACE";
}

LogLevel log_level(const std::string& value) {
  if (value.empty() || value == "warn") return LogLevel::kWarn;
  if (value == "debug") return LogLevel::kDebug;
  if (value == "info") return LogLevel::kInfo;
  if (value == "error") return LogLevel::kError;
  throw InvalidArgument(concat("ACCL_LOG is '", value, "'; expected debug, info, warn or error."));
}

Environment read_all() {
  Environment e;
  e.log = log_level(read("ACCL_LOG"));
  e.rules = read("ACCL_RULES");
  e.host_id = read("ACCL_HOSTID");
  if (e.host_id.find('\n') != std::string::npos) {
    throw InvalidArgument("ACCL_HOSTID holds a line break; expected one line of text.");
  }
  e.trace_dir = read("ACCL_TRACE_DIR");
  if (e.trace_dir.empty()) e.trace_dir = read("TMPDIR");
  if (e.trace_dir.empty()) e.trace_dir = "/tmp";
  e.rules_digest = read("ACCL_RULES_DIGEST");
  e.nccl_library = read("ACCL_NCCL_LIBRARY");
  e.cuda_library = read("ACCL_CUDA_LIBRARY");
  e.nccl_host_id = read("NCCL_HOSTID");
  e.nccl_shares_gpus = read("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  e.nccl_shows_warnings = shows_warnings(read("NCCL_DEBUG"));
  return e;
}

std::mutex mutex;

// All values that were read, the last one in force. References to them stay valid after a reload
// and until the process ends, so the list is never destroyed.
std::vector<std::unique_ptr<const Environment>>& history() {
  static auto& list = *new std::vector<std::unique_ptr<const Environment>>;
  return list;
}

}  // namespace

const Environment& environment() {
  const std::scoped_lock lock(mutex);
  if (history().empty()) history().push_back(std::make_unique<const Environment>(read_all()));
  return *history().back();
}

void reload_environment() {
  auto fresh = std::make_unique<const Environment>(read_all());
  const std::scoped_lock lock(mutex);
  history().push_back(std::move(fresh));
}

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

void set_environment_default(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 0);
}

std::span<const EnvironmentVariable> environment_table() noexcept { return kTable; }

}  // namespace accl
