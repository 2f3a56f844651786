// Log: one line to stderr. ACCL_LOG sets the least level that is written.
#pragma once

#include <string_view>

#include "accl/environment.h"

namespace accl {

// Never throws; a line is written whole, also from several threads.
void log(LogLevel level, std::string_view text) noexcept;

bool log_enabled(LogLevel level) noexcept;

}  // namespace accl
