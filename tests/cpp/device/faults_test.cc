// What goes wrong between GPUs, and that it ends with the right sentence on every rank, in time,
// and with no stream left hanging.
#include "device/devices.h"

namespace accl::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr Milliseconds kShort{1'000};
constexpr seconds kGrace{8};  // beyond the timeout: for the ranks to ask each other

void expect_words(const std::exception_ptr& error, std::initializer_list<const char*> words) {
  const std::string text = text_of(error);
  for (const char* word : words) {
    if (text.find(word) == std::string::npos)
      FAIL("'" + std::string(word) + "' is not in: " + text);
  }
}

// The error of a work, waited for no longer than the timeout and the grace.
std::exception_ptr error_of(DeviceWork& work, Milliseconds timeout = kShort) {
  try {
    CHECK(work.wait(timeout + kGrace));
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

TEST(device_timeout_names_the_rank_that_is_missing) {
  Gate done;
  std::atomic<int> finished{0};
  const auto begin = Clock::now();
  rethrow_first(run_devices_with_errors(3, device_options(kShort), [&](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    CHECK(r.communicator->enqueue(all_reduce_of(memory), r.stream)->wait());
    if (r.rank == 2) {
      CHECK(soon([&] { return r.communicator->error() != nullptr; }));
      CHECK(is_kind<PeerError>(r.communicator->error()));
      return;
    }
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    const auto error = error_of(*work);
    CHECK(is_kind<TimeoutError>(error) || is_kind<PeerError>(error));
    expect_words(error,
                 {"all_reduce of 1 int32 (sum), call #2", "Timed out after 1000 ms", "rank 2"});
    CHECK(r.communicator->error() != nullptr);
    if (++finished == 2) done.open();
    done.wait();
    r.stream.synchronize();  // NCCL's kernel has ended
    CHECK_THROWS(Error, "", r.communicator->enqueue(all_reduce_of(memory), r.stream));
    CHECK_THROWS(Error, "", work->order(r.stream));
  }));
  CHECK(Clock::now() - begin < kShort + 2 * kGrace);
}

TEST(device_timeout_quotes_what_another_rank_calls) {
  rethrow_first(run_devices_with_errors(2, device_options(kShort), [](const DeviceRank& r) {
    const Memory memory(std::size_t{64});
    const auto count = static_cast<std::size_t>(8 + r.rank);
    const auto error = error_of(*r.communicator->enqueue(all_reduce_of(memory, count), r.stream));
    expect_words(error, {"of 8 int32", "of 9 int32"});
    r.stream.synchronize();
  }));
}

TEST(device_timeout_of_a_message_names_the_peer) {
  rethrow_first(run_devices_with_errors(2, device_options(kShort), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 1) {
      CHECK(soon([&] { return r.communicator->error() != nullptr; }));
      return;
    }
    const auto error =
        error_of(*r.communicator->enqueue(message_of(Collective::kRecv, memory, 1), r.stream));
    CHECK(is_kind<TimeoutError>(error));
    expect_words(error, {"recv of 1 int32 from rank 1", "Timed out", "rank 1"});
    r.stream.synchronize();
  }));
}

TEST(device_call_has_a_timeout_of_its_own) {
  const auto begin = Clock::now();
  rethrow_first(
      run_devices_with_errors(2, device_options(Milliseconds{60'000}), [](const DeviceRank& r) {
        const Memory memory(std::size_t{4});
        if (r.rank == 1) {
          CHECK(soon([&] { return r.communicator->error() != nullptr; }));
          return;
        }
        Call call = all_reduce_of(memory);
        call.timeout = Milliseconds{500};
        expect_words(error_of(*r.communicator->enqueue(call, r.stream)), {"Timed out", "rank 1"});
      }));
  CHECK(Clock::now() - begin < seconds{1} + kGrace);
}

TEST(device_rank_that_left_early_is_named) {
  Gate left;
  rethrow_first(run_devices_with_errors(2, device_options(kShort), [&](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 1) {
      r.communicator->shutdown();
      return left.open();
    }
    left.wait();
    expect_words(error_of(*r.communicator->enqueue(all_reduce_of(memory), r.stream)),
                 {"rank 1 has left the communicator"});
    r.stream.synchronize();
  }));
}

TEST(device_asynchronous_error_is_noticed_by_all) {
  const DeviceOptions options = device_options();
  Gate hung;
  const auto begin = Clock::now();
  rethrow_first(run_devices_with_errors(3, options, [&](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 1) {
      hung.wait();
      CHECK_EQ(fake_nccl_set_async_error(options.name.c_str(), 1, nccl::kRemoteError), 1);
      CHECK(soon([&] { return r.communicator->error() != nullptr; }));
      expect_words(r.communicator->error(), {"NCCL reports", "remote process exited"});
      return;
    }
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    hung.open();
    const auto error = error_of(*work, seconds{10});
    CHECK(is_kind<PeerError>(error));
    expect_words(error, {"Rank 1 ended", "remote process exited"});
    r.stream.synchronize();
  }));
  CHECK(Clock::now() - begin < seconds{15});
}

TEST(device_failed_call_ends_the_communicator_in_nccls_words) {
  rethrow_first(run_devices_with_errors(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 0) {
      fake_nccl_fail_next_here("ncclAllReduce", nccl::kSystemError);
      CHECK_THROWS(SystemError, "ncclAllReduce failed: unhandled system error",
                   r.communicator->enqueue(all_reduce_of(memory), r.stream));
      CHECK(is_kind<SystemError>(r.communicator->error()));
      return;
    }
    const auto error =
        error_of(*r.communicator->enqueue(all_reduce_of(memory), r.stream), seconds{10});
    CHECK(is_kind<PeerError>(error));
    expect_words(error, {"Rank 0", "ncclAllReduce"});
    r.stream.synchronize();
  }));
}

TEST(device_failed_part_of_a_group_leaves_no_group_open) {
  rethrow_first(run_devices_with_errors(1, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{64});
    fake_nccl_fail_next_here("ncclSend", nccl::kInternalError);
    CHECK_THROWS(SystemError, "ncclSend failed",
                 r.communicator->enqueue_group({message_of(Collective::kRecv, memory, 0),
                                                message_of(Collective::kSend, memory, 0)},
                                               r.stream));
    // Another communicator of this thread is as before.
    const auto store = std::make_shared<HashStore>();
    const auto other = DeviceCommunicator::create(store, 0, 1, device_options());
    const Memory output(std::size_t{4});
    Call call = all_reduce_of(memory);
    call.output.data = output.data();
    *memory.as<int>() = 5;
    CHECK(other->enqueue(call, r.stream)->wait());
    CHECK_EQ(*output.as<int>(), 5);
  }));
}

TEST(device_failed_init_is_told) {
  fake_nccl_fail_next("ncclCommInitRankConfig", nccl::kSystemError);
  const auto errors = run_devices_with_errors(1, device_options(), [](const DeviceRank&) {});
  CHECK(is_kind<SystemError>(errors[0]));
  expect_words(errors[0], {"ncclCommInitRankConfig failed", "unhandled system error"});
}

TEST(device_init_times_out_where_nccl_does_not_connect) {
  fake_nccl_fail_next("ncclCommInitRankConfig", nccl::kSystemError);  // of one of the ranks
  const auto begin = Clock::now();
  const auto errors = run_devices_with_errors(2, device_options(kShort), [](const DeviceRank&) {});
  CHECK(Clock::now() - begin < kShort + kGrace);
  const bool first = is_kind<SystemError>(errors[0]);
  CHECK(is_kind<SystemError>(errors[first ? 0 : 1]));
  CHECK(is_kind<TimeoutError>(errors[first ? 1 : 0]));
  fake_nccl_end_waiting_inits();  // the attempt that was left to a thread of its own
  expect_words(errors[first ? 1 : 0],
               {"NCCL did not connect the 2 ranks", "Timed out after 1000 ms"});
}

TEST(device_abort_ends_what_hangs_here_and_at_peers) {
  Gate hung;
  rethrow_first(run_devices_with_errors(2, device_options(), [&](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 1) {
      hung.wait();
      r.communicator->abort("the user wants it");
      r.communicator->abort("again");
      CHECK(is_kind<AbortedError>(r.communicator->error()));
      expect_words(r.communicator->error(), {"the user wants it"});
      return;
    }
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    hung.open();
    const auto error = error_of(*work, seconds{10});
    CHECK(is_kind<PeerError>(error));
    expect_words(error, {"Rank 1", "the user wants it"});
    r.stream.synchronize();
  }));
}

TEST(device_abort_of_three_communicators_at_once) {
  const auto store = std::make_shared<HashStore>();
  const DeviceOptions options[] = {device_options(), device_options(), device_options()};
  rethrow_first(on_devices(2, [&](int rank) {
    const Memory memory(std::size_t{4});
    std::vector<std::shared_ptr<DeviceCommunicator>> communicators;
    const OwnStream streams[3];
    for (const DeviceOptions& each : options) {
      DeviceOptions own = each;
      own.device = rank;
      communicators.push_back(DeviceCommunicator::create(store, rank, 2, own));
    }
    // Each rank hangs in all three: they call different ones first.
    std::vector<std::shared_ptr<DeviceWork>> works;
    for (std::size_t i = 0; i < 3; ++i) {
      const auto peer = message_of(Collective::kRecv, memory, 1 - rank);
      works.push_back(communicators[i]->enqueue(peer, streams[i]));
    }
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < 3; ++i) communicators[rank == 0 ? i : 2 - i]->abort("all of them");
    CHECK(Clock::now() - begin < seconds{2});
    for (std::size_t i = 0; i < 3; ++i) {
      streams[i].synchronize();
      CHECK_THROWS(Error, "all of them", works[i]->wait());
    }
    communicators.clear();
    CHECK(Clock::now() - begin < seconds{10});
  }));
}

// The call is on a stream that waits for something else, so NCCL's kernel has not even begun.
TEST(device_abort_while_a_stream_stands_still) {
  rethrow_first(run_devices_with_errors(1, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    fake_cuda_pause(r.stream);
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    const auto begin = Clock::now();
    r.communicator->abort("no patience");
    CHECK_THROWS(AbortedError, "no patience", work->wait());
    CHECK(Clock::now() - begin < seconds{2});
    fake_cuda_resume(r.stream);
    r.stream.synchronize();
  }));
}

TEST(device_abort_while_another_thread_waits) {
  rethrow_first(run_devices_with_errors(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    if (r.rank == 1) {
      CHECK(soon([&] { return r.communicator->error() != nullptr; }));
      return;
    }
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{100});
      r.communicator->abort("from another thread");
    });
    const auto error = error_of(*work, seconds{10});
    aborter.join();
    CHECK(is_kind<AbortedError>(error));
    r.stream.synchronize();
  }));
}

TEST(device_communicator_dropped_with_a_call_that_hangs) {
  const auto begin = Clock::now();
  const auto store = std::make_shared<HashStore>();
  const DeviceOptions options = device_options(Milliseconds{60'000});
  rethrow_first(on_devices(2, [&](int rank) {
    DeviceOptions own = options;
    own.device = rank;
    const OwnStream stream;
    const Memory memory(std::size_t{4});
    auto communicator = DeviceCommunicator::create(store, rank, 2, own);
    if (rank == 1) {
      CHECK(soon([&] { return communicator->error() != nullptr; }));
      return;
    }
    const auto work = communicator->enqueue(all_reduce_of(memory), stream);
    communicator.reset();
    CHECK_THROWS(Error, "", work->wait());
    stream.synchronize();
  }));
  CHECK(Clock::now() - begin < seconds{20});
}

TEST(device_after_a_fault_a_new_communicator_works) {
  const auto store = std::make_shared<HashStore>();
  const DeviceOptions options = device_options();
  rethrow_first(on_devices(2, [&](int rank) {
    DeviceOptions own = options;
    own.device = rank;
    const OwnStream stream;
    const Memory memory(std::size_t{4});
    const auto old = DeviceCommunicator::create(store, rank, 2, own);
    old->abort("the first ends");
    const auto fresh = DeviceCommunicator::create(store, rank, 2, own);
    *memory.as<int>() = 1;
    CHECK(fresh->enqueue(all_reduce_of(memory), stream)->wait());
    CHECK_EQ(*memory.as<int>(), 2);
    fresh->shutdown();
  }));
}

}  // namespace
}  // namespace accl::test
