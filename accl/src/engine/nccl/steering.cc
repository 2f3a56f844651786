#include "engine/nccl/steering.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <system_error>

#include "accl/error.h"
#include "base/log.h"
#include "base/process_environment.h"
#include "base/text.h"
// The plugin's control interface is plain C; the plugin itself is loaded, not linked.
#include "plugin/accl_tuner.h"

namespace accl::nccl {

namespace {

constexpr const char* kVariable = "NCCL_TUNER_PLUGIN";
constexpr const char* kFile = "libaccl-nccl-tuner.so";

struct Plugin {
  std::string path;   // of ours, where it lies beside this library
  std::string fault;  // why NCCL does not load it
  decltype(&accl_tuner_give_rules) give_rules = nullptr;
  decltype(&accl_tuner_report) report = nullptr;
  decltype(&accl_tuner_error) error = nullptr;
};

std::string path_beside_us() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&path_beside_us), &own) == 0 || own.dli_fname == nullptr)
    return kFile;
  std::error_code ignored;
  return (std::filesystem::absolute(own.dli_fname, ignored).parent_path() / kFile).string();
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored);
}

template <class Function>
void find(void* library, const char* symbol, Function*& function, Plugin& plugin) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (function == nullptr) plugin.fault = concat(plugin.path, " has no ", symbol);
}

Plugin load() {
  Plugin plugin;
  plugin.path = path_beside_us();
  set_environment_default(kVariable, plugin.path);
  const std::string chosen = environment_value(kVariable);
  if (!same_file(chosen, plugin.path)) {
    plugin.fault = concat(kVariable, " chooses another tuner (", chosen, "); unset it");
    return plugin;
  }
  void* library = dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    plugin.fault = concat("the plugin cannot be loaded (", why == nullptr ? plugin.path : why,
                          "); install accl-n again");
    return plugin;
  }
  find(library, "accl_tuner_give_rules", plugin.give_rules, plugin);
  find(library, "accl_tuner_report", plugin.report, plugin);
  find(library, "accl_tuner_error", plugin.error, plugin);
  return plugin;
}

const Plugin& plugin() {
  static const auto& loaded = *new Plugin(load());
  return loaded;
}

// All rows, so that their digest is what ACCL_RULES_DIGEST asks for.
std::string text_of(const Rules& rules) {
  std::string text;
  for (const Rule& rule : rules.rows()) text += Rules::format(rule) + "\n";
  return text;
}

bool concern_nccl(const Rules& rules) {
  for (const Rule& rule : rules.rows()) {
    if (rule.engine == Engine::kNccl) return true;
  }
  return false;
}

}  // namespace

void prepare_steering() { plugin(); }

SteeringScope::SteeringScope(const Rules& rules, const std::string& name, bool everywhere)
    : everywhere_(everywhere) {
  const Plugin& tuner = plugin();
  if (!tuner.fault.empty()) return;
  const std::string text = text_of(rules);
  if (tuner.give_rules(text.c_str(), name.c_str(), everywhere ? 1 : 0) != 0)
    throw InternalError(concat("The tuner plugin refused rules: ", tuner.error()));
  given_ = true;
}

SteeringScope::~SteeringScope() {
  if (given_) plugin().give_rules(nullptr, nullptr, everywhere_ ? 1 : 0);
}

std::string steering_fault(const Rules& rules) {
  if (!concern_nccl(rules)) return {};
  const Plugin& tuner = plugin();
  std::string why = tuner.fault;
  if (why.empty()) {
    accl_tuner_last last{};
    last.size = sizeof last;
    if (tuner.report(&last) != 0)
      why = "the plugin is of another version; install accl-n again";
    else if (last.communicators == 0)
      why = concat(
          "NCCL made its first communicator of this process before, and looks for a tuner "
          "then only; make a group of accl first, or start the program with ",
          kVariable, "=", tuner.path);
  }
  if (why.empty()) return {};
  return concat("The rules for NCCL of ", rules.name(), " do not reach it: ", why, ".");
}

}  // namespace accl::nccl
