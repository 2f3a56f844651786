// JSON: just enough to write a document by hand.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace accl::trace {

// Appends `text` as a JSON string with its quotes. The result is valid UTF-8 whatever the bytes
// were: what is not UTF-8 becomes U+FFFD.
void append_string(std::string& to, std::string_view text);

// Appends a decimal number, whatever the program's locale.
template <std::integral Number>
void append_number(std::string& to, Number value) {
  to += std::to_string(value);
}

}  // namespace accl::trace
