#include "plugin/source.h"

#include <exception>
#include <mutex>
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
};

State& state() {
  static auto& instance = *new State;  // never destroyed: NCCL may call while the process ends
  return instance;
}

thread_local SourcePtr given_to_thread;

}  // namespace

SourcePtr current_source() {
  if (given_to_thread != nullptr) return given_to_thread;
  const std::scoped_lock lock(state().mutex);
  if (state().everywhere != nullptr) return state().everywhere;
  if (state().environment == nullptr) state().environment = from_environment(environment);
  return state().environment;
}

void give_rules(const char* text, const std::string& name, bool everywhere) {
  SourcePtr source;
  if (text != nullptr) source = from_rules(Rules::parse(text, name));
  if (!everywhere) {
    given_to_thread = std::move(source);
    return;
  }
  const std::scoped_lock lock(state().mutex);
  state().everywhere = std::move(source);
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
