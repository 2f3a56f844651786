// torch's key-value store as the store of a communicator.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accl/store.h"

namespace accl::adapter {

// Uses set, wait and get alone, which every store of torch has (also those written in Python).
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accl::adapter
