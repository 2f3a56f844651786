#include "communicator/meeting.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "accl/error.h"
#include "communicator/device_log.h"
#include "harness/test.h"

namespace {

using namespace accl;

class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    map_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return map_.contains(key); }))
      throw TimeoutError("no " + key);
    return map_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> map_;
};

struct Outcome {
  Meeting meeting;
  std::string error;
  bool timed_out = false;
};

Outcome attempt(Store& store, int rank, int size, const std::string& text, Milliseconds timeout) {
  Outcome outcome;
  try {
    outcome.meeting = meet(store, "room", rank, size, text, timeout);
  } catch (const TimeoutError& error) {
    outcome.error = error.what();
    outcome.timed_out = true;
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  return outcome;
}

std::vector<Outcome> all_meet(Store& store, int size, const std::string& mark,
                              Milliseconds timeout = Milliseconds{20'000}, int absent = -1) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    if (r == absent) continue;
    threads.emplace_back([&, r] {
      std::this_thread::sleep_for(Milliseconds{(r * 7) % 5});
      outcomes[static_cast<std::size_t>(r)] =
          attempt(store, r, size, mark + std::to_string(r) + std::string("\n\0:", 3), timeout);
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

TEST(everybody_gets_everybodys_text) {
  for (const int size : {1, 2, 5}) {
    MemoryStore store;
    const auto outcomes = all_meet(store, size, "a");
    for (const auto& outcome : outcomes) {
      CHECK_EQ(outcome.error, std::string{});
      CHECK_EQ(outcome.meeting.id, outcomes[0].meeting.id);
      CHECK_EQ(outcome.meeting.texts.size(), static_cast<std::size_t>(size));
      for (int r = 0; r < size; ++r)
        CHECK_EQ(outcome.meeting.texts[static_cast<std::size_t>(r)],
                 "a" + std::to_string(r) + std::string("\n\0:", 3));
    }
  }
}

TEST(a_store_that_is_used_again_shows_no_old_text) {
  MemoryStore store;
  std::string last;
  for (int round = 0; round < 20; ++round) {
    const std::string mark = "round" + std::to_string(round) + "-";
    const auto outcomes = all_meet(store, 3, mark);
    for (const auto& outcome : outcomes) {
      CHECK_EQ(outcome.error, std::string{});
      for (const auto& text : outcome.meeting.texts) CHECK(text.starts_with(mark));
    }
    CHECK(outcomes[0].meeting.id != last);
    last = outcomes[0].meeting.id;
  }
}

TEST(who_is_missing_is_named_to_all_who_came) {
  MemoryStore store;
  const auto outcomes = all_meet(store, 3, "a", Milliseconds{600}, 1);
  CHECK(outcomes[0].timed_out);
  for (const int r : {0, 2})
    CHECK(outcomes[static_cast<std::size_t>(r)].error.find("rank 1 did not come") !=
          std::string::npos);
}

TEST(a_refusal_reaches_all_at_once_and_is_forgotten) {
  MemoryStore store;
  decline_meeting(store, "room", 1, "its GPU is gone.");
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = all_meet(store, 3, "a", Milliseconds{20'000}, 1);
  CHECK(std::chrono::steady_clock::now() - start < Milliseconds{4000});
  for (const int r : {0, 2})
    CHECK(outcomes[static_cast<std::size_t>(r)].error.find("its GPU is gone.") !=
          std::string::npos);
  for (const auto& outcome : all_meet(store, 3, "b")) CHECK_EQ(outcome.error, std::string{});
}

TEST(rank_zeros_refusal_reaches_the_others) {
  MemoryStore store;
  decline_meeting(store, "room", 0, "no driver.");
  const auto outcomes = all_meet(store, 2, "a", Milliseconds{20'000}, 0);
  CHECK(outcomes[1].error.find("no driver.") != std::string::npos);
}

CallNote note(std::uint64_t sequence, std::uint64_t count) {
  CallNote made;
  made.collective = Collective::kAllReduce;
  made.count = count;
  made.sequence = sequence;
  return made;
}

TEST(logs_tell_who_is_behind_and_who_does_something_else) {
  DeviceLog ahead;
  DeviceLog behind;
  DeviceLog other;
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ahead.add(note(i, 8));
    if (i < 200) behind.add(note(i, 8));
    other.add(note(i, i == 200 ? 9 : 8));
  }
  const std::string own = describe(note(200, 8));
  CHECK_EQ(compare_logs(1, ahead.text(), 200, own), std::string{});
  CHECK_EQ(
      compare_logs(1, behind.text(), 200, own),
      std::string("rank 1 has not called it (its last was #199, all_reduce of 8 float32 (sum))"));
  CHECK_EQ(compare_logs(2, other.text(), 200, own),
           std::string("rank 2 calls all_reduce of 9 float32 (sum) there"));
  CHECK_EQ(compare_logs(3, DeviceLog{}.text(), 200, own),
           std::string("rank 3 has not called it (it has made no collective yet)"));
  CHECK_EQ(compare_logs(3, "garbage", 1, own),
           std::string("rank 3 has not called it (it has made no collective yet)"));
}

}  // namespace
