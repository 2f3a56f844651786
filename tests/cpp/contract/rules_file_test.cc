// Choices: a rules file that one rank cannot read, given in the options; messages.
#include <chrono>

#include "contract/ranks.h"
#include "harness/test.h"

namespace accl::test {
namespace {

TEST(an_unreadable_rules_file_is_told_to_everybody) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  HashStore store;
  std::vector<std::exception_ptr> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = quick_options();
      if (rank == 1) options.rules_file = "/nonexistent/rules.csv";
      try {
        Communicator::create(store, rank, 3, options);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(is_kind<RulesError>(errors[1]));
  for (const int rank : {0, 2}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    CHECK(is_kind<PeerError>(error));
    CHECK(text_of(error).find("Rank 1 could not join communicator 'world'") != std::string::npos);
    CHECK(text_of(error).find("/nonexistent/rules.csv") != std::string::npos);
  }
  CHECK(Clock::now() - begin < std::chrono::seconds{2});
}

TEST(a_message_has_a_choice_too) {
  run_ranks(2, [](Communicator& c) {
    float data = 0;
    Call call;
    call.collective = Collective::kSend;
    call.input.data = &data;
    call.count = 1;
    call.peer = 1 - c.rank();
    CHECK_EQ(c.choice_for(call).algorithm, std::string("direct"));
  });
}

}  // namespace
}  // namespace accl::test
