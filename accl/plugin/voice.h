// Voice: how the plugin speaks: through NCCL's logger, and on stderr where that would be lost.
#pragma once

#include <string>

#include "plugin/nccl_tuner_abi.h"

namespace accl::plugin {

class Voice {
 public:
  Voice() = default;
  explicit Voice(NcclLogger logger) noexcept : logger_(logger) {}

  void inform(const std::string& text) const noexcept;

  // One warning that is seen: NCCL's logger is silent unless NCCL_DEBUG asks for warnings, so then
  // it goes to stderr too.
  void warn(const std::string& text) const noexcept;

  // Why a communicator is not made: always on both.
  void refuse(const std::string& text) const noexcept;

 private:
  NcclLogger logger_ = nullptr;
  void tell(int level, const std::string& text) const noexcept;
};

}  // namespace accl::plugin
