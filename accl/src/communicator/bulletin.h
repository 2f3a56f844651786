// Bulletin: what ranks of a device communicator tell each other while it lives, over the store:
// that one has failed, and, when asked, what each did last. Read by the watchdog now and then, so
// that it costs a store of thousands of ranks little.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "accl/communicator.h"
#include "accl/store.h"

namespace accl {

class Bulletin {
 public:
  Bulletin(std::shared_ptr<Store> store, std::string id, int rank, int size);

  struct Notice {
    bool fault = false;  // else a question
    int rank = 0;        // whose
    std::string text;    // of the fault; of the question: its number
  };

  // The latest notice, if there is one. Never throws: a store that fails is not asked again.
  std::optional<Notice> read() noexcept;

  void report_fault(const std::string& text) noexcept;

  // Asks all ranks what they did last. `number` tells this question from others.
  void ask(const std::string& number) noexcept;
  void answer(const std::string& number, const std::string& text) noexcept;

  // The answer of a rank; nullopt where none came in time.
  std::optional<std::string> wait_for_answer(const std::string& number, int rank,
                                             Milliseconds timeout) noexcept;

  void leave() noexcept;  // says that this rank has left in peace
  bool has_left(int rank) noexcept;

  // How often the notice should be read: seldom where there are many ranks.
  Milliseconds interval() const noexcept;

 private:
  void set(const std::string& key, const std::string& value) noexcept;
  std::optional<std::string> get(const std::string& key, Milliseconds timeout) noexcept;

  const std::shared_ptr<Store> store_;
  const std::string base_;
  const int rank_;
  const int size_;
  int failures_ = 0;  // in a row
};

}  // namespace accl
