#include "base/log.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>

#include "base/text.h"

namespace accl {

namespace {

constexpr std::array<const char*, 4> kLevels = {"debug", "info", "warn", "error"};

// "2026-12-01 12:00:00.123"
std::string now() {
  const auto time = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()) % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%F %T", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%03d", static_cast<int>(ms.count()));
  return text.data();
}

}  // namespace

bool log_enabled(LogLevel level) noexcept {
  try {
    return level >= environment().log;
  } catch (const std::exception&) {
    return level >=
           LogLevel::kWarn;  // a wrong ACCL_LOG is reported where the environment is first used
  }
}

void log(LogLevel level, std::string_view text) noexcept {
  if (!log_enabled(level)) return;
  try {
    const std::string line = concat(now(), " accl ", kLevels[static_cast<std::size_t>(level)],
                                    " pid ", ::getpid(), ": ", text, "\n");
    // One call, so that lines of several threads and processes do not mix.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::exception&) {
    // A log line is not worth a failure.
  }
}

}  // namespace accl
