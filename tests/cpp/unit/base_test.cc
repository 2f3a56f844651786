// Environment, log, check, host and text: what every layer stands on.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <locale>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "harness/test.h"
#include "unit/temporary_directory.h"

namespace accl {

namespace {

// Sets (or, with nullopt, unsets) variables and reads the environment; puts all back in the end.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<std::string, std::optional<std::string>>> values) {
    for (const auto& [name, value] : values) {
      const char* old = ::getenv(name.c_str());
      old_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      set(name, value);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (const auto& [name, value] : old_) set(name, value);
    reload_environment();
  }

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value.has_value()) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }

  std::map<std::string, std::optional<std::string>> old_;
};

// What is written to stderr while it lives.
class Stderr {
 public:
  Stderr() : path_(directory_.write("stderr", "")), saved_(::dup(STDERR_FILENO)) {
    const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (saved_ < 0 || file < 0) throw std::runtime_error("stderr cannot be captured");
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;
  ~Stderr() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }

  std::string text() const { return test::read_file(path_); }

 private:
  test::TemporaryDirectory directory_;
  std::string path_;
  int saved_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST(environment_unset_is_as_the_table_says) {
  const Variables variables{{"ACCL_LOG", std::nullopt},
                            {"ACCL_RULES", std::nullopt},
                            {"ACCL_HOSTID", std::nullopt},
                            {"ACCL_TRACE_DIR", std::nullopt},
                            {"TMPDIR", std::nullopt}};
  reload_environment();
  CHECK(environment().log == LogLevel::kWarn);
  CHECK_EQ(environment().rules, "");
  CHECK_EQ(environment().host_id, "");
  CHECK_EQ(environment().trace_dir, "/tmp");
}

TEST(environment_values_are_taken) {
  const Variables variables{{"ACCL_LOG", "debug"},
                            {"ACCL_RULES", "a folder/rules.csv"},
                            {"ACCL_HOSTID", "left half"},
                            {"ACCL_TRACE_DIR", "/traces"},
                            {"TMPDIR", "/elsewhere"}};
  reload_environment();
  CHECK(environment().log == LogLevel::kDebug);
  CHECK_EQ(environment().rules, "a folder/rules.csv");
  CHECK_EQ(environment().host_id, "left half");
  CHECK_EQ(environment().trace_dir, "/traces");
  ::unsetenv("ACCL_TRACE_DIR");
  reload_environment();
  CHECK_EQ(environment().trace_dir, "/elsewhere");
}

TEST(environment_wrong_values_are_refused_and_change_nothing) {
  const Variables variables{{"ACCL_LOG", "info"}, {"ACCL_HOSTID", "here"}};
  reload_environment();
  for (const char* bad : {"INFO", "verbose", "1", " info"}) {
    ::setenv("ACCL_LOG", bad, 1);
    CHECK_THROWS(InvalidArgument,
                 concat("ACCL_LOG is '", bad, "'; expected debug, info, warn or error."),
                 reload_environment());
  }
  ::setenv("ACCL_LOG", "info", 1);
  ::setenv("ACCL_HOSTID", "two\nlines", 1);
  CHECK_THROWS(InvalidArgument, "ACCL_HOSTID holds a line break", reload_environment());
  CHECK(environment().log == LogLevel::kInfo);
  CHECK_EQ(environment().host_id, "here");
}

TEST(environment_references_outlive_a_reload) {
  const Variables variables{{"ACCL_RULES", "first"}};
  reload_environment();
  const Environment& first = environment();
  ::setenv("ACCL_RULES", "second", 1);
  CHECK_EQ(environment().rules, "first");  // read once
  reload_environment();
  CHECK_EQ(environment().rules, "second");
  CHECK_EQ(first.rules, "first");
}

TEST(environment_may_be_asked_and_reloaded_by_many_threads) {
  const Variables variables{{"ACCL_RULES", "same"}};
  reload_environment();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong] {
      for (int i = 0; i < 50; ++i) {
        if (i % 10 == 0) reload_environment();
        if (environment().rules != "same") ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(environment_table_describes_each_variable_once) {
  std::set<std::string_view> names;
  for (const EnvironmentVariable& row : environment_table()) {
    CHECK(row.name.starts_with("ACCL_"));
    CHECK(names.insert(row.name).second);
    CHECK(!row.accepted.empty());
    CHECK(row.meaning.ends_with('.'));
  }
  for (const char* name : {"ACCL_LOG", "ACCL_RULES", "ACCL_HOSTID", "ACCL_TRACE_DIR"}) {
    if (!names.contains(name)) FAIL(concat(name, " is not in the table"));
  }
}

TEST(log_writes_what_is_at_least_the_level) {
  const Variables variables{{"ACCL_LOG", "info"}};
  reload_environment();
  CHECK(!log_enabled(LogLevel::kDebug) && log_enabled(LogLevel::kInfo));
  std::string text;
  {
    const Stderr captured;
    log(LogLevel::kDebug, "unseen");
    log(LogLevel::kInfo, "first");
    log(LogLevel::kError, "second");
    text = captured.text();
  }
  const auto lines = lines_of(text);
  CHECK_EQ(lines.size(), 2U);
  CHECK(lines[0].ends_with(concat(" accl info pid ", ::getpid(), ": first")));
  CHECK(lines[1].ends_with(concat(" accl error pid ", ::getpid(), ": second")));
  // "2026-12-01 12:00:00.123 accl ...": the text's order is the order in time.
  CHECK_EQ(lines[0].find(" accl "), std::string("2026-12-01 12:00:00.123").size());
  CHECK(lines[0].substr(0, 23) <= lines[1].substr(0, 23));
}

TEST(log_lines_of_several_threads_stay_whole) {
  const Variables variables{{"ACCL_LOG", "warn"}};
  reload_environment();
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  std::string text;
  {
    const Stderr captured;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        const std::string word(300, static_cast<char>('a' + t));
        for (int i = 0; i < kLines; ++i) log(LogLevel::kWarn, word);
      });
    }
    for (std::thread& thread : threads) thread.join();
    text = captured.text();
  }
  std::map<char, int> seen;
  for (const std::string& line : lines_of(text)) {
    CHECK(line.ends_with(": " + std::string(300, line.back())));
    ++seen[line.back()];
  }
  CHECK_EQ(seen.size(), std::size_t{kThreads});
  for (const auto& [letter, count] : seen) CHECK_EQ(count, kLines);
}

TEST(check_says_condition_place_and_meaning) {
  ACCL_INVARIANT(1 + 1 == 2, "never seen");
  const auto fail = [](int ranks) { ACCL_INVARIANT(ranks > 0, "a communicator without ranks"); };
  CHECK_THROWS(InternalError, "a communicator without ranks (ranks > 0, ", fail(0));
  CHECK_THROWS(InternalError, "base_test.cc:", fail(0));
  CHECK_THROWS(Error, "please report it", fail(0));
}

TEST(host_id_is_the_variable_or_the_machine) {
  const Variables variables{{"ACCL_HOSTID", "left half"}};
  reload_environment();
  CHECK_EQ(host_id(), "left half");
  ::unsetenv("ACCL_HOSTID");
  reload_environment();
  const std::string own = host_id();
  CHECK_EQ(own, host_id());
  CHECK(own.find('\n') == std::string::npos);
  // "<boot id>/<network namespace>"
  const auto slash = own.find('/');
  CHECK(slash != std::string::npos && slash > 0 && slash + 1 < own.size());
}

TEST(text_has_no_separators_of_the_locale) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale old = std::locale::global(std::locale(std::locale(), new Grouping));
  std::ostringstream separated;
  separated << 1234567;
  const std::string text = concat("a ", 1234567, " b ", 0.5);
  std::locale::global(old);
  CHECK_EQ(separated.str(), "1,234,567");
  CHECK_EQ(text, "a 1234567 b 0.5");
}

TEST(utf8_sequences_have_their_length) {
  CHECK_EQ(utf8_length("a", 0), 1U);
  CHECK_EQ(utf8_length("x\xC3\xBC", 1), 2U);
  CHECK_EQ(utf8_length("\xE2\x82\xAC", 0), 3U);
  CHECK_EQ(utf8_length("\xF0\x9F\x98\x80", 0), 4U);
  CHECK_EQ(utf8_length("\xF4\x8F\xBF\xBF", 0), 4U);  // U+10FFFF, the last
}

TEST(utf8_refuses_what_is_no_text) {
  const std::map<std::string, std::string_view> bad = {
      {"a continuation alone", "\x80"},       {"cut short", "\xE2\x82"},
      {"a wrong continuation", "\xC3\x28"},   {"overlong in two", "\xC0\xAF"},
      {"overlong in three", "\xE0\x9F\xBF"},  {"overlong in four", "\xF0\x8F\xBF\xBF"},
      {"a surrogate", "\xED\xA0\x80"},        {"above U+10FFFF", "\xF4\x90\x80\x80"},
      {"five bytes", "\xF8\x88\x80\x80\x80"},
  };
  for (const auto& [name, text] : bad) {
    if (utf8_length(text, 0) != 0) FAIL(name + " is taken for text");
  }
}

}  // namespace accl
