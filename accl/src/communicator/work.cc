#include "communicator/work.h"

#include <exception>
#include <utility>

#include "communicator/completion_pool.h"
#include "communicator/core.h"

namespace accl {

bool WorkState::wait(Milliseconds timeout) {
  if (!completed() && !core_->drive_until_complete(*this, timeout)) return false;
  if (error_ != nullptr) std::rethrow_exception(error_);
  return true;
}

void WorkState::on_complete(std::function<void()> done) {
  {
    const std::scoped_lock lock(callbacks_mutex_);
    if (!completed()) {
      callbacks_.push_back(std::move(done));
      return;
    }
  }
  run_on_completion_pool(std::move(done));
}

void WorkState::complete(std::exception_ptr error) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::scoped_lock lock(callbacks_mutex_);
    error_ = std::move(error);
    completed_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  for (auto& callback : callbacks) run_on_completion_pool(std::move(callback));
}

}  // namespace accl
