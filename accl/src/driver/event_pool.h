// EventPool: CUDA events without timing, made when first needed and used again. Thread-safe.
#pragma once

#include <mutex>
#include <vector>

#include "driver/driver.h"

namespace accl::driver {

class EventPool {
 public:
  EventPool() = default;
  ~EventPool();  // destroys those that were given back
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Event take();  // of the current context; throws SystemError
  void give_back(Event event) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Event> free_;
};

}  // namespace accl::driver
