#include "driver/event_pool.h"

namespace accl::driver {

EventPool::~EventPool() {
  for (const Event event : free_) table().event_destroy(event);
}

Event EventPool::take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!free_.empty()) {
      const Event event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  check(table().event_create(&event, kEventDisableTiming), "cuEventCreate");
  return event;
}

void EventPool::give_back(Event event) noexcept {
  const std::scoped_lock lock(mutex_);
  try {
    free_.push_back(event);
  } catch (...) {
    table().event_destroy(event);
  }
}

}  // namespace accl::driver
