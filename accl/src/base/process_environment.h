// What other libraries are told through the environment of the process.
#pragma once

#include <string>

namespace accl {

// The value now, not when environment() was first asked; empty where it is unset.
std::string environment_value(const char* name);

// Sets the variable unless it is set. Not while other threads may read the environment: call it
// before the library that reads it starts.
void set_environment_default(const char* name, const std::string& value);

}  // namespace accl
