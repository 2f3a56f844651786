#include "communicator/completion_pool.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace accl {

namespace {

constexpr std::chrono::seconds kIdleTime{2};  // after which an idle thread ends

class CompletionPool {
 public:
  void run(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ >= tasks_.size()) {
      ready_.notify_one();
    } else {
      std::thread([this] { work(); }).detach();
    }
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!tasks_.empty()) {
        const std::function<void()> task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        call(task);
        lock.lock();
      }
      ++idle_;
      const bool woken = ready_.wait_for(lock, kIdleTime, [this] { return !tasks_.empty(); });
      --idle_;
      if (!woken) return;
    }
  }

  static void call(const std::function<void()>& task) noexcept {
    try {
      task();
    } catch (const std::exception& error) {
      log(LogLevel::kError, concat("A completion callback threw: ", error.what()));
    } catch (...) {
      log(LogLevel::kError, "A completion callback threw something that is no std::exception.");
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;
};

}  // namespace

void run_on_completion_pool(std::function<void()> task) {
  static auto* pool = new CompletionPool;  // its threads may outlive main()
  pool->run(std::move(task));
}

}  // namespace accl
