#include "trace/json.h"

#include <cstddef>

namespace accl::trace {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// Bytes of the UTF-8 sequence that starts at `i`; 0 where there is none.
std::size_t utf8_length(std::string_view text, std::size_t i) {
  const unsigned char lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - i < length) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte_at(text, i + k) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies above U+10FFFF show in the second byte.
  const unsigned char second = byte_at(text, i + 1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
}

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
