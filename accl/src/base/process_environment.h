// What other libraries are told through the environment of the process.
#pragma once

#include <optional>
#include <string>

namespace accl {

// The value now, not when environment() was first asked; nothing where it is unset.
std::optional<std::string> environment_variable(const char* name);

// Sets the variable unless it is set. Not while other threads may read the environment: call it
// before the library that reads it starts.
void set_environment_default(const char* name, const std::string& value);

}  // namespace accl
