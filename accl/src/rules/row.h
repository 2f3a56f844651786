// Row: one line of a rules file, checked field by field.
#pragma once

#include <string>
#include <string_view>

#include "accl/rules.h"

namespace accl::rules {

// Where in which file; fail() says it at the head of every message.
struct Where {
  std::string_view name;
  int line;
  [[noreturn]] void fail(std::string_view text) const;
};

// `line` holds neither a newline nor a comment, and is text (see text.h). Throws RulesError.
Rule parse_row(std::string_view line, const Where& where);

std::string_view trim(std::string_view text) noexcept;  // of spaces and tabs

}  // namespace accl::rules
