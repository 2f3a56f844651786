// Test harness: tests that register themselves, and checks that say file, line and values.
//
// A failed check ends its test by an exception, also on a thread whose exceptions the test
// collects.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace accl::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Body = void (*)();
bool add(const char* name, Body body);

template <class T>
std::string show(const T& value) {
  if constexpr (requires(std::ostringstream& s) { s << value; }) {
    std::ostringstream stream;
    stream << value;
    return stream.str();
  } else {
    return "(a value)";
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  std::ostringstream stream;
  stream << file << ":" << line << ": " << text;
  throw Failure(stream.str());
}

}  // namespace accl::test

#define TEST(name)                                                                \
  static void accl_test_##name();                                                 \
  static const bool accl_added_##name = accl::test::add(#name, accl_test_##name); \
  static void accl_test_##name()

#define FAIL(text) accl::test::fail(__FILE__, __LINE__, text)

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) FAIL("CHECK(" #condition ")"); \
  } while (false)

#define CHECK_EQ(a, b)                                                         \
  do {                                                                         \
    const auto& accl_a = (a);                                                  \
    const auto& accl_b = (b);                                                  \
    if (!(accl_a == accl_b)) {                                                 \
      FAIL("CHECK_EQ(" #a ", " #b "): " + accl::test::show(accl_a) + " and " + \
           accl::test::show(accl_b));                                          \
    }                                                                          \
  } while (false)

// The expression throws Kind, and its message contains `words`.
#define CHECK_THROWS(Kind, words, ...)                                                    \
  do {                                                                                    \
    bool accl_thrown = false;                                                             \
    try {                                                                                 \
      (void)(__VA_ARGS__);                                                                \
    } catch (const Kind& accl_error) {                                                    \
      accl_thrown = true;                                                                 \
      if (std::string(accl_error.what()).find(words) == std::string::npos) {              \
        FAIL("'" + std::string(words) + "' is not in the message: " + accl_error.what()); \
      }                                                                                   \
    }                                                                                     \
    if (!accl_thrown) FAIL("nothing of kind " #Kind " was thrown by " #__VA_ARGS__);      \
  } while (false)
