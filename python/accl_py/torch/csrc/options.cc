#include "options.h"

namespace accl::adapter {

GroupOptions::GroupOptions(std::chrono::milliseconds group_timeout)
    : c10d::Backend::Options("accl", group_timeout) {}

c10::intrusive_ptr<GroupOptions> copy_of(const c10d::Backend::Options& options) {
  auto copy = c10::make_intrusive<GroupOptions>(options.timeout);
  copy->group_name = options.group_name;
  copy->group_desc = options.group_desc;
  copy->global_ranks_in_group = options.global_ranks_in_group;
  if (const auto* ours = dynamic_cast<const GroupOptions*>(&options)) copy->rules = ours->rules;
  return copy;
}

}  // namespace accl::adapter
