// The one place in which a rules file is opened.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "accl/error.h"
#include "accl/rules.h"
#include "base/text.h"

namespace accl {

namespace {

constexpr std::size_t kMostBytes = 16U << 20;

[[noreturn]] void fail(const std::string& path, std::string_view why) {
  throw RulesError(concat("The rules file '", path, "' ", why));
}

[[noreturn]] void fail_system(const std::string& path, std::string_view what, int code) {
  fail(path, concat("cannot be ", what, ": ", std::generic_category().message(code), "."));
}

class File {
 public:
  // Without blocking: a pipe that nobody writes to must not hold the program up.
  explicit File(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    const int code = errno;
    if (descriptor_ >= 0) return;
    if (code == ENOENT) fail(path, "does not exist.");
    if (code == EACCES) fail(path, "may not be read by this user (permission denied).");
    fail_system(path, "opened", code);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(descriptor_); }

  void check_kind() const {
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) fail_system(path_, "examined", errno);
    if (S_ISDIR(status.st_mode)) fail(path_, "is a directory; expected a file.");
    if (!S_ISREG(status.st_mode)) fail(path_, "is a pipe or a device; expected a regular file.");
  }

  std::string read() const {
    std::string text;
    std::size_t length = 0;
    for (;;) {
      text.resize(length + kStep);
      const ssize_t got = ::read(descriptor_, text.data() + length, kStep);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_system(path_, "read", errno);
      length += static_cast<std::size_t>(got);
      if (length > kMostBytes) {
        fail(path_, concat("is larger than ", kMostBytes, " bytes, which no rules file is."));
      }
      if (got == 0) break;
    }
    text.resize(length);
    return text;
  }

 private:
  static constexpr std::size_t kStep = 64U << 10;
  const std::string& path_;
  int descriptor_;
};

}  // namespace

Rules Rules::load(const std::string& path) {
  if (path.empty())
    throw RulesError("The path of the rules file is empty; expected the path of a file.");
  if (path.find('\0') != std::string::npos) {
    throw RulesError(
        "The path of the rules file holds a NUL character; expected the path of a file.");
  }
  std::string text;
  {
    const File file(path);
    file.check_kind();
    text = file.read();
  }
  return parse(text, path);
}

}  // namespace accl
