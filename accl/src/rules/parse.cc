// The parser: lines, comments and provenance; rows are row.cc's.
#include <array>
#include <cstdio>

#include "accl/error.h"
#include "accl/rules.h"
#include "base/text.h"
#include "base/utf8.h"
#include "rules/coverage.h"
#include "rules/row.h"

namespace accl {

namespace {

using rules::Where;

constexpr std::size_t kMostRows = 10'000;  // every rule is held against all that stand before it
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string hex(unsigned char byte) {
  std::array<char, 5> text{};
  std::snprintf(text.data(), text.size(), "0x%02X", byte);
  return text.data();
}

// A line is UTF-8 without control characters other than tabs.
void check_text(std::string_view line, const Where& where) {
  for (std::size_t at = 0; at < line.size();) {
    const auto byte = static_cast<unsigned char>(line[at]);
    const std::size_t length = utf8_length(line, at);
    if (length == 0) {
      where.fail(concat("byte ", at + 1, " of the line (", hex(byte),
                        ") is not UTF-8. Save the file as UTF-8 text."));
    }
    if ((byte < 0x20 && byte != '\t') || byte == 0x7F) {
      where.fail(
          concat("byte ", at + 1, " of the line (", hex(byte),
                 ") is a control character. A rules file is plain text, with one rule a line."));
    }
    at += length;
  }
}

bool is_key(std::string_view text) noexcept {
  if (text.empty()) return false;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

// "# key: value", the key being one word and a space, or nothing, after the colon: "# see: x", not
// "# http://x".
std::optional<std::pair<std::string, std::string>> read_provenance(std::string_view comment) {
  const std::string_view text = rules::trim(comment.substr(1));
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || !is_key(text.substr(0, colon))) return std::nullopt;
  const std::string_view value = text.substr(colon + 1);
  if (!value.empty() && value[0] != ' ' && value[0] != '\t') return std::nullopt;
  return std::pair(std::string(text.substr(0, colon)), std::string(rules::trim(value)));
}

std::string join_lines(const std::vector<int>& lines) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < kMost; ++i) {
    const bool last = i + 1 == lines.size();
    text += concat(i == 0 ? "" : last ? " and " : ", ", lines[i]);
  }
  return lines.size() > kMost ? concat(text, ", ...") : text;
}

void check_reachable(const Rule& rule, std::span<const Rule> earlier, const Where& where) {
  const std::vector<int> lines = rules::covering_lines(rule, earlier);
  if (lines.empty()) return;
  const bool one = lines.size() == 1;
  where.fail(concat("this rule can never match: the earlier rule",
                    one ? " on line " : "s on lines ", join_lines(lines),
                    one ? " takes" : " together take",
                    " every call that it would. The first match wins, so put exceptions before the "
                    "rule, or remove it."));
}

// Takes the next line off `text`, without its line end (LF or CRLF).
std::string_view take_line(std::string_view& text) noexcept {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

Rules Rules::parse(std::string_view text, const std::string& name) {
  Rules result;
  result.name_ = name;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty(); ++number) {
    const Where where{name, number};
    const std::string_view raw = take_line(text);
    check_text(raw, where);
    const std::string_view line = rules::trim(raw);
    if (line.empty()) continue;
    if (line[0] == '#') {
      if (!result.rows_.empty()) continue;
      if (auto pair = read_provenance(line)) result.provenance_.push_back(std::move(*pair));
      continue;
    }
    if (result.rows_.size() == kMostRows) {
      where.fail(concat("there are more than ", kMostRows,
                        " rules. Merge neighbouring sizes that choose the same."));
    }
    Rule rule = rules::parse_row(line, where);
    check_reachable(rule, result.rows_, where);
    result.rows_.push_back(std::move(rule));
  }
  return result;
}

}  // namespace accl
