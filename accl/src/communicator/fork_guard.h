// Fork guard: tells a forked child from the process that made a communicator. Shared memory and
// threads do not survive a fork, so a child must leave its parent's communicators alone.
#pragma once

namespace accl {

// Goes up by one in each forked child; equal in a process and its threads.
unsigned fork_generation() noexcept;

}  // namespace accl
