// A strict JSON reader for tests: what is not JSON fails the test. Numbers are doubles.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/test.h"

namespace accl::test {

class Json {
 public:
  using List = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  std::variant<std::monostate, bool, double, std::string, List, Object> value;

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
  double number() const { return get<double>("a number"); }
  // By value, so that they outlive a document that is a temporary of the same expression.
  std::string text() const { return get<std::string>("a string"); }
  List items() const { return get<List>("a list"); }
  const Json& operator[](const std::string& key) const {
    const Object& object = get<Object>("an object");
    const auto found = object.find(key);
    if (found == object.end()) FAIL("the JSON object has no key " + key);
    return found->second;
  }

 private:
  template <class T>
  const T& get(const char* what) const {
    if (!std::holds_alternative<T>(value)) FAIL(std::string("the JSON value is not ") + what);
    return std::get<T>(value);
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json document() {
    Json json = read();
    skip();
    if (at_ != text_.size()) fail("something after the document");
    return json;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    FAIL("not JSON at byte " + std::to_string(at_) + ": " + what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++at_;
  }
  void expect(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("expected " + std::string(word));
    at_ += word.size();
  }

  Json read() {
    skip();
    switch (peek()) {
      case '{':
        return {read_object()};
      case '[':
        return {read_list()};
      case '"':
        return {read_string()};
      case 't':
        expect("true");
        return {true};
      case 'f':
        expect("false");
        return {false};
      case 'n':
        expect("null");
        return {};
      default:
        return {read_number()};
    }
  }

  Json::Object read_object() {
    Json::Object object;
    expect("{");
    for (skip(); peek() != '}'; skip()) {
      if (!object.empty()) {
        expect(",");
        skip();
      }
      const std::string key = read_string();
      skip();
      expect(":");
      if (!object.emplace(key, read()).second) fail("the key " + key + " twice");
    }
    expect("}");
    return object;
  }

  Json::List read_list() {
    Json::List list;
    expect("[");
    for (skip(); peek() != ']'; skip()) {
      if (!list.empty()) expect(",");
      list.push_back(read());
    }
    expect("]");
    return list;
  }

  std::string read_string() {
    std::string text;
    expect("\"");
    while (peek() != '"') {
      if (at_ >= text_.size() || static_cast<unsigned char>(peek()) < 0x20)
        fail("a bad character in a string");
      if (peek() != '\\') {
        text += text_[at_++];
        continue;
      }
      ++at_;
      text += read_escape();
    }
    expect("\"");
    return text;
  }

  char read_escape() {
    const char c = peek();
    ++at_;
    if (c == '"' || c == '\\') return c;
    if (c == 'n') return '\n';
    if (c != 'u') fail("an unknown escape");
    const std::string digits(text_.substr(at_, 4));
    char* end = nullptr;
    const long code = std::strtol(digits.c_str(), &end, 16);
    if (digits.size() != 4 || *end != '\0' || code >= 0x80) fail("a bad escape");
    at_ += 4;
    return static_cast<char>(code);
  }

  double read_number() {
    const std::size_t begin = at_;
    while (std::string_view("+-.0123456789eE").find(peek()) != std::string_view::npos &&
           peek() != '\0')
      ++at_;
    const std::string digits(text_.substr(begin, at_ - begin));
    char* end = nullptr;
    const double number = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end != '\0') fail("expected a value");
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline Json parse_json(std::string_view text) { return JsonReader(text).document(); }

}  // namespace accl::test
