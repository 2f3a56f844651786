// What goes wrong: each surviving rank gets a named error in time, and a new communicator works
// afterwards.
#include <atomic>
#include <chrono>

#include "contract/ranks.h"
#include "harness/test.h"

namespace accl::test {
namespace {

using Clock = std::chrono::steady_clock;

Call all_reduce(std::vector<float>& data, Milliseconds timeout = Milliseconds{0}) {
  Call call;
  call.input.data = call.output.data = data.data();
  call.count = data.size();
  call.timeout = timeout;
  return call;
}

Call barrier() {
  Call call;
  call.collective = Collective::kBarrier;
  return call;
}

CommunicatorOptions with_timeout(int ms) {
  CommunicatorOptions options;
  options.timeout = Milliseconds{ms};
  options.name = "faulty";
  return options;
}

// Ranks 0 and 1 (and others, like 0) call different things; each must get a MismatchError that
// quotes both.
void expect_mismatch(int ranks, const std::function<Call(int rank, std::vector<float>& data)>& make,
                     const std::vector<std::string>& words) {
  const auto begin = Clock::now();
  const auto errors = run_ranks_with_errors(ranks, quick_options(), [&](Communicator& c) {
    std::vector<float> data(1 << 16);
    c.post(make(c.rank(), data))->wait();
    c.post(barrier())->wait();  // some, like the root of a broadcast, need nobody
  });
  for (const auto& error : errors) {
    CHECK(is_kind<MismatchError>(error) || is_kind<AbortedError>(error));
    for (const auto& word : words) {
      if (text_of(error).find(word) == std::string::npos)
        FAIL("'" + word + "' is not in: " + text_of(error));
    }
  }
  CHECK(Clock::now() - begin < std::chrono::seconds{3});
}

Call sized(std::vector<float>& data, std::size_t count) {
  Call call = all_reduce(data);
  call.count = count;
  return call;
}

TEST(different_counts_are_a_mismatch) {
  for (const int ranks : {2, 3, 4}) {
    expect_mismatch(ranks, [](int rank, auto& data) { return sized(data, rank == 1 ? 8 : 4); },
                    {"all_reduce of 8 float32 (sum)", "all_reduce of 4 float32 (sum)"});
    // Rules may choose different algorithms for sizes so far apart.
    expect_mismatch(ranks, [](int rank, auto& data) { return sized(data, rank == 1 ? 60000 : 1); },
                    {"all_reduce of 60000 float32", "all_reduce of 1 float32"});
    expect_mismatch(ranks, [](int rank, auto& data) { return sized(data, rank == 1 ? 0 : 4); },
                    {"all_reduce of 0 float32", "all_reduce of 4 float32"});
  }
}

TEST(different_dtypes_are_a_mismatch) {
  expect_mismatch(3,
                  [](int rank, auto& data) {
                    Call call = sized(data, 16);
                    if (rank == 1) call.dtype = DType::kInt32;
                    return call;
                  },
                  {"16 int32", "16 float32"});
}

TEST(different_operations_roots_collectives_and_choices_are_a_mismatch) {
  expect_mismatch(2,
                  [](int rank, auto& data) {
                    Call call = sized(data, 16);
                    if (rank == 1) call.op = ReduceOp::kMax;
                    return call;
                  },
                  {"(max)", "(sum)"});
  expect_mismatch(2,
                  [](int rank, auto& data) {
                    Call call = sized(data, 16);
                    call.collective = Collective::kReduce;
                    call.root = rank;  // each waits for the other: no message ever passes
                    return call;
                  },
                  {"to root 0", "to root 1"});
  expect_mismatch(3,
                  [](int rank, auto& data) {
                    Call call = sized(data, 16);
                    if (rank == 1) call.collective = Collective::kBroadcast;
                    call.root = 1;
                    return call;
                  },
                  {"broadcast of 16 float32 from root 1", "all_reduce of 16 float32"});
  expect_mismatch(2,
                  [](int rank, auto& data) {
                    Call call = sized(data, 16);
                    call.forced.algorithm = rank == 0 ? "ring" : "direct";
                    return call;
                  },
                  {"another algorithm, protocol or chunk"});
}

TEST(uneven_counts_that_disagree_are_a_mismatch) {
  const auto errors = run_ranks_with_errors(2, quick_options(), [](Communicator& c) {
    std::vector<float> in(16);
    std::vector<float> out(32);
    Call call;
    call.collective = Collective::kAllGather;
    call.input.data = in.data();
    call.output.data = out.data();
    call.counts = c.rank() == 0 ? std::vector<std::size_t>{3, 4} : std::vector<std::size_t>{3, 5};
    c.post(call)->wait();
    c.post(barrier())->wait();
  });
  CHECK(is_kind<MismatchError>(errors[0]));
  CHECK(text_of(errors[0]).find("20 bytes where rank 0 expects 16") != std::string::npos);
  CHECK(errors[1] != nullptr);
}

TEST(a_rank_that_does_not_come_is_named) {
  const auto begin = Clock::now();
  std::atomic<int> finished{0};
  const auto errors = run_ranks_with_errors(3, with_timeout(300), [&](Communicator& c) {
    std::vector<float> data(4);
    if (c.rank() != 2) {
      try {
        c.post(all_reduce(data))->wait();
      } catch (...) {
        ++finished;
        throw;
      }
      return;
    }
    while (finished < 2) std::this_thread::sleep_for(Milliseconds{1});
  });
  for (const int rank : {0, 1}) {
    const auto text = text_of(errors[static_cast<std::size_t>(rank)]);
    CHECK(is_kind<TimeoutError>(errors[static_cast<std::size_t>(rank)]));
    CHECK(text.find(" Timed out after 300 ms") != std::string::npos);
    CHECK(text.find("all_reduce of 4 float32 (sum), call #1") != std::string::npos);
    CHECK(text.find("rank 2 has not made the call (it has made no call yet)") != std::string::npos);
  }
  CHECK(errors[2] == nullptr);
  CHECK(Clock::now() - begin < std::chrono::seconds{2});
}

TEST(a_call_may_have_a_timeout_of_its_own) {
  run_ranks_with_errors(2, with_timeout(60'000), [](Communicator& c) {
    std::vector<float> data(4);
    const auto begin = Clock::now();
    if (c.rank() == 0) {
      CHECK_THROWS(TimeoutError, "Timed out after 100 ms",
                   c.post(all_reduce(data, Milliseconds{100}))->wait());
      CHECK(Clock::now() - begin < std::chrono::seconds{1});
      CHECK_THROWS(AbortedError, "has ended", c.post(barrier()));
    } else {
      std::this_thread::sleep_for(Milliseconds{300});
    }
  });
}

TEST(a_wait_that_gives_up_leaves_the_work_alone) {
  run_ranks(2, [](Communicator& c) {
    std::vector<float> data(4, 1.0f);
    if (c.rank() == 1) std::this_thread::sleep_for(Milliseconds{150});
    const auto work = c.post(all_reduce(data));
    if (c.rank() == 0) {
      CHECK(!work->wait(Milliseconds{50}));
      CHECK(!work->completed());
    }
    CHECK(work->wait());
    CHECK(work->wait());  // twice is fine
    CHECK_EQ(data[3], 2.0f);
  });
}

TEST(abort_ends_everybody) {
  const auto errors = run_ranks_with_errors(3, with_timeout(10'000), [](Communicator& c) {
    std::vector<float> data(4);
    if (c.rank() == 2) {
      c.abort("the test says so");
      CHECK(c.error() != nullptr);
      c.abort("again");
      CHECK_THROWS(AbortedError, "the test says so", c.post(barrier()));
      return;
    }
    c.post(all_reduce(data))->wait();
  });
  for (const int rank : {0, 1}) {
    CHECK(is_kind<PeerError>(errors[static_cast<std::size_t>(rank)]) ||
          is_kind<AbortedError>(errors[static_cast<std::size_t>(rank)]));
    CHECK(text_of(errors[static_cast<std::size_t>(rank)]).find("the test says so") !=
          std::string::npos);
  }
}

TEST(abort_reaches_a_thread_that_waits) {
  run_ranks_with_errors(2, with_timeout(30'000), [](Communicator& c) {
    if (c.rank() == 1) {
      std::this_thread::sleep_for(Milliseconds{200});
      return;
    }
    std::vector<float> data(4);
    std::thread aborter([&] {
      std::this_thread::sleep_for(Milliseconds{50});
      c.abort("from another thread");
    });
    CHECK_THROWS(AbortedError, "from another thread", c.post(all_reduce(data))->wait());
    aborter.join();
  });
}

TEST(a_rank_that_leaves_is_noticed) {
  const auto begin = Clock::now();
  const auto errors = run_ranks_with_errors(3, with_timeout(20'000), [](Communicator& c) {
    if (c.rank() == 1) return;  // shuts down
    std::vector<float> data(4);
    c.post(all_reduce(data))->wait();
  });
  CHECK(errors[1] == nullptr);
  for (const int rank : {0, 2}) {
    CHECK(is_kind<PeerError>(errors[static_cast<std::size_t>(rank)]));
    CHECK(
        text_of(errors[static_cast<std::size_t>(rank)]).find("Rank 1 has left the communicator") !=
        std::string::npos);
  }
  CHECK(Clock::now() - begin < std::chrono::seconds{2});
}

TEST(leaving_after_the_last_call_harms_nobody) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(3, [](Communicator& c) {
      if (c.rank() == 2) std::this_thread::sleep_for(Milliseconds{3});
      std::vector<float> data(1000, 1.0f);
      CHECK(c.post(all_reduce(data))->wait());
      CHECK_EQ(data[999], 3.0f);
    });
  }
}

// Rank 2 is done and gone while rank 0 still waits, for rank 1 alone.
TEST(a_rank_that_left_after_its_part_harms_nobody) {
  run_ranks(3, [](Communicator& c) {
    std::vector<float> in(1000, 1.0f);
    std::vector<float> out(1000);
    Call call;
    call.collective = Collective::kReduce;
    call.input.data = in.data();
    call.output.data = out.data();
    call.count = 1000;
    if (c.rank() == 1) std::this_thread::sleep_for(Milliseconds{150});
    CHECK(c.post(call)->wait());
    if (c.rank() == 0) CHECK_EQ(out[999], 3.0f);
  });
}

TEST(creation_refuses_what_is_wrong) {
  HashStore store;
  CHECK_THROWS(InvalidArgument, "rank 2; expected 0 to 1", Communicator::create(store, 2, 2));
  CHECK_THROWS(InvalidArgument, "rank -1", Communicator::create(store, -1, 2));
  CHECK_THROWS(InvalidArgument, "size 0", Communicator::create(store, 0, 0));
  CHECK_THROWS(InvalidArgument, "timeout 0 ms", Communicator::create(store, 0, 1, with_timeout(0)));
  const auto begin = Clock::now();
  CHECK_THROWS(TimeoutError, "Rank 1 of 2 did not join communicator 'faulty'",
               Communicator::create(store, 0, 2, with_timeout(100)));
  CHECK(Clock::now() - begin < std::chrono::seconds{1});
}

std::vector<std::exception_ptr> create_all(
    int ranks, const std::function<std::shared_ptr<Communicator>(Store&, int)>& make) {
  HashStore store;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        make(store, rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

TEST(sizes_and_rules_must_agree) {
  const auto begin = Clock::now();
  auto errors = create_all(2, [](Store& store, int rank) {
    return Communicator::create(store, rank, rank == 0 ? 2 : 3, with_timeout(20'000));
  });
  for (const auto& error : errors) {
    CHECK(is_kind<MismatchError>(error));
    CHECK(text_of(error).find("number of ranks") != std::string::npos);
  }
  errors = create_all(3, [](Store& store, int rank) {
    auto options = with_timeout(20'000);
    options.rules = std::make_shared<const Rules>(Rules::parse(
        rank == 1 ? "allreduce,0,4096,ring,-1,-1,-1,-1,-1,-1,cpu\n" : "", "rules.csv"));
    return Communicator::create(store, rank, 3, options);
  });
  for (const auto& error : errors) {
    CHECK(is_kind<MismatchError>(error));
    CHECK(text_of(error).find("rules digest") != std::string::npos);
  }
  CHECK(Clock::now() - begin < std::chrono::seconds{2});
}

// Some are gone while others still wait for the last one to join.
TEST(communicators_may_be_made_and_left_at_once) {
  HashStore store;
  std::vector<std::thread> threads;
  std::atomic<int> made{0};
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 100; ++round) {
        auto options = with_timeout(10'000);
        options.name = "round " + std::to_string(round);
        Communicator::create(store, rank, 4, options);
        ++made;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(made.load(), 400);
}

TEST(one_store_and_name_serves_many_communicators) {
  HashStore store;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 20; ++round) {
        const auto c = Communicator::create(store, rank, 2, with_timeout(10'000));
        std::vector<float> data(8, 1.0f);
        if (c->post(all_reduce(data))->wait() && data[7] == 2.0f) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(good.load(), 40);
}

TEST(bad_calls_are_refused_and_harm_nothing) {
  run_ranks(2, [](Communicator& c) {
    std::vector<float> data(4, 1.0f);
    Call call = all_reduce(data);
    call.input.data = nullptr;
    CHECK_THROWS(InvalidArgument, "input is null", c.post(call));
    call = all_reduce(data);
    call.output.data = data.data() + 1;
    CHECK_THROWS(InvalidArgument, "overlap in part", c.post(call));
    call = all_reduce(data);
    call.op = ReduceOp::kBand;
    CHECK_THROWS(InvalidArgument, "operation band is not defined for float32", c.post(call));
    call = all_reduce(data);
    call.forced.algorithm = "teleport";
    CHECK_THROWS(InvalidArgument,
                 "Algorithm 'teleport' is unknown for all_reduce; expected one of: ", c.post(call));
    call = all_reduce(data);
    call.forced.protocol = "ll128";
    CHECK_THROWS(InvalidArgument, "Protocol 'll128'", c.post(call));
    call = all_reduce(data);
    call.forced.chunk_bytes = 3;
    CHECK_THROWS(InvalidArgument, "chunk_bytes 3 is too small", c.post(call));
    call = all_reduce(data);
    call.collective = Collective::kBroadcast;
    call.root = 2;
    CHECK_THROWS(InvalidArgument, "root 2 is not a rank", c.post(call));
    call = all_reduce(data);
    call.collective = Collective::kSend;
    call.peer = 5;
    CHECK_THROWS(InvalidArgument, "peer 5 is not a rank", c.post(call));
    call = all_reduce(data);
    call.count = ~std::size_t{0} / 2;
    CHECK_THROWS(InvalidArgument, "more than memory can hold", c.post(call));
    CHECK_THROWS(InvalidArgument, "timeout -5 ms", c.set_timeout(Milliseconds{-5}));
    CHECK(c.post(all_reduce(data))->wait());
    CHECK_EQ(data[0], 2.0f);
  });
}

TEST(callbacks_may_start_and_await_another_call) {
  run_ranks(2, [](Communicator& c) {
    std::vector<float> first(1000, 1.0f);
    std::vector<float> second(1000, 10.0f);
    std::atomic<int> done{0};
    Call call = all_reduce(first);
    call.background = true;
    const auto work = c.post(call);
    work->on_complete([&] {
      Call next = all_reduce(second);
      next.background = true;
      const auto inner = c.post(next);
      inner->on_complete([&] { ++done; });
      inner->wait();
      ++done;
    });
    while (done < 2) std::this_thread::sleep_for(Milliseconds{1});
    CHECK_EQ(first[0], 2.0f);
    CHECK_EQ(second[999], 20.0f);
    std::atomic<bool> late{false};
    work->on_complete([&] { late = true; });  // already complete: still called
    while (!late) std::this_thread::sleep_for(Milliseconds{1});
  });
}

TEST(dropped_background_work_completes) {
  run_ranks(3, [](Communicator& c) {
    std::vector<std::vector<float>> data(30, std::vector<float>(10'000, 1.0f));
    for (auto& d : data) {
      Call call = all_reduce(d);
      call.background = true;
      c.post(call);
    }
    CHECK(c.post(barrier())->wait());
    for (const auto& d : data) CHECK_EQ(d[9'999], 3.0f);
  });
}

TEST(two_communicators_in_opposite_order) {
  HashStore store;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = with_timeout(10'000);
      options.name = "a";
      const auto a = Communicator::create(store, rank, 2, options);
      options.name = "b";
      const auto b = Communicator::create(store, rank, 2, options);
      std::vector<std::thread> users;
      for (const auto& c : {a, b}) {
        users.emplace_back([&, c] {
          for (int i = 0; i < 200; ++i) {
            std::vector<float> data(100, 1.0f);
            c->post(all_reduce(data))->wait();
            if (data[50] == 2.0f) ++good;
          }
        });
      }
      if (rank == 1) std::swap(users[0], users[1]);
      for (auto& user : users) user.join();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(good.load(), 800);
}

TEST(the_trace_tells_what_happened) {
  run_ranks(2, [](Communicator& c) {
    std::vector<float> data(4, 1.0f);
    CHECK(c.post(all_reduce(data))->wait());
    const std::string trace = c.trace_json();
    CHECK(trace.find("all_reduce") != std::string::npos);
    CHECK(trace.find("completed") != std::string::npos);
    const Statistics statistics = c.statistics();
    CHECK_EQ(statistics.works_posted, 1u);
    CHECK_EQ(statistics.works_completed, 1u);
    CHECK_EQ(statistics.traffic.bytes_sent, 16u);
    CHECK(statistics.staging_bytes > 0);
  });
}

}  // namespace
}  // namespace accl::test
