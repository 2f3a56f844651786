// Rules reach NCCL's communicators of a scope, and no others, with the real plugin and a stand-in
// for NCCL. Each test is a process of its own: NCCL looks for its tuner once.
#include "engine/nccl/steering.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <latch>
#include <thread>
#include <vector>

#include "harness/test.h"
#include "plugin/accl_tuner.h"
#include "steering/nccl_stand_in.h"
#include "unit/temporary_directory.h"

namespace accl::test {
namespace {

using nccl::prepare_steering;
using nccl::steering_fault;
using nccl::SteeringScope;
using plugin::kNcclSimple;
using plugin::kNcclTree;

constexpr std::array kThreads = {InitThread::kCaller, InitThread::kOwn,
                                 InitThread::kOwnOfOwnThread};

// Runs `body` in a child, whose environment says nothing; what it prints is seen.
void in_a_process(const std::function<void()>& body) {
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"NCCL_TUNER_PLUGIN", "ACCL_RULES", "ACCL_RULES_DIGEST"})
      unsetenv(name);
    int status = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << "     " << error.what() << std::endl;
      status = 1;
    }
    std::_Exit(status);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

Rules tree_of(int channels) {
  return Rules::parse("allreduce,0,1024,tree,simple," + std::to_string(channels) + ",-1,-1,-1,-1\n",
                      "test.csv");
}

Chosen tree_choice(int channels) { return {kNcclTree, kNcclSimple, channels}; }

void make_in_scope(StandIn& nccl, StandIn::Communicator& made, const Rules& rules) {
  const SteeringScope scope(rules);
  nccl.make(made);
}

std::string thread_name() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) FAIL("'" + word + "' is not in: " + text);
  }
}

// A file that is gone with the test; returns its path.
std::string write(const TemporaryDirectory& folder, const std::string& text) {
  const std::string path = (std::filesystem::path(folder.path()) / "rules.csv").string();
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST(rules_reach_the_communicator_of_the_scope_whichever_thread_makes_it) {
  for (const int interface : {4, 5, 6}) {
    for (const InitThread thread : kThreads) {
      in_a_process([=] {
        prepare_steering();
        StandIn nccl(interface, thread);
        StandIn::Communicator mine;
        StandIn::Communicator other;
        make_in_scope(nccl, mine, tree_of(5));
        nccl.make(other);
        CHECK(mine.all_reduce(1024) == tree_choice(5));
        CHECK(mine.all_reduce(1025) == kOwnChoice);
        CHECK(other.all_reduce(1024) == kOwnChoice);
        CHECK_EQ(steering_fault(tree_of(5)), "");
      });
    }
  }
}

TEST(other_threads_are_left_alone_while_a_scope_lives) {
  for (const InitThread thread : kThreads) {
    in_a_process([=] {
      prepare_steering();
      StandIn nccl(6, thread);
      StandIn::Communicator mine;
      StandIn::Communicator other;
      std::latch scope_lives(1);
      std::latch other_is_made(1);
      std::thread owner([&] {
        const SteeringScope scope(tree_of(5));
        scope_lives.count_down();
        other_is_made.wait();
        nccl.make(mine);
      });
      scope_lives.wait();
      nccl.make(other);
      other_is_made.count_down();
      owner.join();
      CHECK(mine.all_reduce(8) == tree_choice(5));
      CHECK(other.all_reduce(8) == kOwnChoice);
    });
  }
}

// No lock is held while NCCL waits for other ranks, so they may be threads of one process, or make
// their communicators in any order.
TEST(many_threads_make_communicators_with_rules_of_their_own_at_once) {
  in_a_process([] {
    prepare_steering();
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&wrong, i] {
        StandIn nccl(6, kThreads[static_cast<std::size_t>(i) % kThreads.size()]);
        for (int round = 0; round < 40; ++round) {
          StandIn::Communicator made;
          const int channels = 1 + (i * 7 + round) % 60;
          make_in_scope(nccl, made, tree_of(channels));
          if (!(made.all_reduce(8) == tree_choice(channels))) ++wrong;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
  });
}

TEST(a_scope_leaves_the_thread_as_it_was) {
  in_a_process([] {
    prepare_steering();
    pthread_setname_np(pthread_self(), "trainer");
    StandIn nccl(6, InitThread::kOwn);
    StandIn::Communicator late;
    std::thread heir;
    std::latch ended(1);
    {
      const SteeringScope scope(tree_of(5));
      CHECK(thread_name() != "trainer");
      heir = std::thread([&] {  // as a service thread of NCCL's, with the name of the scope
        ended.wait();
        nccl.make(late);
      });
    }
    CHECK_EQ(thread_name(), "trainer");
    ended.count_down();
    heir.join();
    CHECK(late.all_reduce(8) == kOwnChoice);
  });
}

TEST(a_thread_that_is_renamed_meanwhile_keeps_its_rules_and_its_name) {
  in_a_process([] {
    prepare_steering();
    StandIn nccl(6);
    StandIn::Communicator mine;
    {
      const SteeringScope scope(tree_of(5));
      pthread_setname_np(pthread_self(), "renamed");
      nccl.make(mine);
    }
    CHECK_EQ(thread_name(), "renamed");
    CHECK(mine.all_reduce(8) == tree_choice(5));
  });
}

TEST(rules_bind_a_communicator_and_the_environment_the_others) {
  in_a_process([] {
    const TemporaryDirectory folder;
    const std::string path = write(folder, "allreduce,0,-1,ring,simple,3,-1,-1,-1,-1\n");
    setenv("ACCL_RULES", path.c_str(), 1);
    prepare_steering();
    StandIn nccl(6, InitThread::kOwn);
    StandIn::Communicator mine;
    StandIn::Communicator ruled;
    StandIn::Communicator other;
    make_in_scope(nccl, mine, tree_of(5));
    const Rules for_the_cpu = Rules::parse("allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n", "cpu");
    make_in_scope(nccl, ruled, for_the_cpu);
    nccl.make(other);
    CHECK(mine.all_reduce(8) == tree_choice(5));
    CHECK(mine.all_reduce(4096) == kOwnChoice);
    CHECK(ruled.all_reduce(8) == kOwnChoice);
    CHECK((other.all_reduce(8) == Chosen{plugin::kNcclRing, kNcclSimple, 3}));
  });
}

TEST(messages_name_the_line_of_the_file) {
  in_a_process([] {
    prepare_steering();
    const Rules rules = Rules::parse(
        "# a comment\n"
        "allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n"
        "\n"
        "allreduce,0,8,ring,ll,-1,-1,-1,-1,-1\n"
        "allreduce,0,65536,direct,-1,-1,-1,-1,-1,-1,cuda\n"
        "allreduce,9,-1,tree,ll,-1,-1,-1,-1,-1\n",
        "test.csv");
    StandIn nccl(6);
    StandIn::Communicator mine;
    make_in_scope(nccl, mine, rules);
    const auto report = reinterpret_cast<decltype(&accl_tuner_report)>(
        dlsym(dlopen(STEERING_TUNER_PLUGIN, RTLD_NOW), "accl_tuner_report"));
    for (const auto& [bytes, line] : {std::pair{8, 4}, {9, 6}}) {
      mine.all_reduce(static_cast<std::size_t>(bytes));
      accl_tuner_last last{};
      last.size = sizeof last;
      CHECK_EQ(report(&last), 0);
      CHECK_EQ(last.line, line);
    }
  });
}

TEST(preparing_names_the_plugin_beside_the_library_once) {
  in_a_process([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([] { prepare_steering(); });
    for (auto& thread : threads) thread.join();
    const char* chosen = std::getenv("NCCL_TUNER_PLUGIN");
    CHECK(chosen != nullptr);
    CHECK(std::filesystem::equivalent(chosen, STEERING_TUNER_PLUGIN));
    unsetenv("NCCL_TUNER_PLUGIN");
    prepare_steering();
    CHECK(std::getenv("NCCL_TUNER_PLUGIN") == nullptr);
  });
}

TEST(too_late_is_said) {
  in_a_process([] {
    StandIn nccl(6);
    StandIn::Communicator early;
    StandIn::Communicator mine;
    nccl.make(early);
    prepare_steering();
    make_in_scope(nccl, mine, tree_of(5));
    CHECK(mine.all_reduce(8) == kOwnChoice);
    expect_words(steering_fault(tree_of(5)), {"test.csv", "first communicator", "accl first",
                                              "NCCL_TUNER_PLUGIN=/", "libaccl-nccl-tuner.so."});
    CHECK_EQ(steering_fault(Rules::defaults()), "");
    CHECK_EQ(steering_fault(Rules{}), "");
  });
}

TEST(another_tuner_is_left_in_its_place_and_said) {
  for (const std::string chosen :
       {"none", "/nowhere/libother.so", "/dev/null", "libm.so.6", "ofi", ""}) {
    in_a_process([=] {
      setenv("NCCL_TUNER_PLUGIN", chosen.c_str(), 1);
      prepare_steering();
      CHECK_EQ(std::string(std::getenv("NCCL_TUNER_PLUGIN")), chosen);
      StandIn nccl(6);
      StandIn::Communicator mine;
      make_in_scope(nccl, mine, tree_of(5));
      CHECK(mine.all_reduce(8) == kOwnChoice);
      expect_words(steering_fault(tree_of(5)),
                   {"NCCL_TUNER_PLUGIN is '" + chosen + "'", "unset it", "libaccl-nccl-tuner.so"});
      CHECK_EQ(steering_fault(Rules::defaults()), "");
    });
  }
}

TEST(the_plugin_under_another_name_is_ours_too) {
  for (const bool copied : {false, true}) {
    in_a_process([=] {
      const TemporaryDirectory folder;
      const auto path = std::filesystem::path(folder.path()) / "tuner.so";
      if (copied) {
        std::filesystem::copy_file(STEERING_TUNER_PLUGIN, path);
      } else {
        std::filesystem::create_symlink(STEERING_TUNER_PLUGIN, path);
      }
      setenv("NCCL_TUNER_PLUGIN", path.c_str(), 1);
      prepare_steering();
      StandIn nccl(6, InitThread::kOwn);
      StandIn::Communicator mine;
      make_in_scope(nccl, mine, tree_of(5));
      CHECK(mine.all_reduce(8) == tree_choice(5));
      CHECK_EQ(steering_fault(tree_of(5)), "");
    });
  }
}

TEST(rules_that_no_communicator_has_taken_are_said) {
  in_a_process([] {
    prepare_steering();
    StandIn nccl(6);
    StandIn::Communicator made;
    // As a version of NCCL would that keeps threads for its jobs: the scope's thread only waits.
    std::latch scope_lives(1);
    std::thread old([&] {
      scope_lives.wait();
      nccl.make(made);
    });
    {
      const SteeringScope scope(tree_of(5));
      scope_lives.count_down();
      old.join();
    }
    CHECK(made.all_reduce(8) == kOwnChoice);
    expect_words(steering_fault(tree_of(5)), {"test.csv", "not found", "ACCL_RULES"});
    StandIn::Communicator mine;
    make_in_scope(nccl, mine, tree_of(6));
    CHECK_EQ(steering_fault(tree_of(6)), "");
    CHECK(steering_fault(tree_of(5)) != "");
  });
}

// The library runs from a folder in which the plugin is missing, or is no plugin.
TEST(a_plugin_that_cannot_be_used_is_said) {
  const char* words = std::getenv("STEERING_TEST_WORDS");
  if (words != nullptr) {
    prepare_steering();
    CHECK(std::getenv("NCCL_TUNER_PLUGIN") == nullptr);
    StandIn nccl(6);
    StandIn::Communicator mine;
    make_in_scope(nccl, mine, tree_of(5));
    CHECK(mine.all_reduce(8) == kOwnChoice);
    expect_words(steering_fault(tree_of(5)),
                 {words, "libaccl-nccl-tuner.so", "install accl-n again"});
    return;
  }
  for (const char* expected : {"No such file", "invalid ELF header"}) {
    const TemporaryDirectory folder;
    const std::filesystem::path here(folder.path());
    const auto library = std::filesystem::path(STEERING_TUNER_PLUGIN).parent_path() / "libaccl.so";
    std::filesystem::copy_file(library, here / "libaccl.so");
    if (expected == std::string("invalid ELF header"))
      std::ofstream(here / "libaccl-nccl-tuner.so") << std::string(100, 'x');
    in_a_process([&] {
      setenv("LD_LIBRARY_PATH", here.c_str(), 1);
      setenv("STEERING_TEST_WORDS", expected, 1);
      execl("/proc/self/exe", "steering", "a_plugin_that_cannot_be_used_is_said", nullptr);
      FAIL("this program could not be started again");
    });
  }
}

}  // namespace accl::test
