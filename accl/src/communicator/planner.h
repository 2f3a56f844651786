// Planner: from a call to the schedule that runs it: forced choice, else rules, else the registry's
// default.
//
// Plans of even calls are kept, since training repeats the same shapes. Thread-safe by the
// communicator's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "accl/communicator.h"
#include "communicator/validate.h"

namespace accl {

struct Plan {
  const Algorithm* algorithm = nullptr;
  std::shared_ptr<const Schedule> schedule;
  Choice choice;                 // what the schedule really uses, every field filled in
  std::size_t inline_limit = 0;  // bytes
  std::uint64_t choice_digest = 0;
};

class Planner {
 public:
  Planner(std::shared_ptr<const Rules> rules, int rank, int ranks, int nodes);

  // Throws InvalidArgument for a forced choice that does not exist or does not fit.
  const Plan& plan(const Call& call, const CallSizes& sizes);

  const std::shared_ptr<const Rules>& rules() const noexcept { return rules_; }

 private:
  struct Key {
    Collective collective;
    std::size_t block_bytes;
    std::size_t element_bytes;
    int root;
    Choice forced;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key&) const noexcept;
  };

  Plan make(const Call& call, const CallSizes& sizes) const;
  Choice choose(const Call& call, const CallSizes& sizes) const;

  std::shared_ptr<const Rules> rules_;
  int rank_;
  int ranks_;
  int nodes_;
  using Plans = std::unordered_map<Key, Plan, KeyHash>;
  Plans plans_;
  const Plans::value_type* latest_ = nullptr;  // in plans_
  Plan uneven_;                                // the latest
};

}  // namespace accl
