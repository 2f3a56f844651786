// The key-value store over which ranks find each other. ACCL-N has none of its own: torch's Store,
// an mpi4py communicator or a directory gives one. It is used while a communicator is made, and not
// after.
#pragma once

#include <chrono>
#include <string>

namespace accl {

class Store {
 public:
  virtual ~Store() = default;

  // Values are never empty and may hold any byte. Throws StoreError (or an exception of the
  // implementation).
  virtual void set(const std::string& key, const std::string& value) = 0;

  // Waits until the key is there. Throws TimeoutError or StoreError after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace accl
