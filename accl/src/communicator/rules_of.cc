#include "communicator/rules_of.h"

#include "accl/environment.h"
#include "accl/error.h"
#include "base/text.h"

namespace accl {

void check_membership(int rank, int size, const CommunicatorOptions& options) {
  if (size < 1)
    throw InvalidArgument(concat("size ", size, "; expected the number of ranks, at least 1."));
  if (rank < 0 || rank >= size)
    throw InvalidArgument(
        concat("rank ", rank, "; expected 0 to ", size - 1, " for size ", size, "."));
  if (options.timeout <= Milliseconds::zero()) {
    throw InvalidArgument(
        concat("timeout ", options.timeout.count(), " ms; expected more than 0."));
  }
  if (options.name.empty())
    throw InvalidArgument("The communicator's name is empty; expected at least one character.");
}

std::shared_ptr<const Rules> rules_of(const CommunicatorOptions& options) {
  if (options.rules != nullptr) return options.rules;
  const std::string& path = options.rules_file.empty() ? environment().rules : options.rules_file;
  if (path.empty()) return {std::shared_ptr<const Rules>{}, &Rules::defaults()};
  return std::make_shared<const Rules>(Rules::load(path));
}

}  // namespace accl
