// Host: which machine this process is on, as far as shared memory goes.
#pragma once

#include <string>

namespace accl {

// ACCL_HOSTID, by default boot id and network namespace: processes with equal ids share a host.
std::string host_id();

}  // namespace accl
