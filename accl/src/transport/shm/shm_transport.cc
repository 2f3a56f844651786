#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accl/error.h"
#include "transport/shm/board.h"

namespace accl::transport {

namespace {

constexpr std::size_t kBoardBytes = (sizeof(Board) + 4095) / 4096 * 4096;

// Staging of one rank: about kStagingBudget for collectives, shared among its peers' rings.
constexpr std::size_t kStagingBudget = 4u << 20;
constexpr std::size_t kLargestRing = 512u << 10;
constexpr std::size_t kSmallestRing = 32u << 10;
constexpr std::size_t kPointToPointShare = 2;  // its rings are so many times smaller

std::size_t ring_bytes_for(int ranks) {
  std::size_t ring = kLargestRing;
  const auto peers = static_cast<std::size_t>(std::max(ranks - 1, 1));
  while (ring > kSmallestRing && ring * peers > kStagingBudget) ring /= 2;
  return ring;
}

}  // namespace

// An owner's segment: the board, then for each lane one channel a rank (the own one stays unused:
// simpler arithmetic for a few pages).
std::byte* ShmTransport::inbox(std::byte* segment, int owner, int sender, Lane lane) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const auto index = static_cast<std::size_t>(sender < owner ? sender : sender - 1);
  std::byte* at = segment + kBoardBytes;
  if (lane == Lane::kPointToPoint) at += (ranks - 1) * channel_bytes(ring_bytes_[0]);
  return at + index * channel_bytes(ring_bytes_[static_cast<std::size_t>(lane)]);
}

ShmTransport::ShmTransport(int rank, int ranks)
    : rank_(rank),
      ranks_(ranks),
      ring_bytes_{ring_bytes_for(ranks), ring_bytes_for(ranks) / kPointToPointShare},
      own_(Segment::create(kBoardBytes +
                           static_cast<std::size_t>(ranks - 1) *
                               (channel_bytes(ring_bytes_[0]) + channel_bytes(ring_bytes_[1])))),
      peers_(static_cast<std::size_t>(ranks)) {
  peers_[static_cast<std::size_t>(rank_)].board = &own_board();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    for (const Lane lane : {Lane::kCollective, Lane::kPointToPoint}) {
      receiver(peer, lane) = Receiver(inbox(own_.data(), rank_, peer, lane),
                                      ring_bytes_[static_cast<std::size_t>(lane)]);
    }
  }
}

ShmTransport::~ShmTransport() = default;

Board& ShmTransport::own_board() const { return *reinterpret_cast<Board*>(own_.data()); }

bool ShmTransport::connect(int peer, const std::string& address) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  try {
    p.segment = Segment::open(address);
  } catch (const SystemError& error) {
    if (error.code() == ENOENT) return false;
    throw;
  }
  if (p.segment.bytes() != own_.bytes()) {
    // Another number of ranks, or a segment that is just being made; the caller compares what was
    // published.
    p.segment = Segment();
    return false;
  }
  p.board = reinterpret_cast<Board*>(p.segment.data());
  for (const Lane lane : {Lane::kCollective, Lane::kPointToPoint}) {
    sender(peer, lane) = Sender(inbox(p.segment.data(), peer, rank_, lane),
                                ring_bytes_[static_cast<std::size_t>(lane)]);
  }
  sender(peer, Lane::kCollective).connect();
  return true;
}

bool ShmTransport::connected_by(int peer) const {
  return peers_[static_cast<std::size_t>(peer)]
      .receivers[static_cast<std::size_t>(Lane::kCollective)]
      .connected();
}

bool ShmTransport::connected_by_all() noexcept {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && !connected_by(peer)) return false;
  }
  own_.unlink();
  return true;
}

bool ShmTransport::start(int peer, Lane lane, const Header& header, const std::byte* payload) {
  return sender(peer, lane).start(header, payload);
}

std::size_t ShmTransport::write(int peer, Lane lane, const std::byte* data, std::size_t bytes) {
  return sender(peer, lane).write(data, bytes);
}

const Header* ShmTransport::incoming(int peer, Lane lane) {
  return receiver(peer, lane).incoming();
}

std::span<const std::byte> ShmTransport::readable(int peer, Lane lane) {
  return receiver(peer, lane).readable();
}

void ShmTransport::consume(int peer, Lane lane, std::size_t bytes) {
  receiver(peer, lane).consume(bytes);
}

void ShmTransport::finish(int peer, Lane lane) { receiver(peer, lane).finish(); }

void ShmTransport::announce(const Announcement& a) {
  Board& board = own_board();
  board.announcements[a.sequence % kAnnouncements].store(a);
  board.last_announced.store(a.sequence, std::memory_order_release);
}

std::optional<Announcement> ShmTransport::announced(int peer, std::uint64_t sequence) const {
  Announcement a;
  if (!board(peer).announcements[sequence % kAnnouncements].load(sequence, a)) return std::nullopt;
  return a;
}

std::uint64_t ShmTransport::last_announced(int peer) const {
  return board(peer).last_announced.load(std::memory_order_acquire);
}

void ShmTransport::report_failure(const Failure& failure) {
  Board& board = own_board();
  if (board.health.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(Health::kWell))
    return;
  const std::size_t length = std::min(failure.text.size(), kFailureText - 1);
  std::memcpy(board.failure_text.data(), failure.text.data(), length);
  board.failure_text[length] = '\0';
  board.failure_kind.store(static_cast<std::uint32_t>(failure.kind), std::memory_order_relaxed);
  board.health.store(static_cast<std::uint32_t>(Health::kFailed), std::memory_order_release);
}

void ShmTransport::report_left() {
  Board& board = own_board();
  if (board.health.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(Health::kWell))
    return;
  board.health.store(static_cast<std::uint32_t>(Health::kLeft), std::memory_order_release);
}

Health ShmTransport::health(int peer) const {
  return static_cast<Health>(board(peer).health.load(std::memory_order_acquire));
}

Failure ShmTransport::failure(int peer) const {
  const Board& b = board(peer);
  return {static_cast<FailureKind>(b.failure_kind.load(std::memory_order_relaxed)),
          std::string(b.failure_text.data(), ::strnlen(b.failure_text.data(), kFailureText))};
}

bool ShmTransport::alive(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].segment.owner_alive();
}

}  // namespace accl::transport
