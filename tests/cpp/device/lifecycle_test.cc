// How device communicators are made, split, ordered, captured and left, and what they leave behind.
#include "device/devices.h"
#include "engine/nccl/api.h"

namespace accl::test {
namespace {

int sum_of(const DeviceRank& r) {
  const Memory memory(std::size_t{4});
  *memory.as<int>() = r.rank + 1;
  CHECK(r.communicator->enqueue(all_reduce_of(memory), r.stream)->wait());
  return *memory.as<int>();
}

nccl::Config config_of(const std::string& name, int rank) {
  nccl::Config config;
  CHECK_EQ(fake_nccl_last_config(name.c_str(), rank, &config), 1);
  return config;
}

TEST(device_options_reach_nccl) {
  DeviceOptions options = device_options();
  options.min_channels = 2;
  options.max_channels = 8;
  options.cga_cluster_size = 2;
  options.traffic_class = 7;
  options.network = "Socket";
  options.split_share = true;
  run_devices(2, options, [&](const DeviceRank& r) {
    const nccl::Config config = config_of(options.name, r.rank);
    CHECK_EQ(config.min_ctas, 2);
    CHECK_EQ(config.max_ctas, 8);
    CHECK_EQ(config.cga_cluster_size, 2);
    CHECK_EQ(config.traffic_class, 7);
    CHECK_EQ(std::string(config.net_name), "Socket");
    CHECK_EQ(std::string(config.comm_name), options.name);
    CHECK_EQ(config.split_share, 1);
    CHECK_EQ(r.communicator->rank(), r.rank);
    CHECK_EQ(r.communicator->size(), 2);
    CHECK_EQ(r.communicator->nodes(), 1);
    CHECK_EQ(r.communicator->device(), r.rank);
    CHECK_EQ(r.communicator->name(), options.name);
    CHECK_EQ(r.communicator->nccl_version(), 22809);
    CHECK(r.communicator->ready());
    CHECK(!r.communicator->kernels_unavailable().empty());
  });
}

TEST(device_options_left_out_are_nccls_own) {
  const DeviceOptions options = device_options();
  run_devices(1, options, [&](const DeviceRank& r) {
    const nccl::Config config = config_of(options.name, r.rank);
    for (const int value : {config.min_ctas, config.max_ctas, config.cga_cluster_size,
                            config.traffic_class, config.split_share})
      CHECK_EQ(value, nccl::kUndefined);
    CHECK(config.net_name == nullptr);
  });
}

// NCCL takes a least number alone for one above an undefined most, and refuses it.
TEST(device_least_channels_alone_are_accepted) {
  DeviceOptions options = device_options();
  options.min_channels = 4;
  run_devices(2, options, [&](const DeviceRank& r) {
    CHECK_EQ(config_of(options.name, r.rank).min_ctas, 4);
    CHECK_EQ(sum_of(r), 3);
  });
}

TEST(device_bad_options_are_refused_in_a_sentence) {
  const auto refusal = [](auto change) {
    DeviceOptions options = device_options(Milliseconds{5'000});
    change(options);
    return text_of(run_devices_with_errors(1, options, [](const DeviceRank&) {})[0]);
  };
  const auto has = [&](const std::string& text, const char* words) {
    if (text.find(words) == std::string::npos)
      FAIL("'" + std::string(words) + "' is not in: " + text);
  };
  has(refusal([](DeviceOptions& o) { o.min_channels = 65; }), "min_channels is 65");
  has(refusal([](DeviceOptions& o) { o.max_channels = -1; }), "max_channels is -1");
  has(refusal([](DeviceOptions& o) { o.min_channels = 9, o.max_channels = 8; }),
      "above max_channels, 8");
  has(refusal([](DeviceOptions& o) { o.cga_cluster_size = 9; }), "cga_cluster_size is 9");
  has(refusal([](DeviceOptions& o) { o.traffic_class = 256; }), "traffic_class is 256");
  has(refusal([](DeviceOptions& o) { o.timeout = Milliseconds{0}; }), "timeout");
}

TEST(device_that_does_not_exist) {
  use_device(0);
  DeviceOptions options = device_options();
  options.device = 7;
  const auto store = std::make_shared<HashStore>();
  CHECK_THROWS(InvalidArgument, "device 7; this process sees 4 GPUs",
               DeviceCommunicator::create(store, 0, 1, options));
}

TEST(device_shared_by_two_ranks_is_refused_before_nccl_is_asked) {
  const DeviceOptions options = device_options();
  const auto store = std::make_shared<HashStore>();
  const long before = fake_nccl_calls("ncclCommInitRankConfig");
  const auto errors = on_devices(3, [&](int rank) {
    DeviceOptions own = options;
    own.device = rank == 2 ? 0 : rank;
    DeviceCommunicator::create(store, rank, 3, own);
  });
  for (const auto& error : errors) {
    CHECK(is_kind<InvalidArgument>(error));
    CHECK(text_of(error).find("Ranks 0 and 2 use the same GPU") != std::string::npos);
  }
  CHECK_EQ(fake_nccl_calls("ncclCommInitRankConfig"), before);
}

TEST(device_ranks_whose_options_differ) {
  const DeviceOptions options = device_options();
  const auto store = std::make_shared<HashStore>();
  const auto errors = on_devices(2, [&](int rank) {
    DeviceOptions own = options;
    own.device = rank;
    own.max_channels = rank == 0 ? 8 : 16;
    DeviceCommunicator::create(store, rank, 2, own);
  });
  for (const auto& error : errors) {
    CHECK(is_kind<MismatchError>(error));
    CHECK(text_of(error).find("max_channels 8") != std::string::npos);
    CHECK(text_of(error).find("max_channels 16") != std::string::npos);
  }
}

TEST(device_init_without_blocking) {
  DeviceOptions options = device_options();
  options.blocking = false;
  run_devices(3, options, [](const DeviceRank& r) {
    if (r.rank == 0) CHECK_EQ(sum_of(r), 6);  // waits until NCCL has connected
    CHECK(soon([&] { return r.communicator->ready(); }));
    if (r.rank != 0) CHECK_EQ(sum_of(r), 6);
  });
}

TEST(device_split_orders_by_key_then_rank) {
  run_devices(4, device_options(), [](const DeviceRank& r) {
    DeviceOptions options = device_options();
    options.device = r.rank;
    options.name = "child";
    options.max_channels = 3;
    const auto child = r.communicator->split(r.rank % 2, -r.rank, options);
    CHECK_EQ(child->size(), 2);
    CHECK_EQ(child->rank(), r.rank < 2 ? 1 : 0);
    CHECK_EQ(child->name(), "child");
    CHECK_EQ(config_of("child", child->rank()).max_ctas, 3);
    const Memory memory(std::size_t{4});
    *memory.as<int>() = r.rank;
    CHECK(child->enqueue(all_reduce_of(memory), r.stream)->wait());
    CHECK_EQ(*memory.as<int>(), r.rank % 2 == 0 ? 2 : 4);
    const auto some = r.communicator->split(r.rank == 3 ? -1 : 5, 0, options);
    CHECK_EQ(some == nullptr, r.rank == 3);
    const auto grandchild = child->split(0, 0, options);
    CHECK_EQ(sum_of({grandchild, r.stream, grandchild->rank(), 2}), 3);
    if (r.rank == 0) grandchild->shutdown();
    child->shutdown();
    if (r.rank != 0) grandchild->shutdown();
    if (some) CHECK_EQ(sum_of({some, r.stream, some->rank(), 3}), 6);
    CHECK_EQ(sum_of(r), 10);
  });
}

TEST(device_work_follows_its_stream_and_orders_others) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    const OwnStream other;
    const OwnStream third;
    static std::atomic<int> ran[2];
    ran[r.rank] = 0;
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    *memory.as<int>() = 1;
    fake_cuda_pause(r.stream);
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    CHECK(!work->completed());
    CHECK(!work->wait(Milliseconds{20}));
    work->order(other);
    r.communicator->follow(third, other);
    cuda_check(driver::cuda_host_function(third, count, &ran[r.rank]), "cuLaunchHostFunc");
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    CHECK_EQ(ran[r.rank].load(), 0);
    CHECK_EQ(*memory.as<int>(), 1);
    fake_cuda_resume(r.stream);
    third.synchronize();
    CHECK_EQ(ran[r.rank].load(), 1);
    CHECK_EQ(*memory.as<int>(), 2);
    CHECK(work->wait());
    work->order(other);  // done: nothing to wait for
    CHECK(work->engine() == Engine::kNccl);
    CHECK_EQ(work->sequence(), 1U);
  });
}

TEST(device_calls_work_on_the_null_stream) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    *memory.as<int>() = 4;
    CHECK(r.communicator->enqueue(all_reduce_of(memory), nullptr)->wait());
    CHECK_EQ(*memory.as<int>(), 8);
  });
}

// The thread that calls may have no device, or another one.
TEST(device_calls_need_no_current_device) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    *memory.as<int>() = 1;
    std::exception_ptr error;
    std::thread([&] {
      try {
        CHECK(r.communicator->enqueue(all_reduce_of(memory), r.stream)->wait());
        driver::Context current = nullptr;
        driver::cuda_context_get(&current);
        CHECK(current == nullptr);
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
    use_device(1 - r.rank);
    CHECK(r.communicator->enqueue(all_reduce_of(memory), r.stream)->wait());
    CHECK_EQ(*memory.as<int>(), 4);
    use_device(r.rank);
  });
}

// While a capture goes on anywhere, neither calls nor the watchdog may spoil it.
TEST(device_calls_are_captured) {
  const DeviceOptions options = device_options();
  run_devices(1, options, [&](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    const OwnStream side;
    const auto before = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    CHECK(before->wait());
    fake_cuda_set_capturing(r.stream, driver::kCaptureActive);
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    CHECK(!work->completed());
    CHECK_THROWS(InvalidArgument, "captured", work->wait(Milliseconds{10}));
    work->order(side);
    int status = 0;
    driver::cuda_stream_capture_status(side, &status);
    CHECK_EQ(status, driver::kCaptureActive);
    CHECK(before->completed());
    std::this_thread::sleep_for(std::chrono::milliseconds{300});  // the watchdog looks a few times
    driver::cuda_stream_capture_status(r.stream, &status);
    CHECK_EQ(status, driver::kCaptureActive);
    fake_cuda_set_capturing(r.stream, driver::kCaptureNone);
    CHECK(!work->completed());
    CHECK_EQ(sum_of(r), 1);
    const DeviceStatistics statistics = r.communicator->statistics();
    CHECK_EQ(statistics.enqueued, 3U);
    CHECK_EQ(statistics.captured, 1U);
    CHECK_EQ(statistics.completed, 2U);
    CHECK_EQ(statistics.nccl_calls, 3U);
    CHECK(log_of(options.name, 0).find("captured=1") != std::string::npos);
  });
}

// Work that is on its way on another stream when a capture begins.
TEST(device_watchdog_spoils_no_capture) {
  run_devices(1, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    const OwnStream captured;
    fake_cuda_pause(r.stream);
    const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
    fake_cuda_set_capturing(captured, driver::kCaptureActive);
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    CHECK(!work->completed());
    CHECK(!work->wait(Milliseconds{10}));
    fake_cuda_resume(r.stream);
    CHECK(work->wait());
    CHECK_EQ(r.communicator->statistics().completed, 1U);
    int status = 0;
    driver::cuda_stream_capture_status(captured, &status);
    CHECK_EQ(status, driver::kCaptureActive);
    fake_cuda_set_capturing(captured, driver::kCaptureNone);
  });
}

// A program that drops its works: events are used again, long before the communicator ends.
TEST(device_events_are_used_again) {
  run_devices(1, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    const long before = fake_cuda_live_events();
    for (int i = 0; i < 2000; ++i) {
      r.communicator->enqueue(all_reduce_of(memory), r.stream);
      if (i % 100 == 99) r.stream.synchronize();
    }
    CHECK(fake_cuda_live_events() - before <= 400);
    CHECK(soon([&] { return r.communicator->statistics().completed == 2000U; }));
  });
}

TEST(device_communicators_leave_nothing_behind) {
  const auto held = [] {
    return std::vector<long>{fake_cuda_live_events(), fake_cuda_live_streams(),
                             static_cast<long>(fake_cuda_live_bytes()),
                             fake_nccl_live_communicators()};
  };
  // Other tests' threads may still be at work, aborting.
  CHECK(soon([&] { return fake_nccl_live_communicators() == 0; }));
  const auto before = held();
  for (int round = 0; round < 3; ++round) {
    std::shared_ptr<DeviceWork> kept;
    run_devices(2, device_options(), [&](const DeviceRank& r) {
      DeviceOptions options = device_options();
      options.device = r.rank;
      options.name = "child of " + std::to_string(round);
      const auto child = r.communicator->split(0, 0, options);
      CHECK_EQ(sum_of(r), 3);
      CHECK_EQ(sum_of({child, r.stream, r.rank, 2}), 3);
      const Memory memory(std::size_t{4});
      const auto work = r.communicator->enqueue(all_reduce_of(memory), r.stream);
      CHECK(work->wait());
      if (r.rank == 0) kept = work;  // outlives its communicator
    });
    CHECK(kept->completed());
  }
  const bool gone = soon([&] { return held() == before; }, Milliseconds{5'000});
  if (!gone)
    FAIL("left: " + std::to_string(held()[0] - before[0]) + " events, " +
         std::to_string(held()[1] - before[1]) + " streams, " +
         std::to_string(held()[2] - before[2]) + " bytes, " +
         std::to_string(held()[3] - before[3]) + " communicators");
}

// With one rank: a capture is spoilt by what other threads do.
TEST(device_captured_calls_leave_no_events_behind) {
  const long before = fake_cuda_live_events();
  run_devices(1, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    const OwnStream other;
    r.communicator->follow(other, r.stream);
    fake_cuda_set_capturing(other, driver::kCaptureActive);
    CHECK(!r.communicator->enqueue(all_reduce_of(memory), other)->completed());
    fake_cuda_set_capturing(other, driver::kCaptureNone);
    CHECK_EQ(sum_of(r), 1);
  });
  CHECK(soon([&] { return fake_cuda_live_events() == before; }, Milliseconds{5'000}));
}

TEST(device_shutdown_in_any_order) {
  const auto store = std::make_shared<HashStore>();
  const DeviceOptions first = device_options();
  const DeviceOptions second = device_options();
  const long live = fake_nccl_live_communicators();
  rethrow_first(on_devices(2, [&](int rank) {
    const auto make = [&](DeviceOptions options) {
      options.device = rank;
      return DeviceCommunicator::create(store, rank, 2, options);
    };
    const auto a = make(first);
    const auto b = make(second);
    const OwnStream stream;
    CHECK_EQ(sum_of({a, stream, rank, 2}), 3);
    CHECK_EQ(sum_of({b, stream, rank, 2}), 3);
    (rank == 0 ? a : b)->shutdown();
    (rank == 0 ? b : a)->shutdown();
    a->shutdown();  // again
    CHECK_THROWS(AbortedError, "was shut down", sum_of({a, stream, rank, 2}));
    CHECK(is_kind<AbortedError>(a->error()));
  }));
  CHECK_EQ(fake_nccl_live_communicators(), live);
}

// What is on the stream when a rank leaves is still done.
TEST(device_shutdown_waits_for_what_is_enqueued) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    const Memory memory(std::size_t{4});
    *memory.as<int>() = 1;
    if (r.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds{200});
    r.communicator->enqueue(all_reduce_of(memory), r.stream);
    r.communicator->shutdown();
    CHECK_EQ(*memory.as<int>(), 2);
  });
}

TEST(device_trace_tells_the_calls) {
  run_devices(2, device_options(), [](const DeviceRank& r) {
    CHECK_EQ(sum_of(r), 3);
    const std::string json = r.communicator->trace_json();
    CHECK(json.find("\"all_reduce\"") != std::string::npos);
    CHECK(json.find("\"int32\"") != std::string::npos);
  });
}

TEST(device_rules_steer_nccl_through_the_plugin) {
  DeviceOptions options = device_options();
  options.rules = std::make_shared<const Rules>(
      Rules::parse("allreduce,0,1024,tree,simple,5,-1,-1,-1,-1,nccl\n", "test.csv"));
  run_devices(2, options, [&](const DeviceRank& r) {
    const Memory memory(std::size_t{8192});
    CHECK(r.communicator->enqueue(all_reduce_of(memory, 8), r.stream)->wait());
    CHECK(r.communicator->enqueue(all_reduce_of(memory, 2048), r.stream)->wait());
    const std::string log = log_of(options.name, r.rank);
    CHECK(log.find(
              "count=8 type=int32 op=sum captured=0 algorithm=tree protocol=simple channels=5") !=
          std::string::npos);
    CHECK(log.find("count=2048 type=int32 op=sum captured=0 algorithm=tree protocol=simple") ==
          std::string::npos);
    const auto [engine, choice] = r.communicator->choice_for(all_reduce_of(memory, 8));
    CHECK(engine == Engine::kNccl);
    CHECK_EQ(choice.algorithm, "tree");
    CHECK_EQ(choice.channels, 5);
  });
  // Other communicators stay as they were.
  const DeviceOptions plain = device_options();
  run_devices(2, plain, [&](const DeviceRank& r) {
    CHECK_EQ(sum_of(r), 3);
    CHECK(log_of(plain.name, r.rank).find("channels=5") == std::string::npos);
  });
}

}  // namespace
}  // namespace accl::test
