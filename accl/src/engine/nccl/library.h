// Library: which libnccl is used, and whether it can be.
//
// The first that is found of: the one that the process holds already (torch's), ACCL_NCCL_LIBRARY,
// the nvidia-nccl wheel beside our own package, the system's. It must be 2.24 to 2.32; a newer one
// of the same major version is used with one warning.
#pragma once

#include <string>

#include "engine/nccl/api.h"

namespace accl::nccl {

struct Library {
  Api api;
  int version = 0;   // 22809 is 2.28.9
  std::string path;  // of the file, as the loader knows it
};

// Loads once. Throws SystemError with a sentence that names what was tried, also at later calls.
const Library& library();

std::string version_text(int version);  // "2.28.9"

}  // namespace accl::nccl
