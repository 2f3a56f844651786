// Rules for NCCL reach it through the tuner plugin, in the communicators that have them, and it is
// an error where they cannot. The library, NCCL and the plugin read the environment and look for
// each other once a process, so each case is this program again, in an environment of its own.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "device/devices.h"
#include "unit/temporary_directory.h"

// The fake NCCL, linked: another user of NCCL in the process.
namespace accl::nccl {
#define FAKE_DECLARE(member, symbol, parameters) \
  extern "C" Result nccl_##member parameters __asm__(symbol);
ACCL_NCCL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
}  // namespace accl::nccl

namespace accl::test {
namespace {

using Variables = std::vector<std::string>;  // "NAME=value"

constexpr const char* kAlone = "DEVICE_STEERING_ALONE";

// Of the tuner interface 4, 5 and 6. (Before 2.27 communicators have no names, which the log is
// by.)
const std::vector<std::string> kVersions = {"22705", "22809", "23004"};

bool is_steering_variable(const std::string& variable) {
  for (const char* start : {"NCCL_TUNER_PLUGIN=", "ACCL_RULES=", "ACCL_RULES_DIGEST=",
                            "FAKE_NCCL_VERSION=", "NCCL_HOSTID="}) {
    if (variable.starts_with(start)) return true;
  }
  return false;
}

// Runs the test `name` in a program of its own.
void run_alone(const char* name, Variables variables = {}) {
  variables.push_back(std::string(kAlone) + "=1");
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_steering_variable(*variable)) variables.emplace_back(*variable);
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string program = "device_steering";
  std::string filter = name;
  char* arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = 0;
  CHECK_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()),
           0);
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

// A test whose body runs alone, once for each list of variables.
#define TEST_ALONE(name, ...)                                                   \
  static void alone_##name();                                                   \
  TEST(name) {                                                                  \
    if (std::getenv(kAlone) != nullptr) return alone_##name();                  \
    for (const Variables& variables : __VA_ARGS__) run_alone(#name, variables); \
  }                                                                             \
  static void alone_##name()

std::vector<Variables> each_version(const Variables& more = {}) {
  std::vector<Variables> lists;
  for (const std::string& version : kVersions) {
    lists.push_back(more);
    lists.back().push_back("FAKE_NCCL_VERSION=" + version);
  }
  return lists;
}

std::vector<Variables> each(const Variables& variables) {
  std::vector<Variables> lists;
  for (const std::string& variable : variables) lists.push_back({variable});
  return lists;
}

std::shared_ptr<const Rules> rules_from(const std::string& text) {
  return std::make_shared<const Rules>(Rules::parse(text, "test.csv"));
}

std::shared_ptr<const Rules> tree_of(int channels) {
  return rules_from("allreduce,0,1024,tree,simple," + std::to_string(channels) +
                    ",-1,-1,-1,-1,nccl\n");
}

DeviceOptions with_rules(std::shared_ptr<const Rules> rules, int device = 0) {
  DeviceOptions options = device_options();
  options.device = device;
  options.rules = std::move(rules);
  return options;
}

void all_reduce(DeviceCommunicator& communicator, const OwnStream& stream, std::size_t count) {
  const Memory memory(4 * count);
  CHECK(communicator.enqueue(all_reduce_of(memory, count), stream)->wait());
}

// What NCCL chose in the last call: the end of its line, " algorithm=tree protocol=..."; empty
// where it asked no tuner.
std::string last_choice(const std::string& name, int rank) {
  std::string log = log_of(name, rank);
  while (!log.empty() && log.back() == '\n') log.pop_back();
  const std::string line = log.substr(log.rfind('\n') + 1);
  const std::size_t at = line.find(" algorithm=");
  return at == std::string::npos ? "" : line.substr(at, line.find(" chunk=") - at);
}

std::string tree_choice(int channels) {
  return " algorithm=tree protocol=simple channels=" + std::to_string(channels);
}

const std::string kOwnChoice = " algorithm=ring protocol=ll channels=0";

// What NCCL chooses for 32 bytes in a communicator that somebody makes without us. Of two ranks:
// one alone has nothing to choose.
std::string choice_without_us(const std::string& name) {
  nccl::UniqueId id{};
  CHECK_EQ(nccl::nccl_get_unique_id(&id), nccl::kSuccess);
  std::string choices[2];
  rethrow_first(on_devices(2, [&](int rank) {
    nccl::Config config;
    config.comm_name = name.c_str();
    nccl::Comm comm = nullptr;
    CHECK_EQ(nccl::nccl_comm_init(&comm, 2, id, rank, &config), nccl::kSuccess);
    const OwnStream stream;
    const Memory memory(std::size_t{32});
    CHECK_EQ(nccl::nccl_all_reduce(memory.data(), memory.data(), 8, nccl::Type::kInt32, nccl::kSum,
                                   comm, stream),
             nccl::kSuccess);
    stream.synchronize();
    CHECK(log_of(name, rank).find("ncclAllReduce count=8") != std::string::npos);
    choices[rank] = last_choice(name, rank);
    CHECK_EQ(nccl::nccl_comm_destroy(comm), nccl::kSuccess);
  }));
  CHECK_EQ(choices[0], choices[1]);
  return choices[0];
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) FAIL("'" + word + "' is not in: " + text);
  }
}

// Every rank says it, none hangs, and ranks without rules can do without the plugin.
void expect_refused(const std::vector<std::string>& words) {
  const auto errors = run_devices_with_errors(2, with_rules(tree_of(5)), [](const DeviceRank&) {
    FAIL("a communicator was made although its rules cannot reach NCCL");
  });
  for (const std::exception_ptr& error : errors) {
    CHECK(error != nullptr);
    CHECK(is_kind<SystemError>(error));
    expect_words(text_of(error), words);
  }
  const auto for_others = rules_from(
      "allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n"
      "allreduce,0,64,direct,-1,-1,-1,-1,-1,-1,cuda\n");
  for (const auto& rules : {std::shared_ptr<const Rules>(), for_others}) {
    const DeviceOptions options = with_rules(rules);
    run_devices(2, options, [&](const DeviceRank& r) {
      all_reduce(*r.communicator, r.stream, 8);
      CHECK_EQ(last_choice(options.name, r.rank), "");
    });
  }
}

TEST_ALONE(device_steering_reaches_each_communicator_alone, each_version()) {
  const DeviceOptions ruled = with_rules(tree_of(5));
  const DeviceOptions other = with_rules(tree_of(7));
  const DeviceOptions plain = device_options();
  const auto stores = std::vector{std::make_shared<HashStore>(), std::make_shared<HashStore>(),
                                  std::make_shared<HashStore>()};
  rethrow_first(on_devices(2, [&](int rank) {
    const OwnStream stream;
    std::vector<std::shared_ptr<DeviceCommunicator>> made;
    const std::vector<const DeviceOptions*> all = {&ruled, &plain, &other};
    for (std::size_t i = 0; i < all.size(); ++i) {
      DeviceOptions own = *all[i];
      own.device = rank;
      made.push_back(DeviceCommunicator::create(stores[i], rank, 2, own));
    }
    for (const auto& communicator : made) all_reduce(*communicator, stream, 8);
    CHECK_EQ(last_choice(ruled.name, rank), tree_choice(5));
    CHECK_EQ(last_choice(plain.name, rank), kOwnChoice);
    CHECK_EQ(last_choice(other.name, rank), tree_choice(7));
    all_reduce(*made[0], stream, 257);  // beyond the rule's range
    CHECK_EQ(last_choice(ruled.name, rank), kOwnChoice);
    for (const auto& communicator : made) communicator->shutdown();
  }));
  CHECK_EQ(choice_without_us("without us"), kOwnChoice);
}

TEST_ALONE(device_steering_gives_a_chunk_where_nccl_asks_for_one,
           each({"FAKE_NCCL_VERSION=23004"})) {
  const DeviceOptions options =
      with_rules(rules_from("allreduce,0,-1,ring,simple,2,-1,-1,-1,-1,nccl,65536\n"));
  run_devices(2, options, [&](const DeviceRank& r) {
    all_reduce(*r.communicator, r.stream, 8);
    expect_words(log_of(options.name, r.rank),
                 {"algorithm=ring protocol=simple channels=2 chunk=65536"});
  });
}

TEST_ALONE(device_steering_follows_a_split, each_version()) {
  const DeviceOptions options = with_rules(tree_of(5));
  run_devices(2, options, [&](const DeviceRank& r) {
    DeviceOptions heir = with_rules(nullptr, r.rank);
    heir.name = options.name + "/heir";
    DeviceOptions own = with_rules(tree_of(9), r.rank);
    own.name = options.name + "/own";
    DeviceOptions none = with_rules(rules_from("# no rules\n"), r.rank);
    none.name = options.name + "/none";
    const std::vector<std::pair<DeviceOptions, std::string>> expected = {
        {heir, tree_choice(5)}, {own, tree_choice(9)}, {none, kOwnChoice}};
    for (const auto& [child_options, choice] : expected) {
      const auto child = r.communicator->split(0, r.rank, child_options);
      all_reduce(*child, r.stream, 8);
      CHECK_EQ(last_choice(child_options.name, r.rank), choice);
      child->shutdown();
    }
    all_reduce(*r.communicator, r.stream, 8);
    CHECK_EQ(last_choice(options.name, r.rank), tree_choice(5));
  });
}

TEST_ALONE(device_steering_too_late_is_said_at_the_first_call_where_nobody_waited, each_version()) {
  CHECK_EQ(choice_without_us("early"), "");
  DeviceOptions options = with_rules(tree_of(5));
  options.blocking = false;
  const auto errors = run_devices_with_errors(2, options, [](const DeviceRank& r) {
    all_reduce(*r.communicator, r.stream, 8);
    FAIL("a call was made although the rules cannot reach NCCL");
  });
  for (const std::exception_ptr& error : errors) {
    CHECK(error != nullptr);
    expect_words(text_of(error), {"test.csv", "first communicator"});
  }
}

TEST_ALONE(device_steering_too_late_is_an_error_that_names_the_plugin, each_version()) {
  CHECK_EQ(choice_without_us("early"), "");
  expect_refused(
      {"test.csv", "first communicator", "NCCL_TUNER_PLUGIN=/", "libaccl-nccl-tuner.so"});
}

TEST_ALONE(device_steering_beside_another_tuner_is_an_error_that_names_it,
           each({"NCCL_TUNER_PLUGIN=none", "NCCL_TUNER_PLUGIN=/nowhere/libother.so"})) {
  const std::string chosen = std::getenv("NCCL_TUNER_PLUGIN");
  expect_refused(
      {"test.csv", "NCCL_TUNER_PLUGIN is '" + chosen + "'", "unset it", "libaccl-nccl-tuner.so"});
  CHECK_EQ(std::string(std::getenv("NCCL_TUNER_PLUGIN")), chosen);
}

// Also where the parent has no rules, and so was made.
TEST_ALONE(device_steering_that_a_split_cannot_have_is_an_error, each({"NCCL_TUNER_PLUGIN=none"})) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    CHECK_THROWS(SystemError, "NCCL_TUNER_PLUGIN is 'none'",
                 r.communicator->split(0, r.rank, with_rules(tree_of(5), r.rank)));
    all_reduce(*r.communicator, r.stream, 8);
  });
}

// The digest of the whole file, as the plugin compares it where NCCL is used without us; what we
// give it are the rows for NCCL alone.
TEST(device_steering_by_the_environment_takes_the_digest_of_the_file) {
  const char* const name = "device_steering_by_the_environment_takes_the_digest_of_the_file";
  const std::string text =
      "# a comment\n"
      "allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n"
      "allreduce,0,1024,tree,simple,5,-1,-1,-1,-1\n";
  if (std::getenv(kAlone) == nullptr) {
    const TemporaryDirectory folder;
    const std::string path = folder.write("rules.csv", text);
    for (Variables variables : each_version({"ACCL_RULES=" + path})) {
      variables.push_back("ACCL_RULES_DIGEST=" + Rules::load(path).digest());
      run_alone(name, variables);
    }
    return;
  }
  const DeviceOptions options = device_options();
  run_devices(2, options, [&](const DeviceRank& r) {
    all_reduce(*r.communicator, r.stream, 8);
    CHECK_EQ(last_choice(options.name, r.rank), tree_choice(5));
  });
  CHECK_EQ(choice_without_us("without us"), tree_choice(5));
}

}  // namespace
}  // namespace accl::test
