#include "engine/nccl/steering.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <system_error>

#include "accl/error.h"
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
  decltype(&accl_tuner_taken) taken = nullptr;
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

template <class Function>
bool find(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
  return function != nullptr;
}

bool find_all(void* library, Plugin& plugin) {
  return find(library, "accl_tuner_give_rules", plugin.give_rules) &&
         find(library, "accl_tuner_taken", plugin.taken) &&
         find(library, "accl_tuner_report", plugin.report) &&
         find(library, "accl_tuner_error", plugin.error);
}

// What the user chose may be our plugin under another name or path: then that one is driven.
Plugin load() {
  Plugin plugin;
  plugin.path = path_beside_us();
  const std::string chosen = environment_variable(kVariable).value_or(plugin.path);
  // Stays loaded: NCCL loads the same object.
  void* library = chosen.empty() ? nullptr : dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* why = library == nullptr ? dlerror() : nullptr;
  if (library != nullptr && find_all(library, plugin)) {
    set_environment_default(kVariable, plugin.path);
  } else if (chosen == plugin.path) {
    plugin.fault =
        concat("the plugin cannot be used (", why == nullptr ? "it is of another version" : why,
               "); install accl-n again");
  } else {
    plugin.fault = concat(kVariable, " is '", chosen, "', another tuner; unset it, or set it to ",
                          plugin.path);
  }
  return plugin;
}

const Plugin& plugin() {
  static const auto& loaded = *new Plugin(load());
  return loaded;
}

// The rows for NCCL, each on the line that it has in its file, which the plugin's messages name.
std::string rows_for_nccl(const Rules& rules) {
  std::string text;
  int line = 1;
  for (const Rule& rule : rules.rows()) {
    if (rule.engine != Engine::kNccl) continue;
    for (; line < rule.line; ++line) text += '\n';
    text += Rules::format(rule) + "\n";
    ++line;
  }
  return text;
}

std::string digest_for_nccl(const Rules& rules) {
  return Rules::parse(rows_for_nccl(rules), rules.name()).digest();
}

bool concern_nccl(const Rules& rules) {
  return std::any_of(rules.rows().begin(), rules.rows().end(),
                     [](const Rule& rule) { return rule.engine == Engine::kNccl; });
}

// Digests of the rows that a communicator of a scope has taken. Asked after the scope has ended, in
// another thread.
class Reached {
 public:
  static Reached& get() {
    static auto& instance = *new Reached;
    return instance;
  }
  void add(const std::string& digest) {
    const std::scoped_lock lock(mutex_);
    digests_.insert(digest);
  }
  bool has(const std::string& digest) {
    const std::scoped_lock lock(mutex_);
    return digests_.count(digest) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> digests_;
};

// How many communicators NCCL has made with the plugin; -1 where the plugin does not say.
long long communicators(const Plugin& tuner) {
  accl_tuner_last last{};
  last.size = sizeof last;
  return tuner.report(&last) == 0 ? static_cast<long long>(last.communicators) : -1;
}

std::string why_not_reached(const Plugin& tuner, const Rules& rules) {
  if (!tuner.fault.empty()) return tuner.fault;
  const long long made = communicators(tuner);
  if (made < 0) return "the plugin is of another version; install accl-n again";
  if (made == 0) {
    return concat(
        "NCCL made its first communicator of this process before accl could name its tuner plugin, "
        "and looks for one then only; make a group of accl first, or start the program with ",
        kVariable, "=", tuner.path);
  }
  if (!Reached::get().has(digest_for_nccl(rules)))
    return "this version of NCCL made the communicator in a thread where they are not found; start "
           "the program with ACCL_RULES and without rules of the communicator's own";
  return {};
}

}  // namespace

void prepare_steering() { plugin(); }

SteeringScope::SteeringScope(const Rules& rules) {
  const Plugin& tuner = plugin();
  if (!tuner.fault.empty()) return;
  if (tuner.give_rules(rows_for_nccl(rules).c_str(), rules.name().c_str(), 0) != 0)
    throw InternalError(concat("The tuner plugin refused rules: ", tuner.error()));
  given_ = true;
  digest_ = digest_for_nccl(rules);
}

SteeringScope::~SteeringScope() {
  if (!given_) return;
  try {
    if (plugin().taken() > 0) Reached::get().add(digest_);
  } catch (const std::exception&) {
    // No memory for the note: steering_fault then says too much rather than too little.
  }
  plugin().give_rules(nullptr, nullptr, 0);
}

std::string steering_fault(const Rules& rules) {
  if (!concern_nccl(rules)) return {};
  const std::string why = why_not_reached(plugin(), rules);
  if (why.empty()) return {};
  return concat("The rules for NCCL of ", rules.name(), " do not reach it: ", why, ".");
}

}  // namespace accl::nccl
