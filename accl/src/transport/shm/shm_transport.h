// ShmTransport: the transport between ranks of one host, over shared memory.
//
// Each rank owns one segment (board and inboxes); a sender writes into the receiver's. Made in two
// steps, since ranks learn each other's addresses through the store: create(), then connect() with
// all addresses.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/shm/channel.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace accl::transport {

struct Board;

class ShmTransport final : public Transport {
 public:
  // Throws SystemError. `rank` in [0, ranks).
  ShmTransport(int rank, int ranks);
  ~ShmTransport() override;

  // What peers need in order to connect: the name of this rank's segment.
  const std::string& address() const noexcept { return own_.name(); }

  // Maps one peer's segment and tells the peer so. False where that address does not exist (any
  // more), as a stale one does. Throws SystemError otherwise.
  bool connect(int peer, const std::string& address);

  // Whether a peer has mapped this rank's segment.
  bool connected_by(int peer) const;

  // Whether all peers have mapped this rank's segment; its name is taken away then.
  bool connected_by_all() noexcept;

  bool start(int peer, Lane lane, const Header& header, const std::byte* payload) override;
  std::size_t write(int peer, Lane lane, const std::byte* data, std::size_t bytes) override;
  const Header* incoming(int peer, Lane lane) override;
  std::span<const std::byte> readable(int peer, Lane lane) override;
  void consume(int peer, Lane lane, std::size_t bytes) override;
  void finish(int peer, Lane lane) override;
  void announce(const Announcement&) override;
  std::optional<Announcement> announced(int peer, std::uint64_t sequence) const override;
  std::uint64_t last_announced(int peer) const override;
  void report_failure(const Failure&) override;
  void report_left() override;
  Health health(int peer) const override;
  Failure failure(int peer) const override;
  bool alive(int peer) const override;
  std::size_t staging_bytes() const noexcept override { return own_.bytes(); }

 private:
  struct Peer {
    Segment segment;
    Board* board = nullptr;
    std::array<Sender, kLanes> senders;      // into the peer's segment
    std::array<Receiver, kLanes> receivers;  // from this rank's own
  };
  std::byte* inbox(std::byte* segment, int owner, int sender, Lane lane) const;
  Sender& sender(int peer, Lane lane) {
    return peers_[static_cast<std::size_t>(peer)].senders[static_cast<std::size_t>(lane)];
  }
  Receiver& receiver(int peer, Lane lane) {
    return peers_[static_cast<std::size_t>(peer)].receivers[static_cast<std::size_t>(lane)];
  }
  const Board& board(int peer) const { return *peers_[static_cast<std::size_t>(peer)].board; }
  Board& own_board() const;

  int rank_;
  int ranks_;
  std::array<std::size_t, kLanes> ring_bytes_;
  Segment own_;
  std::vector<Peer> peers_;
};

}  // namespace accl::transport
