// What of NCCL meets a tuner plugin: it looks for one once, when it makes its first communicator,
// and calls init in the calling thread or in threads of its own, by version and way of the call.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "plugin/nccl_tuner_abi.h"

namespace accl::test {

enum class InitThread {
  kCaller,         // 2.28 and later, a blocking call outside of a group
  kOwn,            // before 2.28, and groups
  kOwnOfOwnThread  // nonblocking: a thread for the group, which starts one for each job
};

// What a table of NCCL's says when the tuner has had its way.
struct Chosen {
  int algorithm = -1;
  int protocol = -1;
  int channels = 0;
  bool operator==(const Chosen&) const = default;
};

// NCCL's own choice in the table below.
inline constexpr Chosen kOwnChoice{plugin::kNcclRing, plugin::kNcclLl, 0};

class StandIn {
 public:
  // `interface`: the newest version of the tuner interface that it knows.
  explicit StandIn(int interface, InitThread thread = InitThread::kCaller)
      : interface_(interface), thread_(thread) {}

  class Communicator {
   public:
    ~Communicator() {
      if (tuner_ != nullptr) tuner_->finalize(context_);
    }
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    plugin::NcclResult result() const { return result_; }

    Chosen all_reduce(std::size_t bytes) const {
      float table[7][3];
      for (auto& row : table) {
        for (float& cost : row) cost = 50;
      }
      table[kOwnChoice.algorithm][kOwnChoice.protocol] = 40;
      Chosen chosen{0, 0, 0};
      if (tuner_ != nullptr) {
        tuner_->get_coll_info(context_, plugin::kNcclAllReduce, bytes, 1,
                              reinterpret_cast<float**>(table), 7, 3, 0, &chosen.channels);
      }
      for (int a = 0; a < 7; ++a) {
        for (int p = 0; p < 3; ++p) {
          if (table[a][p] < table[chosen.algorithm][chosen.protocol])
            chosen = {a, p, chosen.channels};
        }
      }
      return chosen;
    }

   private:
    friend class StandIn;
    const plugin::NcclTunerV6* tuner_ = nullptr;  // versions differ behind the fourth member only
    void* context_ = nullptr;
    plugin::NcclResult result_ = plugin::NcclResult::kSuccess;
  };

  // Makes a communicator of a fresh id, and waits until it is there.
  void make(Communicator& made) {
    const auto init = [&] { start(made); };
    if (thread_ == InitThread::kCaller) return init();
    std::thread([&] {
      if (thread_ == InitThread::kOwn) return init();
      std::thread(init).join();
    }).join();
  }

 private:
  const int interface_;
  const InitThread thread_;

  const plugin::NcclTunerV6* find_tuner() const {
    const char* path = std::getenv("NCCL_TUNER_PLUGIN");
    void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    const std::string symbol = "ncclTunerPlugin_v" + std::to_string(interface_);
    return static_cast<const plugin::NcclTunerV6*>(dlsym(library, symbol.c_str()));
  }

  void start(Communicator& made) const {
    static const plugin::NcclTunerV6* const tuner = find_tuner();
    if (tuner == nullptr) return;
    static std::atomic<std::uint64_t> ids = std::uint64_t{0xACC3} << 48;
    constexpr std::size_t kRanks = 4;
    if (interface_ == 4) {
      const auto init = reinterpret_cast<const plugin::NcclTunerV4*>(tuner)->init;
      made.result_ = init(kRanks, 1, nullptr, &made.context_);
    } else {
      made.result_ = tuner->init(&made.context_, ++ids, kRanks, 1, nullptr, nullptr, nullptr);
    }
    if (made.result_ == plugin::NcclResult::kSuccess) made.tuner_ = tuner;
  }
};

}  // namespace accl::test
