// What both kinds of communicator check and read before they join.
#pragma once

#include <memory>

#include "accl/communicator.h"

namespace accl {

// Throws InvalidArgument for a rank, size, timeout or name that cannot be.
void check_membership(int rank, int size, const CommunicatorOptions& options);

// The rules of the options, of the file they name, of ACCL_RULES, or the defaults. Throws
// RulesError.
std::shared_ptr<const Rules> rules_of(const CommunicatorOptions& options);

}  // namespace accl
