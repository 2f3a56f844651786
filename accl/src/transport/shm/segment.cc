#include "transport/shm/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "accl/error.h"
#include "base/text.h"

namespace accl::transport {

namespace {

constexpr std::string_view kPrefix = "accl-";
constexpr const char* kShmDirectory = "/dev/shm";

[[noreturn]] void fail(const std::string& what, int code) {
  throw SystemError(concat(what, ": ", std::strerror(code), "."), code);
}

// Descriptors that hold an owner's lock; a forked child closes its copies.
class OwnerDescriptors {
 public:
  static OwnerDescriptors& get() {
    static auto* instance = new OwnerDescriptors;  // never destroyed: used from fork handlers
    return *instance;
  }
  void add(int fd) {
    const std::scoped_lock lock(mutex_);
    fds_.push_back(fd);
  }
  void remove(int fd) {
    const std::scoped_lock lock(mutex_);
    std::erase(fds_, fd);
  }

 private:
  OwnerDescriptors() { pthread_atfork(&before, &after_in_parent, &after_in_child); }
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

bool try_lock(int fd) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool is_locked(int fd) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// Names are unguessable enough not to collide; privacy comes from the mode.
std::string fresh_name() {
  static std::atomic<unsigned> counter{0};
  struct timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return concat(kPrefix, ::getuid(), "-", ::getpid(), "-", now.tv_sec, "-", now.tv_nsec, "-",
                counter.fetch_add(1));
}

// A new name with the lock held. Between creation and locking a cleaner may take the file for a
// stale one and remove it: then another name is tried.
std::pair<std::string, int> create_locked() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = fresh_name();
    const int fd =
        ::shm_open(concat("/", name).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
      if (errno == EEXIST) continue;
      fail("Shared memory could not be created in /dev/shm (is it mounted and writable?)", errno);
    }
    struct stat status{};
    if (try_lock(fd) && ::fstat(fd, &status) == 0 && status.st_nlink > 0) return {name, fd};
    ::close(fd);
  }
  fail("A shared memory segment could not be locked after 100 attempts", EAGAIN);
}

}  // namespace

// Memory that unmaps itself.
class Mapping {
 public:
  Mapping(int fd, std::size_t bytes) : bytes_(bytes) {
    void* address =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
      fail(concat("Shared memory of ", bytes, " bytes could not be mapped"), errno);
    data_ = static_cast<std::byte*>(address);
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

namespace {

// Mappings of this process by name: ranks that are threads of one process see the memory at one
// address, so that the thread sanitizer sees it too.
class LocalMappings {
 public:
  static LocalMappings& get() {
    static auto* instance = new LocalMappings;
    return *instance;
  }
  void add(const std::string& name, const std::shared_ptr<Mapping>& mapping) {
    const std::scoped_lock lock(mutex_);
    mappings_[name] = mapping;
  }
  std::shared_ptr<Mapping> find(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    const auto found = mappings_.find(name);
    return found == mappings_.end() ? nullptr : found->second.lock();
  }
  void remove(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    mappings_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace

Segment Segment::create(std::size_t bytes) {
  remove_stale_segments();
  Segment segment;
  std::tie(segment.name_, segment.fd_) = create_locked();
  segment.owner_ = segment.linked_ = true;
  OwnerDescriptors::get().add(segment.fd_);
  // Backs every page now: a full /dev/shm is an error here and not a SIGBUS later.
  const int code = ::posix_fallocate(segment.fd_, 0, static_cast<off_t>(bytes));
  if (code != 0) {
    fail(concat("Shared memory of ", bytes,
                " bytes could not be had from /dev/shm; free some of it, or mount it larger "
                "(docker: --shm-size)"),
         code);
  }
  segment.mapping_ = std::make_shared<Mapping>(segment.fd_, bytes);
  LocalMappings::get().add(segment.name_, segment.mapping_);
  return segment;
}

Segment Segment::open(const std::string& name) {
  Segment segment;
  segment.name_ = name;
  segment.fd_ = ::shm_open(concat("/", name).c_str(), O_RDWR | O_CLOEXEC, 0);
  if (segment.fd_ < 0)
    fail(concat("Shared memory segment '", name, "' of a peer could not be opened"), errno);
  segment.mapping_ = LocalMappings::get().find(name);
  if (segment.mapping_ == nullptr) {
    struct stat status{};
    if (::fstat(segment.fd_, &status) != 0)
      fail("A peer's shared memory could not be examined", errno);
    if (status.st_uid != ::geteuid()) {
      throw SystemError(concat("Shared memory segment '", name, "' belongs to user ", status.st_uid,
                               ", not to this one: all ranks of a host must run as one user."),
                        EACCES);
    }
    segment.mapping_ =
        std::make_shared<Mapping>(segment.fd_, static_cast<std::size_t>(status.st_size));
  }
  return segment;
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this == &other) return *this;
  close();
  name_ = std::move(other.name_);
  mapping_ = std::move(other.mapping_);
  fd_ = std::exchange(other.fd_, -1);
  owner_ = std::exchange(other.owner_, false);
  linked_ = std::exchange(other.linked_, false);
  return *this;
}

Segment::~Segment() { close(); }

void Segment::close() noexcept {
  unlink();
  if (fd_ < 0) return;
  if (owner_) {
    LocalMappings::get().remove(name_);
    OwnerDescriptors::get().remove(fd_);
  }
  mapping_.reset();
  ::close(fd_);
  fd_ = -1;
}

std::byte* Segment::data() const noexcept { return mapping_ ? mapping_->data() : nullptr; }
std::size_t Segment::bytes() const noexcept { return mapping_ ? mapping_->bytes() : 0; }

void Segment::unlink() noexcept {
  if (!std::exchange(linked_, false)) return;
  ::shm_unlink(concat("/", name_).c_str());
}

bool Segment::owner_alive() const noexcept { return fd_ >= 0 && is_locked(fd_); }

int remove_stale_segments() noexcept {
  DIR* directory = ::opendir(kShmDirectory);
  if (directory == nullptr) return 0;
  int removed = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kPrefix)) continue;
    const std::string path = concat("/", name);
    const int fd = ::shm_open(path.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) continue;  // another user's, or gone already
    if (try_lock(fd) && ::shm_unlink(path.c_str()) == 0) ++removed;
    ::close(fd);
  }
  ::closedir(directory);
  return removed;
}

}  // namespace accl::transport
