#include "store.h"

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "accl/error.h"

namespace accl::adapter {

TorchStore::TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& e) {
    throw StoreError("The store could not set the key \"" + key + "\": " + e.what());
  }
}

std::string TorchStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  try {
    store_->wait({key}, timeout);
    const auto value = store_->get(key);
    return {value.begin(), value.end()};
  } catch (const std::exception& e) {
    // The stores of torch throw one type for both, so the clock has to tell a late key from a lost
    // store.
    if (std::chrono::steady_clock::now() - start < timeout) {
      throw StoreError("The store could not get the key \"" + key + "\": " + e.what());
    }
    throw TimeoutError("No rank set the key \"" + key + "\" in the store within " +
                       std::to_string(timeout.count()) + " ms.");
  }
}

}  // namespace accl::adapter
