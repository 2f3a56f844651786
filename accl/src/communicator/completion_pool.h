// CompletionPool: the threads on which completion callbacks run.
//
// A callback may start another collective and wait for it, or block on something that a later
// callback brings; so there is always a free thread: the pool grows when all are busy and shrinks
// when they idle. One pool a process, never destroyed.
#pragma once

#include <functional>

namespace accl {

// Runs `task` soon, on a thread of the pool. Exceptions that escape it are logged.
void run_on_completion_pool(std::function<void()> task);

}  // namespace accl
