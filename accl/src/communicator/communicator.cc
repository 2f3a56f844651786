#include "accl/communicator.h"

#include <utility>

#include "accl/error.h"
#include "base/text.h"
#include "communicator/core.h"
#include "communicator/handshake.h"
#include "communicator/rules_of.h"

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

}  // namespace

std::shared_ptr<Communicator> Communicator::create(Store& store, int rank, int size,
                                                   const CommunicatorOptions& options) {
  check_membership(rank, size, options);
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
