// Mailbox: point-to-point messages, matched by source and tag.
//
// A send is complete when the transport has taken all its bytes. A receive takes the first message,
// in order of arrival, from its source (or any) with its tag. A message for which no receive is
// posted waits in the transport; it is taken into memory only where something behind it may be
// wanted: another tag is being received, or this rank itself has a send to that peer under way
// (both sides may send first). Not thread-safe (the communicator's progress lock); never blocks.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "accl/communicator.h"
#include "transport/transport.h"

namespace accl::engine {

struct Message {
  bool is_send = false;
  int peer = 0;  // kAnySource for a receive
  int tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t moved = 0;
  bool started = false;  // a send whose header is out
  int source = -1;       // of a complete receive
};

using MessagePointer = std::shared_ptr<Message>;

class Mailbox {
 public:
  Mailbox(transport::Transport& transport, int rank, int ranks);

  void post(const MessagePointer& message);
  bool busy() const noexcept { return pending_ != 0; }

  // One pass; appends what became complete. Throws MismatchError where a message has not the size
  // that its receive expects.
  bool advance(std::vector<MessagePointer>& completed);

  // Forgets all pending messages (the communicator has ended).
  void clear() noexcept;

  // Peers that a pending send or receive cannot do without; and whether a receive from any source
  // waits.
  std::vector<int> waiting_for() const;
  bool waits_for_any() const;

  const Traffic& traffic() const noexcept { return traffic_; }

 private:
  // A message that came before its receive.
  struct Early {
    int tag = 0;
    std::vector<std::byte> data;
    std::size_t moved = 0;
  };
  struct Inbox {
    std::deque<Early> early;          // complete ones
    std::unique_ptr<Early> draining;  // being taken from the transport
    MessagePointer receiving;         // the receive that the current message goes to
  };

  bool advance_sends(int peer, std::vector<MessagePointer>& completed);
  bool advance_inbox(int peer, std::vector<MessagePointer>& completed);
  bool open_next(int peer);
  bool take_early(Message& receive);
  bool should_drain(int peer) const;
  MessagePointer match(int source, int tag);
  void check_size(const Message& receive, int source, std::size_t bytes) const;
  void complete(const MessagePointer& message, std::vector<MessagePointer>& completed);

  transport::Transport& transport_;
  int rank_;
  std::vector<std::deque<MessagePointer>> sends_;  // by peer
  std::vector<Inbox> inboxes_;                     // by source
  std::list<MessagePointer> receives_;             // unmatched, in order of posting
  std::vector<MessagePointer> done_at_once_;       // completed by post()
  std::size_t pending_ = 0;
  Traffic traffic_;
};

}  // namespace accl::engine
