#include "plugin/source.h"

#include <sys/prctl.h>

#include <array>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "accl/environment.h"
#include "base/text.h"

namespace accl::plugin {

namespace {

// Only NCCL's rows steer here, so ranks whose files differ in other rows agree.
std::string steering_digest(const Rules& rules) {
  std::string text;
  for (const Rule& rule : rules.rows()) {
    if (rule.engine == Engine::kNccl) text += Rules::format(rule) + "\n";
  }
  return Rules::parse(text, rules.name()).digest();
}

std::shared_ptr<Source> from_rules(Rules rules) {
  auto source = std::make_shared<Source>();
  source->digest = rules.digest();
  source->steering = steering_digest(rules);
  source->name = rules.name();
  source->rules = std::move(rules);
  return source;
}

std::shared_ptr<Source> without_rules(std::string name, std::string fault = "") {
  auto source = std::make_shared<Source>();
  source->steering = Rules().digest();
  source->name = std::move(name);
  source->fault = std::move(fault);
  return source;
}

// `read` gives the environment, or throws where a value in it is wrong.
template <class Read>
SourcePtr from_environment(Read read) {
  std::string wanted;
  std::shared_ptr<Source> source;
  try {
    const Environment& values = read();
    wanted = values.rules_digest;
    source = values.rules.empty() ? without_rules("no rules (ACCL_RULES is not set)")
                                  : from_rules(Rules::load(values.rules));
  } catch (const std::exception& error) {
    source = without_rules("no rules (they cannot be used)", error.what());
  }
  source->wanted_digest = wanted;
  return source;
}

struct State {
  std::mutex mutex;
  SourcePtr environment;
  SourcePtr everywhere;
  std::unordered_map<std::string, SourcePtr> by_thread_name;
  std::uint32_t names = 0;
};

State& state() {
  static auto& instance = *new State;  // never destroyed: NCCL may call while the process ends
  return instance;
}

std::string thread_name() {
  std::array<char, 16> name{};
  ::prctl(PR_GET_NAME, name.data());
  return name.data();
}

// What a thread has given to the communicators that it makes.
//
// NCCL makes a communicator in the calling thread, or in a thread that it starts for it (before
// 2.28 always), which sees no thread_local of ours. But Linux gives a new thread its creator's
// name: while rules are given, the name is one of a kind, and they are found by it.
class GivenByThread {
 public:
  GivenByThread() = default;
  ~GivenByThread() { end(); }
  GivenByThread(const GivenByThread&) = delete;
  GivenByThread& operator=(const GivenByThread&) = delete;

  void give(SourcePtr source) {
    end();
    {
      const std::scoped_lock lock(state().mutex);
      name_ = concat("accl:", ++state().names);  // at most 15 characters
      state().by_thread_name[name_] = source;
    }
    source_ = std::move(source);
    former_name_ = thread_name();
    ::prctl(PR_SET_NAME, name_.c_str());
  }

  void end() noexcept {
    if (source_ == nullptr) return;
    source_.reset();
    if (thread_name() == name_) ::prctl(PR_SET_NAME, former_name_.c_str());
    const std::scoped_lock lock(state().mutex);
    state().by_thread_name.erase(name_);
  }

  const SourcePtr& source() const noexcept { return source_; }

 private:
  SourcePtr source_;
  std::string name_;
  std::string former_name_;
};

thread_local GivenByThread given_by_thread;

}  // namespace

SourcePtr current_source() {
  if (given_by_thread.source() != nullptr) return given_by_thread.source();
  const std::string name = thread_name();
  const std::scoped_lock lock(state().mutex);
  const auto inherited = state().by_thread_name.find(name);
  if (inherited != state().by_thread_name.end()) return inherited->second;
  if (state().everywhere != nullptr) return state().everywhere;
  if (state().environment == nullptr) state().environment = from_environment(environment);
  return state().environment;
}

void give_rules(const char* text, const std::string& name, bool everywhere) {
  SourcePtr source;
  if (text != nullptr) source = from_rules(Rules::parse(text, name));
  if (!everywhere) {
    if (source == nullptr) return given_by_thread.end();
    return given_by_thread.give(std::move(source));
  }
  const std::scoped_lock lock(state().mutex);
  state().everywhere = std::move(source);
}

std::uint64_t taken_from_thread() noexcept {
  const SourcePtr& source = given_by_thread.source();
  return source == nullptr ? 0 : source->communicators.load();
}

void reload_source() {
  auto fresh = from_environment([]() -> const Environment& {
    reload_environment();
    return environment();
  });
  const std::scoped_lock lock(state().mutex);
  state().environment = std::move(fresh);
}

}  // namespace accl::plugin
