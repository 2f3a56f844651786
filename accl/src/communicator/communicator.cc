#include "accl/communicator.h"

#include <utility>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/text.h"
#include "communicator/core.h"
#include "communicator/handshake.h"

namespace accl {

namespace {

// The caller's handle. Works may outlive it; they share the core.
class Handle final : public Communicator {
 public:
  explicit Handle(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Handle() override { core_->leave_soon(); }

  int rank() const noexcept override { return core_->rank(); }
  int size() const noexcept override { return core_->size(); }
  int nodes() const noexcept override { return core_->nodes(); }
  const std::string& name() const noexcept override { return core_->name(); }
  Milliseconds timeout() const noexcept override { return core_->timeout(); }
  void set_timeout(Milliseconds timeout) override { core_->set_timeout(timeout); }
  std::shared_ptr<const Rules> rules() const override { return core_->rules(); }
  std::shared_ptr<Work> post(const Call& call) override { return core_->post(call); }
  std::shared_ptr<Work> post_group(const std::vector<Call>& calls) override {
    return core_->post_group(calls);
  }
  Choice choice_for(const Call& call) const override { return core_->choice_for(call); }
  void abort(const std::string& reason) override { core_->abort(reason); }
  std::exception_ptr error() const override { return core_->error(); }
  void shutdown() override { core_->shutdown(); }
  Statistics statistics() const override { return core_->statistics(); }
  std::string trace_json() const override { return core_->trace_json(); }

 private:
  std::shared_ptr<Core> core_;
};

void check(int rank, int size, const CommunicatorOptions& options) {
  if (size < 1)
    throw InvalidArgument(concat("size ", size, "; expected the number of ranks, at least 1."));
  if (rank < 0 || rank >= size)
    throw InvalidArgument(
        concat("rank ", rank, "; expected 0 to ", size - 1, " for size ", size, "."));
  if (options.timeout <= Milliseconds::zero()) {
    throw InvalidArgument(
        concat("timeout ", options.timeout.count(), " ms; expected more than 0."));
  }
  if (options.name.empty())
    throw InvalidArgument("The communicator's name is empty; expected at least one character.");
}

std::shared_ptr<const Rules> rules_of(const CommunicatorOptions& options) {
  if (options.rules != nullptr) return options.rules;
  const std::string& path = options.rules_file.empty() ? environment().rules : options.rules_file;
  if (path.empty()) return {std::shared_ptr<const Rules>{}, &Rules::defaults()};
  return std::make_shared<const Rules>(Rules::load(path));
}

}  // namespace

std::shared_ptr<Communicator> Communicator::create(Store& store, int rank, int size,
                                                   const CommunicatorOptions& options) {
  check(rank, size, options);
  std::shared_ptr<const Rules> rules;
  try {
    rules = rules_of(options);
  } catch (const Error& error) {
    decline(store, rank, options.name, error.what());
    throw;
  }
  Handshake handshake =
      shake_hands(store, rank, size, options.name, rules->digest(), options.timeout);
  return std::make_shared<Handle>(
      std::make_shared<Core>(std::move(handshake), rank, size, options, std::move(rules)));
}

}  // namespace accl
