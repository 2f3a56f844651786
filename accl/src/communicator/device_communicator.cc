#include <utility>

#include "accl/device.h"
#include "accl/environment.h"
#include "accl/error.h"
#include "base/text.h"
#include "communicator/device_core.h"
#include "communicator/device_join.h"
#include "communicator/meeting.h"
#include "communicator/rules_of.h"
#include "engine/nccl/library.h"
#include "engine/nccl/steering.h"

namespace accl {

namespace {

// The caller's handle. Works may outlive it; they share the core.
class Handle final : public DeviceCommunicator {
 public:
  explicit Handle(std::shared_ptr<DeviceCore> core) : core_(std::move(core)) {}
  ~Handle() override { core_->leave_soon(); }

  int rank() const noexcept override { return core_->rank(); }
  int size() const noexcept override { return core_->size(); }
  int nodes() const noexcept override { return core_->nodes(); }
  int device() const noexcept override { return core_->device(); }
  const std::string& name() const noexcept override { return core_->name(); }
  Milliseconds timeout() const noexcept override { return core_->timeout(); }
  void set_timeout(Milliseconds timeout) override { core_->set_timeout(timeout); }
  std::shared_ptr<const Rules> rules() const override { return core_->rules(); }
  int nccl_version() const noexcept override { return nccl::library().version; }
  std::string kernels_unavailable() const override { return core_->why_no_kernels(); }
  bool ready() override { return core_->ready(); }
  std::shared_ptr<DeviceWork> enqueue(const Call& call, DeviceStream stream) override {
    return core_->enqueue(call, static_cast<driver::Stream>(stream));
  }
  std::shared_ptr<DeviceWork> enqueue_group(const std::vector<Call>& calls,
                                            DeviceStream stream) override {
    return core_->enqueue_group(calls, static_cast<driver::Stream>(stream));
  }
  void follow(DeviceStream stream, DeviceStream after) override {
    core_->follow(static_cast<driver::Stream>(stream), static_cast<driver::Stream>(after));
  }
  std::pair<Engine, Choice> choice_for(const Call& call) const override {
    return core_->choice_for(call);
  }
  std::shared_ptr<DeviceCommunicator> split(int color, int key,
                                            const DeviceOptions& options) override {
    auto child = core_->split(color, key, options);
    return child == nullptr ? nullptr : std::make_shared<Handle>(std::move(child));
  }
  void abort(const std::string& reason) override { core_->abort(reason); }
  std::exception_ptr error() const override { return core_->error(); }
  void shutdown() override { core_->shutdown(); }
  DeviceStatistics statistics() const override { return core_->statistics(); }
  std::string trace_json() const override { return core_->trace_json(); }

 private:
  std::shared_ptr<DeviceCore> core_;
};

}  // namespace

std::shared_ptr<DeviceCommunicator> DeviceCommunicator::create(std::shared_ptr<Store> store,
                                                               int rank, int size,
                                                               const DeviceOptions& options) {
  check_membership(rank, size, options);
  std::shared_ptr<const Rules> rules;
  try {
    rules = rules_of(options);
  } catch (const Error& error) {
    decline_meeting(*store, concat(options.name, "/device"), rank, error.what());
    throw;
  }
  DeviceParts parts = join_device(std::move(store), rank, size, rules, options);
  auto core = std::make_shared<DeviceCore>(std::move(parts), options);
  if (options.blocking) {
    if (const std::string fault = nccl::steering_fault(*rules); !fault.empty()) {
      core->abort(fault);
      throw SystemError(fault, 0);
    }
  }
  start_watching(core);
  return std::make_shared<Handle>(std::move(core));
}

bool DeviceCommunicator::available(std::string* why) noexcept {
  try {
    int count = 0;
    driver::check(driver::table().device_count(&count), "cuDeviceGetCount");
    if (count == 0) throw SystemError("This process sees no GPU.", 0);
    nccl::library();
    return true;
  } catch (const std::exception& error) {
    if (why != nullptr) *why = error.what();
    return false;
  }
}

}  // namespace accl
