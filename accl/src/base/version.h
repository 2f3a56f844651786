// Version: of the library, from the file VERSION at the root of the sources.
#pragma once

#include <string_view>

namespace accl {

#ifndef ACCL_VERSION
#error "ACCL_VERSION is defined by the build (CMakeLists.txt)"
#endif
inline constexpr std::string_view kVersion = ACCL_VERSION;

}  // namespace accl
