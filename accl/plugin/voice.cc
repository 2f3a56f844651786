#include "plugin/voice.h"

#include <exception>

#include "accl/environment.h"
#include "base/log.h"

namespace accl::plugin {

namespace {

bool nccl_shows_warnings() noexcept {
  try {
    return environment().nccl_shows_warnings;
  } catch (const std::exception&) {
    return false;  // a wrong value elsewhere in the environment: rather twice than never
  }
}

}  // namespace

void Voice::tell(int level, const std::string& text) const noexcept {
  if (logger_ == nullptr) return;
  try {
    logger_(level, kNcclLogTuning, "accl_tuner", 0, "%s", text.c_str());
  } catch (...) {
    // A logger that throws is not worth a job.
  }
}

void Voice::inform(const std::string& text) const noexcept {
  tell(kNcclLogInfo, text);
  if (logger_ == nullptr) log(LogLevel::kInfo, text);
}

void Voice::warn(const std::string& text) const noexcept {
  tell(kNcclLogWarn, text);
  if (logger_ == nullptr || !nccl_shows_warnings()) log(LogLevel::kWarn, text);
}

void Voice::refuse(const std::string& text) const noexcept {
  tell(kNcclLogWarn, text);
  log(LogLevel::kError, text);
}

}  // namespace accl::plugin
