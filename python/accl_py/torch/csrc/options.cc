#include "options.h"

#include <c10/util/Exception.h>

#include <memory>

#include "accl/rules.h"

namespace accl::adapter {

GroupOptions::GroupOptions(std::chrono::milliseconds group_timeout)
    : c10d::Backend::Options("accl", group_timeout) {}

DeviceOptions GroupOptions::device_options(int device) const {
  TORCH_CHECK(on_fault == "exit" || on_fault == "raise", "accl: on_fault is \"", on_fault,
              "\", expected \"exit\" or \"raise\".");
  DeviceOptions made;
  made.timeout = timeout;
  if (!group_name.empty()) made.name = group_name;
  if (!rules.empty()) made.rules = std::make_shared<const Rules>(Rules::load(rules));
  made.device = device;
  made.blocking = blocking;
  made.min_channels = min_channels;
  made.max_channels = max_channels;
  made.cga_cluster_size = cga_cluster_size;
  made.traffic_class = traffic_class;
  made.network = network;
  made.split_share = split_share;
  made.kernels = kernels;
  made.on_fault = on_fault == "exit" ? OnFault::kExit : OnFault::kRaise;
  return made;
}

c10::intrusive_ptr<GroupOptions> copy_of(const c10d::Backend::Options& options) {
  if (const auto* ours = dynamic_cast<const GroupOptions*>(&options))
    return c10::make_intrusive<GroupOptions>(*ours);
  auto copy = c10::make_intrusive<GroupOptions>(options.timeout);
  copy->group_name = options.group_name;
  copy->group_desc = options.group_desc;
  copy->global_ranks_in_group = options.global_ranks_in_group;
  return copy;
}

}  // namespace accl::adapter
