// The entry points under load from many threads, as ranks that are threads of one process call
// them. Meant for the thread sanitizer as much as for its own checks.
#include <atomic>
#include <thread>
#include <vector>

#include "harness/test.h"
#include "plugin/accl_tuner.h"
#include "plugin/board.h"
#include "plugin/nccl_tuner_abi.h"

using namespace accl::plugin;

extern "C" {
extern const NcclTunerV4 ncclTunerPlugin_v4;
extern const NcclTunerV5 ncclTunerPlugin_v5;
extern const NcclTunerV6 ncclTunerPlugin_v6;
}

namespace {

template <class Body>
void on_threads(int count, Body body) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception&) {
        ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(failures.load(), 0);
}

// Asks once, on a table where all is legal; what NCCL would choose, and the channels.
struct Answer {
  int chosen;
  int channels;
};
Answer ask(void* context, int function, std::size_t bytes) {
  float table[7][3];
  for (auto& row : table) {
    for (float& cost : row) cost = 50;
  }
  table[kNcclTree][kNcclSimple] = 40;
  int channels = 0;
  CHECK(ncclTunerPlugin_v6.get_coll_info(context, function, bytes, 1,
                                         reinterpret_cast<float**>(table), 7, 3, 0,
                                         &channels) == NcclResult::kSuccess);
  Answer answer{0, channels};
  for (int i = 1; i < 21; ++i) {
    if (table[i / 3][i % 3] < table[answer.chosen / 3][answer.chosen % 3]) answer.chosen = i;
  }
  return answer;
}

constexpr const char* kRules =
    "allreduce,0,1024,ring,ll,4,-1,-1,-1,-1\n"
    "allreduce,1025,-1,ring,simple,-1,-1,-1,-1,-1,nccl,65536\n";

}  // namespace

TEST(ranks_as_threads_come_ask_and_go) {
  CHECK_EQ(accl_tuner_give_rules(kRules, "test.csv", 1), 0);
  on_threads(8, [](int i) {
    for (int round = 0; round < 20; ++round) {
      void* context = nullptr;
      const auto communicator = 0xACC1000000000000ULL + static_cast<std::uint64_t>(round % 3);
      CHECK(ncclTunerPlugin_v6.init(&context, communicator, 8, 1, nullptr, nullptr, nullptr) ==
            NcclResult::kSuccess);
      for (int call = 0; call < 50; ++call) {
        const bool small = (call + i) % 2 == 0;
        const Answer answer = ask(context, kNcclAllReduce, small ? 8 : 1 << 20);
        CHECK_EQ(answer.chosen, small ? 3 : 5);
        CHECK_EQ(answer.channels, small ? 4 : 0);
        std::size_t chunk = 1 << 20;
        CHECK(ncclTunerPlugin_v6.get_chunk_size(context, kNcclAllReduce, 4096, kNcclRing,
                                                small ? kNcclLl : kNcclSimple, 1,
                                                &chunk) == NcclResult::kSuccess);
        CHECK_EQ(chunk, small ? std::size_t{1 << 20} : std::size_t{65536});
      }
      CHECK(ncclTunerPlugin_v6.finalize(context) == NcclResult::kSuccess);
    }
  });
  accl_tuner_give_rules(nullptr, nullptr, 1);
}

TEST(one_context_is_asked_by_many_threads_while_choices_are_forced) {
  void* context = nullptr;
  CHECK(ncclTunerPlugin_v4.init(4, 1, nullptr, &context) == NcclResult::kSuccess);
  on_threads(6, [&](int i) {
    for (int call = 0; call < 300; ++call) {
      if (i == 0) {
        CHECK_EQ(accl_tuner_force("all_gather", "ring", call % 2 == 0 ? "ll" : "simple", 2, 0), 0);
      } else if (i == 1 && call % 10 == 0) {
        accl_tuner_clear();
      } else if (i == 2) {
        accl_tuner_last last{};
        last.size = sizeof(last);
        CHECK_EQ(accl_tuner_report(&last), 0);
      } else {
        const Answer answer = ask(context, kNcclAllGather, 64);
        CHECK(answer.chosen == 3 || answer.chosen == 5 || answer.chosen == 2);
        CHECK_EQ(answer.channels, answer.chosen == 2 ? 0 : 2);
      }
    }
  });
  accl_tuner_clear();
  CHECK_EQ(ask(context, kNcclAllGather, 64).chosen, 2);
  ncclTunerPlugin_v4.destroy(context);
}

TEST(threads_that_differ_reach_a_verdict_that_stays) {
  for (int round = 0; round < 20; ++round) {
    const auto communicator = 0xACC2000000000000ULL + static_cast<std::uint64_t>(round);
    std::atomic<int> passed_of[2] = {0, 0};
    std::atomic<int> arrived = 0;
    on_threads(6, [&](int i) {
      Board board(communicator);
      if (board.agree(i % 2 == 0 ? 7 : 9)) ++passed_of[i % 2];
      ++arrived;
      while (arrived < 6) std::this_thread::yield();
      CHECK(board.differs());  // all know in the end, also who had passed
      CHECK_EQ(board.published() + board.other(), 16U);
    });
    // Who passed did so before the first difference, with the digest that was there first.
    CHECK(passed_of[0] == 0 || passed_of[1] == 0);
    Board fresh(communicator);
    CHECK(fresh.agree(9));  // nothing stays when all have left
  }
}
