// Runs all tests, or those whose name contains the first argument.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "harness/test.h"

namespace accl::test {

namespace {

struct Entry {
  const char* name;
  Body body;
};

std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

bool run(const Entry& entry) {
  const auto begin = std::chrono::steady_clock::now();
  std::string error;
  try {
    entry.body();
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "something that is no std::exception";
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  std::printf("%s %s (%lld ms)\n", error.empty() ? "ok  " : "FAIL", entry.name,
              static_cast<long long>(ms.count()));
  if (!error.empty()) std::printf("     %s\n", error.c_str());
  std::fflush(stdout);
  return error.empty();
}

}  // namespace

bool add(const char* name, Body body) {
  entries().push_back({name, body});
  return true;
}

int run_all(const std::string& filter) {
  int passed = 0;
  int failed = 0;
  for (const Entry& entry : entries()) {
    if (std::string(entry.name).find(filter) == std::string::npos) continue;
    ++(run(entry) ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0 ? 1 : 0;
}

}  // namespace accl::test

#if defined(__SANITIZE_THREAD__)
// The loader frees the thread-local memory of opened libraries without the sanitizer's knowledge.
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }
#endif

int main(int count, char** arguments) { return accl::test::run_all(count > 1 ? arguments[1] : ""); }
