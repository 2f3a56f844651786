#include "communicator/handshake.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "accl/error.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/version.h"

namespace accl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStaleAddressPatience{5};
constexpr std::chrono::milliseconds kPoll{5};
constexpr std::string_view kDeclined = "declined";
constexpr std::string_view kGreeting = "accl-n";

// What a rank publishes: one field a line.
struct Card {
  std::string version;
  std::string size;
  std::string host;
  std::string address;
  std::string rules_digest;

  std::string text() const {
    return concat(kGreeting, "\n", version, "\n", size, "\n", host, "\n", address, "\n",
                  rules_digest, "\n");
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string key_of(const std::string& name, int rank) { return concat("accl/", name, "/", rank); }

// Cards that this rank has met in earlier communicators: a store that is used again under the same
// name still holds them until the peer publishes anew. Bounded; forgetting one only costs patience.
class MetCards {
 public:
  bool met(int rank, const std::string& card) {
    const std::scoped_lock lock(mutex_);
    return set_.contains({rank, card});
  }
  void add(int rank, const std::string& card) {
    const std::scoped_lock lock(mutex_);
    if (!set_.insert({rank, card}).second) return;
    order_.push_back({rank, card});
    if (order_.size() <= kMost) return;
    set_.erase(order_.front());
    order_.pop_front();
  }

 private:
  static constexpr std::size_t kMost = 4096;
  std::mutex mutex_;
  std::set<std::pair<int, std::string>> set_;
  std::deque<std::pair<int, std::string>> order_;
};

MetCards& met_cards() {
  static auto* cards = new MetCards;
  return *cards;
}

class Joining {
 public:
  Joining(Store& store, int rank, int size, const std::string& name, Milliseconds timeout)
      : store_(store),
        rank_(rank),
        size_(size),
        name_(name),
        timeout_(timeout),
        deadline_(Clock::now() + timeout) {}

  Handshake run(const std::string& rules_digest) {
    Handshake result;
    try {
      result.transport = std::make_unique<transport::ShmTransport>(rank_, size_);
    } catch (const Error& error) {
      decline(store_, rank_, name_, error.what());
      throw;
    }
    own_ = {std::string(kVersion), std::to_string(size_), host_id(), result.transport->address(),
            rules_digest};
    publish();
    std::vector<Card> cards;
    for (int peer = 0; peer < size_; ++peer) cards.push_back(peer == rank_ ? own_ : read(peer));
    result.nodes = count_hosts(cards);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) connect(*result.transport, peer, cards[static_cast<std::size_t>(peer)]);
    }
    wait_until_connected(*result.transport);
    return result;
  }

 private:
  void publish() {
    try {
      store_.set(key_of(name_, rank_), own_.text());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw StoreError(concat("The store failed while rank ", rank_, " joined communicator '",
                              name_, "': ", error.what()));
    }
  }

  Milliseconds left() const {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now());
    return std::max(left, Milliseconds{1});
  }

  std::string get(int peer) {
    try {
      return store_.get(key_of(name_, peer), left());
    } catch (const TimeoutError& error) {
      throw TimeoutError(concat("Rank ", peer, " of ", size_, " did not join communicator '", name_,
                                "': Timed out after ", timeout_.count(), " ms on rank ", rank_,
                                " (", error.what(), ")"));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw StoreError(concat("The store failed while rank ", rank_, " waited for rank ", peer,
                              " to join communicator '", name_, "': ", error.what()));
    }
  }

  // A peer's card of this time: not one that was met before.
  std::string fresh_card(int peer) {
    for (;;) {
      std::string text = get(peer);
      if (!met_cards().met(rank_, text)) return text;
      if (Clock::now() > deadline_) {
        throw TimeoutError(
            concat("Rank ", peer, " did not join communicator '", name_, "': Timed out after ",
                   timeout_.count(),
                   " ms; the store holds only its entry of an earlier communicator of that name."));
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  Card read(int peer) {
    const std::string text = fresh_card(peer);
    met_cards().add(rank_, text);
    const std::vector<std::string> lines = lines_of(text);
    if (!lines.empty() && lines[0] == kDeclined) {
      throw PeerError(concat("Rank ", peer, " could not join communicator '", name_,
                             "': ", lines.size() > 2 ? lines[2] : ""));
    }
    if (lines.size() != 6 || lines[0] != kGreeting) {
      throw StoreError(concat("Store key '", key_of(name_, peer),
                              "' does not hold what a rank of ACCL-N ", kVersion,
                              " publishes: give the communicator a store or a name of its own."));
    }
    Card card{lines[1], lines[2], lines[3], lines[4], lines[5]};
    compare(peer, "version", card.version, own_.version, "install the same version everywhere");
    compare(peer, "number of ranks", card.size, own_.size, "start every rank with the same size");
    compare(peer, "rules digest", card.rules_digest, own_.rules_digest,
            "give every rank the same rules file (ACCL_RULES)");
    return card;
  }

  void compare(int peer, const char* what, const std::string& theirs, const std::string& ours,
               const char* advice) const {
    if (theirs == ours) return;
    throw MismatchError(concat("Rank ", peer, " has ", what, " ", theirs, ", but rank ", rank_,
                               " has ", ours, " in communicator '", name_, "': ", advice, "."));
  }

  int count_hosts(const std::vector<Card>& cards) const {
    std::set<std::string> hosts;
    for (const Card& card : cards) hosts.insert(card.host);
    if (hosts.size() > 1) {
      throw SeveralHostsError(concat(
          "The ranks of communicator '", name_, "' are on ", hosts.size(),
          " hosts, but the CPU engine connects ranks of one host only in this version "
          "(hosts are told apart by ACCL_HOSTID, by default boot id and network namespace)."));
    }
    return static_cast<int>(hosts.size());
  }

  void connect(transport::ShmTransport& transport, int peer, const Card& card) {
    const auto patience = std::min(deadline_, Clock::now() + kStaleAddressPatience);
    Card current = card;
    while (!transport.connect(peer, current.address)) {
      if (Clock::now() > patience) {
        throw PeerError(concat("Rank ", peer, " published shared memory '", current.address,
                               "', which does not exist: it died or gave up while communicator '",
                               name_,
                               "' was made, or the store holds an entry of an earlier run. Give "
                               "each run a fresh store, or "
                               "each communicator a name of its own."));
      }
      std::this_thread::sleep_for(kPoll);
      const std::string text = get(peer);
      const std::vector<std::string> lines = lines_of(text);
      if (text != current.text() && lines.size() == 6) {
        met_cards().add(rank_, text);
        current.address = lines[4];
      }
    }
  }

  void wait_until_connected(transport::ShmTransport& transport) const {
    while (!transport.connected_by_all()) {
      for (int peer = 0; peer < size_; ++peer) {
        // One that has connected may have left again already: it is not waited for.
        if (peer == rank_ || transport.connected_by(peer) ||
            (transport.alive(peer) && transport.health(peer) == transport::Health::kWell))
          continue;
        if (transport.connected_by(peer)) continue;  // just before it went
        throw PeerError(
            concat("Rank ", peer, " died or left while communicator '", name_, "' was made."));
      }
      if (Clock::now() > deadline_) {
        throw TimeoutError(concat("Communicator '", name_,
                                  "' was not joined by all ranks: Timed out after ",
                                  timeout_.count(), " ms on rank ", rank_, "."));
      }
      std::this_thread::sleep_for(std::chrono::microseconds{50});
    }
  }

  Store& store_;
  int rank_;
  int size_;
  const std::string& name_;
  Milliseconds timeout_;
  Clock::time_point deadline_;
  Card own_;
};

}  // namespace

Handshake shake_hands(Store& store, int rank, int size, const std::string& name,
                      const std::string& rules_digest, Milliseconds timeout) {
  return Joining(store, rank, size, name, timeout).run(rules_digest);
}

void decline(Store& store, int rank, const std::string& name, const std::string& why) noexcept {
  try {
    std::string one_line = why;
    std::ranges::replace(one_line, '\n', ' ');
    const auto now =
        Clock::now().time_since_epoch().count();  // makes it differ from an earlier refusal
    store.set(key_of(name, rank), concat(kDeclined, "\n", now, "\n", one_line, "\n"));
  } catch (const std::exception& error) {
    log(LogLevel::kWarn,
        concat("Rank ", rank, " could not tell the others that it gives up: ", error.what()));
  }
}

}  // namespace accl
