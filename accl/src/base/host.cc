#include "base/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "accl/environment.h"
#include "base/text.h"

namespace accl {

std::string host_id() {
  if (!environment().host_id.empty()) return environment().host_id;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    boot = name.data();
  }
  struct stat status{};
  const auto netns = ::stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
  return concat(boot, "/", netns);
}

}  // namespace accl
