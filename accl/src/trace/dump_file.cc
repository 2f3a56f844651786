#include "trace/dump_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "accl/error.h"
#include "base/text.h"

namespace accl::trace {

namespace {

constexpr std::size_t kLongestName = 64;
constexpr int kMostDumps = 10'000;  // of one communicator name in one process

[[noreturn]] void fail(std::string_view what, const std::string& path, int code,
                       std::string_view todo) {
  throw SystemError(
      concat(what, " ", path, " failed: ", std::generic_category().message(code), ". ", todo),
      code);
}

constexpr std::string_view kSetDirectory =
    "Set ACCL_TRACE_DIR to a directory that exists and can be written.";

// A file under a passing name, removed again unless it was given its lasting one.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& directory, const std::string& stem)
      : path_(concat(directory, "/.", stem, "-XXXXXX")) {
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);  // mode 0600
    if (descriptor_ < 0) {
      const int code = errno;
      fail("Creating a file in", directory, code, kSetDirectory);
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        const int code = errno;
        fail("Writing", path_, code, kSetDirectory);
      }
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  // False where `path` is taken.
  bool rename_to(const std::string& path) {
    // A link never replaces a file, as a rename would; file systems without links get the rename.
    if (::link(path_.c_str(), path.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
    if (::access(path.c_str(), F_OK) == 0) return false;
    if (::rename(path_.c_str(), path.c_str()) != 0) {
      const int code = errno;
      fail("Renaming a file to", path, code, kSetDirectory);
    }
    path_.clear();
    return true;
  }

 private:
  std::string path_;
  int descriptor_;
};

bool suits_file_name(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

}  // namespace

std::string dump_stem(std::string_view name, int rank) {
  std::string safe(name.substr(0, kLongestName));
  for (char& c : safe) {
    if (!suits_file_name(c)) c = '_';
  }
  return concat("accl-trace-", safe, "-rank", rank, "-pid", ::getpid());
}

std::string write_dump(const std::string& directory, const std::string& stem,
                       std::string_view text) {
  TemporaryFile file(directory, stem);
  file.write(text);
  for (int n = 1; n <= kMostDumps; ++n) {
    const std::string path = concat(directory, "/", stem, "-", n, ".json");
    if (file.rename_to(path)) return path;
  }
  fail("Naming a file in", directory, EEXIST,
       concat("It holds ", kMostDumps, " traces of this communicator; remove some."));
}

}  // namespace accl::trace
