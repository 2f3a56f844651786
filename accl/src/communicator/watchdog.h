// Watchdog: one thread of the process that looks after device communicators, since nobody waits for
// their work on the host.
#pragma once

#include <memory>

namespace accl {

class Watched {
 public:
  virtual ~Watched() = default;

  // Called every 100 ms or so; must not block for long, nor throw.
  virtual void watch() noexcept = 0;
};

// Watches until the object is gone. The thread starts with the first and never ends.
void start_watching(std::weak_ptr<Watched> watched);

}  // namespace accl
