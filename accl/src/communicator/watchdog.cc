#include "communicator/watchdog.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/fork_guard.h"

namespace accl {

namespace {

constexpr std::chrono::milliseconds kInterval{100};

class Watchdog {
 public:
  void add(std::weak_ptr<Watched> watched) {
    const std::scoped_lock lock(mutex_);
    list_.push_back(std::move(watched));
    // A forked child has no thread of its parent's.
    if (started_ && generation_ == fork_generation()) return;
    generation_ = fork_generation();
    started_ = true;
    std::thread([this] { run(); }).detach();
  }

 private:
  [[noreturn]] void run() {
    for (;;) {
      std::this_thread::sleep_for(kInterval);
      for (const auto& watched : alive()) watched->watch();
    }
  }

  std::vector<std::shared_ptr<Watched>> alive() {
    std::vector<std::shared_ptr<Watched>> found;
    const std::scoped_lock lock(mutex_);
    std::erase_if(list_, [](const auto& watched) { return watched.expired(); });
    for (const auto& watched : list_) {
      if (auto held = watched.lock()) found.push_back(std::move(held));
    }
    return found;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<Watched>> list_;
  bool started_ = false;
  unsigned generation_ = 0;
};

Watchdog& watchdog() {
  static auto& only = *new Watchdog;  // its thread outlives main()
  return only;
}

}  // namespace

void start_watching(std::weak_ptr<Watched> watched) { watchdog().add(std::move(watched)); }

}  // namespace accl
