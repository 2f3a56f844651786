#include "communicator/meeting.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "accl/error.h"
#include "base/text.h"

namespace accl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr Milliseconds kPoll{5};
constexpr Milliseconds kLook{200};  // how long one wait for the final word is
constexpr Milliseconds kOldRefusalPatience{1000};
constexpr Milliseconds kOldFailurePatience{5000};
constexpr char kDeclined = '!';

std::string fresh_number() {
  std::random_device source;
  const auto part = [&source] { return static_cast<std::uint64_t>(source()); };
  std::ostringstream text;
  text << std::hex << (part() << 32 | part());
  return text.str();
}

// Texts as one: each with its length before it, so that they may hold any byte.
std::string pack(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += concat(part.size(), ":", part);
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t colon = text.find(':', at);
    if (colon == std::string::npos) return {};
    const std::string digits = text.substr(at, colon - at);
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      return {};
    const std::size_t size = std::stoul(digits);
    if (colon + 1 + size > text.size()) return {};
    parts.push_back(text.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return parts;
}

class Room {
 public:
  Room(Store& store, const std::string& name, int rank, int size, Milliseconds timeout)
      : store_(store), name_(name), rank_(rank), size_(size), timeout_(timeout) {
    // Rank 0 gives up a little earlier, and its sentence, which names who is missing, arrives.
    const Milliseconds early =
        rank == 0 ? std::min(timeout / 10, Milliseconds{2000}) : Milliseconds{0};
    deadline_ = Clock::now() + timeout - early;
  }

  Meeting host(const std::string& text) {
    try {
      return gather(text);
    } catch (const Error& error) {
      set("list", failure(error.what()));
      throw;
    }
  }

  Meeting attend(const std::string& text) {
    const std::string number = fresh_number();
    set(concat("text/", rank_), pack({number, text}));
    std::string acknowledged;
    for (;;) {
      const auto list = unpack(get("list", left(), "rank 0 did not gather the ranks"));
      if (is_failure(list) && (meant_for(list, number) || stays(list[0]))) throw PeerError(list[1]);
      const auto own = 1 + 2 * static_cast<std::size_t>(rank_);
      const bool mine =
          list.size() == 1 + 2 * static_cast<std::size_t>(size_) && list[own] == number;
      if (!mine) {
        std::this_thread::sleep_for(kPoll);
        continue;
      }
      if (acknowledged != list[0]) {
        set(concat("seen/", rank_), list[0]);
        acknowledged = list[0];
      }
      if (is_final(acknowledged)) return result_of(list);
    }
  }

 private:
  // In place of the list: a number, the sentence, and the texts' numbers that rank 0 has seen.
  std::string failure(const std::string& why) {
    std::vector<std::string> parts = {kDeclined + fresh_number(), why};
    for (int r = 1; r < size_; ++r) {
      const auto card = unpack(read(concat("text/", r), kPoll));
      parts.push_back(card.empty() ? std::string{} : card[0]);
    }
    return pack(parts);
  }

  static bool is_failure(const std::vector<std::string>& list) {
    return list.size() >= 2 && !list[0].empty() && list[0][0] == kDeclined;
  }

  static bool meant_for(const std::vector<std::string>& list, const std::string& number) {
    return std::find(list.begin() + 2, list.end(), number) != list.end();
  }

  // A failure that rank 0 published before it saw this rank's text, or an old one that it will
  // soon replace: time tells.
  bool stays(const std::string& number) {
    if (failure_ != number) {
      failure_ = number;
      failure_since_ = Clock::now();
    }
    return Clock::now() - failure_since_ > kOldFailurePatience;
  }

  Meeting gather(const std::string& text) {
    const std::string number = fresh_number();
    std::vector<std::string> list;
    for (;;) {
      list = {fresh_number(), number, text};
      for (int r = 1; r < size_; ++r) {
        const auto card = card_of(r);
        list.insert(list.end(), card.begin(), card.end());
      }
      if (declined(list)) return result_of(list);  // throws
      set("list", pack(list));
      if (all_have_seen(list)) break;
    }
    set("list", pack(list));
    set(concat("final/", list[0]), "yes");
    return result_of(list);
  }

  std::vector<std::string> card_of(int peer) {
    const std::string missing = concat("rank ", peer, " did not come");
    for (;;) {
      auto card = unpack(get(concat("text/", peer), left(), missing));
      if (card.size() != 2)
        throw StoreError(concat("The store holds no readable text of rank ", peer, " for '", name_,
                                "'; is the name used for something else?"));
      // A refusal may be of an earlier meeting: a fresh text replaces it soon.
      const bool refuses = !card[1].empty() && card[1][0] == kDeclined;
      if (!refuses || Clock::now() - start_ > kOldRefusalPatience) return card;
      if (Clock::now() >= deadline_) late(missing);
      std::this_thread::sleep_for(kPoll);
    }
  }

  static bool declined(const std::vector<std::string>& list) {
    for (std::size_t text = 2; text < list.size(); text += 2) {
      if (!list[text].empty() && list[text][0] == kDeclined) return true;
    }
    return false;
  }

  // False where a rank has published anew since the list was made.
  bool all_have_seen(const std::vector<std::string>& list) {
    for (int r = 1; r < size_; ++r) {
      const std::string what = concat("rank ", r, " did not come");
      const std::string& number = list[1 + 2 * static_cast<std::size_t>(r)];
      while (read(concat("seen/", r), std::min(left(), kLook)) != list[0]) {
        if (card_of(r)[0] != number) return false;
        if (Clock::now() >= deadline_) late(what);
        std::this_thread::sleep_for(kPoll);
      }
    }
    return true;
  }

  Meeting result_of(const std::vector<std::string>& list) const {
    Meeting meeting;
    meeting.id = list[0];
    for (int r = 0; r < size_; ++r) {
      const std::string& text = list[2 + 2 * static_cast<std::size_t>(r)];
      if (!text.empty() && text[0] == kDeclined && r != rank_) {
        throw PeerError(
            concat("Rank ", r, " could not join communicator '", name_, "': ", text.substr(1)));
      }
      meeting.texts.push_back(text);
    }
    return meeting;
  }

  bool is_final(const std::string& id) {
    try {
      return !store_.get(key(concat("final/", id)), std::min(left(), kLook)).empty();
    } catch (const TimeoutError&) {
    } catch (const std::exception&) {  // of the store's own kind; a broken one shows in get()
    }
    if (Clock::now() >= deadline_) late("not all ranks came");
    return false;
  }

  std::string read(const std::string& what, Milliseconds timeout) {
    try {
      return store_.get(key(what), timeout);
    } catch (const std::exception&) {
      return {};
    }
  }

  Milliseconds left() const {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now());
    return std::max(left, Milliseconds{1});
  }

  [[noreturn]] void late(const std::string& what) const {
    throw TimeoutError(concat("Communicator '", name_, "' was not made: ", what,
                              ": Timed out after ", timeout_.count(), " ms on rank ", rank_, " of ",
                              size_, "."));
  }

  std::string key(const std::string& what) const { return concat("accl-meet/", name_, "/", what); }

  void set(const std::string& what, const std::string& value) {
    try {
      store_.set(key(what), value);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw StoreError(concat("The store failed while rank ", rank_, " made communicator '", name_,
                              "': ", error.what()));
    }
  }

  std::string get(const std::string& what, Milliseconds timeout, const std::string& missing) {
    if (Clock::now() >= deadline_) late(missing);
    try {
      return store_.get(key(what), timeout);
    } catch (const TimeoutError&) {
      late(missing);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (Clock::now() >= deadline_) late(missing);
      throw StoreError(concat("The store failed while rank ", rank_, " made communicator '", name_,
                              "': ", error.what()));
    }
  }

  Store& store_;
  const std::string& name_;
  const int rank_;
  const int size_;
  const Milliseconds timeout_;
  Clock::time_point deadline_;
  const Clock::time_point start_ = Clock::now();
  std::string failure_;
  Clock::time_point failure_since_;
};

}  // namespace

Meeting meet(Store& store, const std::string& name, int rank, int size, const std::string& text,
             Milliseconds timeout) {
  Room room(store, name, rank, size, timeout);
  return rank == 0 ? room.host(text) : room.attend(text);
}

void decline_meeting(Store& store, const std::string& name, int rank,
                     const std::string& why) noexcept {
  try {
    const std::string text = std::string(1, kDeclined) + why;
    if (rank == 0) {
      store.set(concat("accl-meet/", name, "/list"),
                pack({kDeclined + fresh_number(),
                      concat("Rank 0 could not join communicator '", name, "': ", why)}));
    } else {
      store.set(concat("accl-meet/", name, "/text/", rank), pack({fresh_number(), text}));
    }
  } catch (...) {  // they will time out
  }
}

}  // namespace accl
