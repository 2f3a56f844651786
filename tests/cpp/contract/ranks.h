// Ranks as threads: the shortest way to run a collective for real. Each thread has a communicator
// of its own over one in-process store.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accl/communicator.h"
#include "accl/error.h"

namespace accl::test {

class HashStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      throw TimeoutError("the key '" + key + "' is not there");
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

using RankFunction = std::function<void(Communicator&)>;

// Runs `function` on each of `ranks` threads with a communicator; returns each rank's exception (or
// null).
inline std::vector<std::exception_ptr> run_ranks_with_errors(int ranks,
                                                             const CommunicatorOptions& options,
                                                             const RankFunction& function) {
  HashStore store;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = Communicator::create(store, rank, ranks, options);
        function(*communicator);
        communicator->shutdown();
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline CommunicatorOptions quick_options() {
  CommunicatorOptions options;
  options.timeout = Milliseconds{20'000};
  return options;
}

inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "no error";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

template <class Kind>
bool is_kind(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const Kind&) {
    return true;
  } catch (...) {
    return false;
  }
}

// The same, for functions that must not fail. Reports the first cause: a rank that fails makes
// others fail.
inline void run_ranks(int ranks, const RankFunction& function) {
  const auto errors = run_ranks_with_errors(ranks, quick_options(), function);
  for (const auto& error : errors) {
    if (error && !is_kind<PeerError>(error)) std::rethrow_exception(error);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace accl::test
