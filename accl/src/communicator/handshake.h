// Handshake: how ranks become a communicator. Each publishes one value in the store and reads the
// others'; all compare, so that whatever does not agree is an error on every rank.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "accl/communicator.h"
#include "accl/store.h"
#include "transport/shm/shm_transport.h"

namespace accl {

struct Handshake {
  std::unique_ptr<transport::ShmTransport> transport;
  int nodes = 1;
};

// Collective. Throws what Communicator::create throws.
Handshake shake_hands(Store& store, int rank, int size, const std::string& name,
                      const std::string& rules_digest, Milliseconds timeout);

// Tells the other ranks that this one cannot take part, so that they need not wait. Never throws.
void decline(Store& store, int rank, const std::string& name, const std::string& why) noexcept;

}  // namespace accl
