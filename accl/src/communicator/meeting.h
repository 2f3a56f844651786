// Meeting: ranks tell each other one text each over a store, also over one that still holds what an
// earlier meeting of the same name left there.
//
// Each rank publishes its text under a fresh number. Rank 0 gathers them, publishes the whole list
// under an id of its own, and declares it final when every rank has found its own fresh number in
// it: a list with a text of an earlier time is found out and made anew.
#pragma once

#include <string>
#include <vector>

#include "accl/communicator.h"
#include "accl/store.h"

namespace accl {

struct Meeting {
  std::vector<std::string> texts;  // one a rank
  std::string id;                  // the same on all ranks, and of this meeting alone
};

// Collective. Throws TimeoutError that names a rank that did not come, PeerError with the sentence
// of a rank that declined, StoreError.
Meeting meet(Store& store, const std::string& name, int rank, int size, const std::string& text,
             Milliseconds timeout);

// Tells the others that this rank cannot come, so that they need not wait. Never throws.
void decline_meeting(Store& store, const std::string& name, int rank,
                     const std::string& why) noexcept;

}  // namespace accl
