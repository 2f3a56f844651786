#include "trace/json.h"

#include <cstddef>

#include "base/utf8.h"

namespace accl::trace {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

void append_ascii(std::string& to, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') {
    to += '\\';
    to += c;
  } else if (c == '\n') {
    to += "\\n";
  } else if (value < 0x20 || value == 0x7F) {
    to += "\\u00";
    to += kHex[value >> 4];
    to += kHex[value & 0xF];
  } else {
    to += c;
  }
}

}  // namespace

void append_string(std::string& to, std::string_view text) {
  to += '"';
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) {
      to += kReplacement;
      ++i;
    } else if (length == 1) {
      append_ascii(to, text[i++]);
    } else {
      to += text.substr(i, length);
      i += length;
    }
  }
  to += '"';
}

}  // namespace accl::trace
