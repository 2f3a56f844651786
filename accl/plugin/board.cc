#include "plugin/board.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "accl/error.h"
#include "base/text.h"

namespace accl::plugin {

namespace {

// Not "accl-", which is what the transport cleans up by rules of its own.
constexpr std::string_view kPrefix = "accl_tuner-";
constexpr off_t kBytes = 4096;
// Somebody else holds the page exclusively for microseconds. Should he be stopped just then, nobody
// waits longer than this, and goes on without agreement.
constexpr int kAttempts = 200;
constexpr auto kPause = std::chrono::microseconds(500);

[[noreturn]] void fail(std::string_view what, int code) {
  throw SystemError(concat(what, ": ", std::strerror(code), "."), code);
}

bool set_lock(int fd, short type) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool has_name(int fd) noexcept {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && status.st_nlink > 0;
}

// Descriptors that hold locks; a forked child closes its copies, so that it does not keep a dead
// rank's page alive.
class Descriptors {
 public:
  static Descriptors& get() {
    static auto& instance = *new Descriptors;
    return instance;
  }
  void add(int fd) {
    const std::scoped_lock lock(mutex_);
    fds_.push_back(fd);
  }
  void remove(int fd) noexcept {
    const std::scoped_lock lock(mutex_);
    std::erase(fds_, fd);
  }
  // In a child of fork the descriptor is closed already, and its number may be another file's.
  bool holds(int fd) noexcept {
    const std::scoped_lock lock(mutex_);
    return std::find(fds_.begin(), fds_.end(), fd) != fds_.end();
  }

 private:
  Descriptors() { ::pthread_atfork(&before, &after_in_parent, &after_in_child); }
  static void before() { get().mutex_.lock(); }
  static void after_in_parent() { get().mutex_.unlock(); }
  static void after_in_child() {
    for (const int fd : get().fds_) ::close(fd);
    get().fds_.clear();
    get().mutex_.unlock();
  }
  std::mutex mutex_;
  std::vector<int> fds_;
};

}  // namespace

struct Board::Page {
  std::atomic<std::uint64_t> digest;   // 0: nobody has published
  std::atomic<std::uint64_t> other;    // 0: nobody has differed
  std::atomic<std::uint32_t> differs;  // never goes back to 0 while anybody holds the page
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

Board::Board(std::uint64_t communicator) {
  remove_stale();
  std::ostringstream name;
  name << "/" << kPrefix << ::geteuid() << "-" << std::hex << std::setw(16) << std::setfill('0')
       << communicator;
  name_ = name.str();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (try_open()) return;
    std::this_thread::sleep_for(kPause);
  }
  throw SystemError(concat("The shared memory '", name_, "' stayed locked by another process."),
                    EAGAIN);
}

// Maps the page, which has its name as long as `locked` is. Not through `locked` itself: a mapping
// holds the open file description, and a forked child's copy of it would hold the lock on.
Board::Page* Board::map_page(int locked) {
  // Backed now: a full /dev/shm is an error here and not a SIGBUS later.
  int code = EINTR;
  while (code == EINTR) code = ::posix_fallocate(locked, 0, kBytes);
  if (code != 0) fail("A page of shared memory could not be had from /dev/shm", code);
  const int fd = ::shm_open(name_.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) fail(concat("The shared memory '", name_, "' could not be opened again"), errno);
  void* memory =
      ::mmap(nullptr, static_cast<std::size_t>(kBytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int reason = errno;
  ::close(fd);
  if (memory == MAP_FAILED) fail("A page of shared memory could not be mapped", reason);
  return static_cast<Page*>(memory);
}

// False where somebody is just removing or wiping the page: then it is tried again.
bool Board::try_open() {
  const int fd = ::shm_open(name_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail(concat("The shared memory '", name_, "' could not be opened"), errno);
  const bool alone = set_lock(fd, F_WRLCK);
  if ((!alone && !set_lock(fd, F_RDLCK)) || !has_name(fd)) {
    ::close(fd);
    return false;
  }
  try {
    page_ = map_page(fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (alone) {  // new, or left by ranks that are gone
    page_->digest = 0;
    page_->other = 0;
    page_->differs = 0;
    set_lock(fd, F_RDLCK);
  }
  fd_ = fd;
  Descriptors::get().add(fd);
  return true;
}

Board::~Board() { leave(); }

void Board::leave() noexcept {
  if (page_ != nullptr) ::munmap(page_, static_cast<std::size_t>(kBytes));
  page_ = nullptr;
  if (fd_ < 0 || !Descriptors::get().holds(fd_)) return;
  Descriptors::get().remove(fd_);
  // Of several that leave at once, each has let go before it looks, so the last one is alone.
  set_lock(fd_, F_UNLCK);
  if (set_lock(fd_, F_WRLCK) && has_name(fd_)) ::shm_unlink(name_.c_str());
  ::close(fd_);
  fd_ = -1;
}

bool Board::agree(std::uint64_t digest) noexcept {
  if (digest == 0) digest = 1;  // 0 stands for nobody
  std::uint64_t first = 0;
  if (!page_->digest.compare_exchange_strong(first, digest) && first != digest) {
    std::uint64_t nobody = 0;
    page_->other.compare_exchange_strong(nobody, digest);
    page_->differs = 1;
  }
  return !differs();
}

bool Board::differs() const noexcept { return page_->differs.load(std::memory_order_acquire) != 0; }

std::uint64_t Board::published() const noexcept { return page_->digest; }
std::uint64_t Board::other() const noexcept { return page_->other; }

int Board::remove_stale() noexcept {
  DIR* directory = ::opendir("/dev/shm");
  if (directory == nullptr) return 0;
  int removed = 0;
  while (const dirent* entry = ::readdir(directory)) {
    if (!std::string_view(entry->d_name).starts_with(kPrefix)) continue;
    const std::string path = std::string("/") + entry->d_name;
    const int fd = ::shm_open(path.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) continue;  // another user's, or gone already
    if (set_lock(fd, F_WRLCK) && has_name(fd) && ::shm_unlink(path.c_str()) == 0) ++removed;
    ::close(fd);
  }
  ::closedir(directory);
  return removed;
}

}  // namespace accl::plugin
