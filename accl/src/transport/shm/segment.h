// Segment: a piece of POSIX shared memory that one rank owns and its peers map.
//
// Private (mode 0600). Its owner holds a file lock on it, which the kernel drops when the process
// ends, however it ends: so peers can ask whether the owner lives, and whoever starts next removes
// what a killed process left behind. Open-file-description locks are used, since they belong to the
// descriptor and not to the process (ranks may be threads of one process); a fork handler closes
// them in children, so that a surviving child (a data loader's worker) does not keep a dead parent
// alive.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace accl::transport {

class Mapping;

class Segment {
 public:
  // Creates one of `bytes` zeroed bytes, every page backed. Throws SystemError (shared memory is
  // full, ...).
  static Segment create(std::size_t bytes);

  // Maps a peer's. Throws SystemError with code() ENOENT where the name does not exist (any more).
  static Segment open(const std::string& name);

  Segment() = default;
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  std::byte* data() const noexcept;
  std::size_t bytes() const noexcept;
  const std::string& name() const noexcept { return name_; }

  // Takes the name away; the memory lives until the last mapping goes. Idempotent.
  void unlink() noexcept;

  // Whether the process that created the segment still holds it.
  bool owner_alive() const noexcept;

 private:
  std::string name_;
  std::shared_ptr<Mapping> mapping_;
  int fd_ = -1;
  bool owner_ = false;
  bool linked_ = false;
  void close() noexcept;
};

// Removes segments whose owner is gone. Called before each create; returns how many were removed.
int remove_stale_segments() noexcept;

}  // namespace accl::transport
