// Checks: what must hold for the library itself to be right. A caller's mistake is an
// InvalidArgument with a sentence of its own and not one of these.
#pragma once

#include "accl/error.h"
#include "base/text.h"

// Throws InternalError with the condition, file and line; `why` says what it means.
#define ACCL_INVARIANT(condition, why)                                         \
  do {                                                                         \
    if (!(condition)) {                                                        \
      throw ::accl::InternalError(                                             \
          ::accl::concat(why, " (", #condition, ", ", __FILE__, ":", __LINE__, \
                         "). This is a fault of ACCL-N; please report it."));  \
    }                                                                          \
  } while (false)
