#include "engine/cpu/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "accl/error.h"
#include "base/text.h"

namespace accl::engine {

using transport::Header;
using transport::kInlineMax;
using transport::Lane;

namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

Mailbox::Mailbox(transport::Transport& transport, int rank, int ranks)
    : transport_(transport), rank_(rank), sends_(index(ranks)), inboxes_(index(ranks)) {}

void Mailbox::post(const MessagePointer& message) {
  ++pending_;
  if (message->is_send) {
    sends_[index(message->peer)].push_back(message);
  } else if (take_early(*message)) {
    done_at_once_.push_back(message);
  } else {
    receives_.push_back(message);
  }
}

bool Mailbox::advance(std::vector<MessagePointer>& completed) {
  bool moved = !done_at_once_.empty();
  for (const MessagePointer& message : std::exchange(done_at_once_, {}))
    complete(message, completed);
  for (int peer = 0; peer < static_cast<int>(inboxes_.size()); ++peer) {
    moved |= advance_sends(peer, completed);
    if (peer != rank_) moved |= advance_inbox(peer, completed);
  }
  return moved;
}

void Mailbox::complete(const MessagePointer& message, std::vector<MessagePointer>& completed) {
  --pending_;
  completed.push_back(message);
}

bool Mailbox::advance_sends(int peer, std::vector<MessagePointer>& completed) {
  auto& queue = sends_[index(peer)];
  bool moved = false;
  while (!queue.empty()) {
    Message& send = *queue.front();
    if (peer == rank_) {  // to itself: straight to the receive, or kept until there is one
      if (const MessagePointer receive = match(rank_, send.tag)) {
        check_size(*receive, rank_, send.bytes);
        copy_bytes(receive->data, send.data, send.bytes);
        receive->source = rank_;
        complete(receive, completed);
      } else {
        inboxes_[index(rank_)].early.push_back(
            {send.tag, {send.data, send.data + send.bytes}, send.bytes});
      }
      send.moved = send.bytes;
    } else {
      if (!send.started) {
        const Header header{0, send.bytes, send.tag, send.bytes <= kInlineMax};
        if (!transport_.start(peer, Lane::kPointToPoint, header, send.data)) return moved;
        send.started = moved = true;
        if (header.is_inline) send.moved = send.bytes;
      }
      while (send.moved < send.bytes) {
        const std::size_t part = transport_.write(peer, Lane::kPointToPoint, send.data + send.moved,
                                                  send.bytes - send.moved);
        if (part == 0) return moved;
        send.moved += part;
        moved = true;
      }
    }
    ++traffic_.messages_sent;
    traffic_.bytes_sent += send.bytes;
    complete(queue.front(), completed);
    queue.pop_front();
    moved = true;
  }
  return moved;
}

MessagePointer Mailbox::match(int source, int tag) {
  const auto found = std::ranges::find_if(receives_, [&](const MessagePointer& receive) {
    return (receive->peer == source || receive->peer == kAnySource) && receive->tag == tag;
  });
  if (found == receives_.end()) return nullptr;
  MessagePointer receive = *found;
  receives_.erase(found);
  return receive;
}

void Mailbox::check_size(const Message& receive, int source, std::size_t bytes) const {
  if (receive.bytes == bytes) return;
  throw MismatchError(concat("rank ", source, " sent ", bytes, " bytes with tag ", receive.tag,
                             ", but rank ", rank_, " receives ", receive.bytes,
                             " bytes: both sides must give the same size"));
}

bool Mailbox::take_early(Message& receive) {
  for (int source = 0; source < static_cast<int>(inboxes_.size()); ++source) {
    if (receive.peer != source && receive.peer != kAnySource) continue;
    auto& early = inboxes_[index(source)].early;
    const auto found = std::ranges::find(early, receive.tag, &Early::tag);
    if (found == early.end()) continue;
    check_size(receive, source, found->data.size());
    copy_bytes(receive.data, found->data.data(), receive.bytes);
    receive.source = source;
    early.erase(found);
    return true;
  }
  return false;
}

bool Mailbox::should_drain(int peer) const {
  if (!sends_[index(peer)].empty()) return true;
  return std::ranges::any_of(receives_, [&](const MessagePointer& receive) {
    return receive->peer == peer || receive->peer == kAnySource;
  });
}

// Decides where the next message of a peer goes; false where none has arrived or it is left in the
// transport.
bool Mailbox::open_next(int peer) {
  const Header* header = transport_.incoming(peer, Lane::kPointToPoint);
  if (header == nullptr) return false;
  Inbox& inbox = inboxes_[index(peer)];
  inbox.receiving = match(peer, header->tag);
  if (inbox.receiving != nullptr) {
    check_size(*inbox.receiving, peer, header->bytes);
    return true;
  }
  if (!should_drain(peer)) return false;
  inbox.draining =
      std::make_unique<Early>(Early{header->tag, std::vector<std::byte>(header->bytes), 0});
  return true;
}

bool Mailbox::advance_inbox(int peer, std::vector<MessagePointer>& completed) {
  Inbox& inbox = inboxes_[index(peer)];
  bool moved = false;
  for (;;) {
    if (inbox.receiving == nullptr && inbox.draining == nullptr && !open_next(peer)) return moved;
    const bool wanted = inbox.receiving != nullptr;
    std::byte* to = wanted ? inbox.receiving->data : inbox.draining->data.data();
    std::size_t& done = wanted ? inbox.receiving->moved : inbox.draining->moved;
    const std::size_t bytes = wanted ? inbox.receiving->bytes : inbox.draining->data.size();
    while (done < bytes) {
      const auto arrived = transport_.readable(peer, Lane::kPointToPoint);
      if (arrived.empty()) return moved;
      copy_bytes(to + done, arrived.data(), arrived.size());
      transport_.consume(peer, Lane::kPointToPoint, arrived.size());
      done += arrived.size();
      moved = true;
    }
    transport_.finish(peer, Lane::kPointToPoint);
    moved = true;
    ++traffic_.messages_received;
    traffic_.bytes_received += bytes;
    if (wanted) {
      inbox.receiving->source = peer;
      complete(std::exchange(inbox.receiving, nullptr), completed);
      continue;
    }
    // A receive may have been posted while the message was taken in.
    const std::unique_ptr<Early> early = std::move(inbox.draining);
    if (const MessagePointer receive = match(peer, early->tag)) {
      check_size(*receive, peer, early->data.size());
      copy_bytes(receive->data, early->data.data(), receive->bytes);
      receive->source = peer;
      complete(receive, completed);
    } else {
      inbox.early.push_back(std::move(*early));
    }
  }
}

void Mailbox::clear() noexcept {
  for (auto& queue : sends_) queue.clear();
  for (Inbox& inbox : inboxes_) inbox = {};
  receives_.clear();
  done_at_once_.clear();
  pending_ = 0;
}

std::vector<int> Mailbox::waiting_for() const {
  std::vector<int> peers;
  for (int peer = 0; peer < static_cast<int>(inboxes_.size()); ++peer) {
    const bool sending = !sends_[index(peer)].empty();
    const bool receiving =
        inboxes_[index(peer)].receiving != nullptr ||
        std::ranges::any_of(receives_, [&](const auto& r) { return r->peer == peer; });
    if (peer != rank_ && (sending || receiving)) peers.push_back(peer);
  }
  return peers;
}

bool Mailbox::waits_for_any() const {
  return std::ranges::any_of(receives_, [](const auto& r) { return r->peer == kAnySource; });
}

}  // namespace accl::engine
