// Board: where the ranks of one host that make a communicator see whether their rules are the same.
//
// A page of POSIX shared memory named after the communicator (mode 0600). The first rank to come
// writes its digest, the others compare; the first difference turns the verdict, once for all who
// are there or come later. Nobody waits for anybody: NCCL's tuner interface tells neither how many
// ranks of this host load the plugin nor which. docs/nccl-plugin.md has the reasoning.
//
// Each holder has a shared file lock on the page, which the kernel drops when the process ends,
// however it ends. Who gets the exclusive lock is alone: an arriving rank then wipes what dead ones
// left, a leaving one removes the name. Locks are of the open file description, so that ranks may
// be threads; a fork handler closes them in children.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace accl::plugin {

class Board {
 public:
  // Throws SystemError where shared memory cannot be had (never because of a missing or stuck
  // peer).
  explicit Board(std::uint64_t communicator);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Publishes or compares; false where the ranks differ. Call once.
  bool agree(std::uint64_t digest) noexcept;

  // Whether a difference has come up so far. One load.
  bool differs() const noexcept;

  // Of the rank that published.
  std::uint64_t published() const noexcept;
  // Of the first rank that differed from it.
  std::uint64_t other() const noexcept;

  // Removes pages whose ranks are all gone; returns how many. Called by the constructor.
  static int remove_stale() noexcept;

 private:
  struct Page;
  std::string name_;
  int fd_ = -1;
  Page* page_ = nullptr;
  bool try_open();
  Page* map_page(int locked);
  void leave() noexcept;
};

}  // namespace accl::plugin
