#include "trace/trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "harness/test.h"
#include "trace/dump_file.h"
#include "trace/json.h"
#include "trace/ticks.h"
#include "unit/json_reader.h"
#include "unit/temporary_directory.h"

namespace accl::trace {

namespace {

using test::Json;
using test::parse_json;
using test::read_file;
using test::TemporaryDirectory;

Record record(std::uint64_t sequence) {
  Record r;
  r.sequence = sequence;
  r.bytes = sequence * 8;
  r.algorithm = "ring";
  r.protocol = "bulk";
  r.chunk_bytes = 4096;
  return r;
}

const Traffic kTraffic{1, 2, 3, 4, 5};

Json read(const Trace& trace) { return parse_json(trace.to_json("test")); }

}  // namespace

TEST(trace_header_says_whose_it_is) {
  const Trace trace("world \"1\"\n", 3, 8);
  const Json json = parse_json(trace.to_json("a \\ reason"));
  CHECK_EQ(json["accl_trace"].number(), 1);
  CHECK_EQ(json["communicator"].text(), "world \"1\"\n");
  CHECK_EQ(json["rank"].number(), 3);
  CHECK_EQ(json["size"].number(), 8);
  CHECK_EQ(json["pid"].number(), ::getpid());
  CHECK_EQ(json["version"].text(), ACCL_VERSION);
  CHECK_EQ(json["reason"].text(), "a \\ reason");
  CHECK(!json["host"].text().empty());
  CHECK_EQ(json["capacity"].number(), 2048);
  CHECK_EQ(json["recorded"].number(), 0);
  CHECK(json["operations"].items().empty());
  const double now =
      std::chrono::duration<double, std::nano>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  CHECK(std::abs(json["unix_ns"].number() - now) < 60e9);
}

TEST(trace_operations_pass_through_their_states) {
  Trace trace("world", 0, 2);
  const Handle handle = trace.begin(record(7));
  Json operation = read(trace)["operations"].items().at(0);
  CHECK_EQ(operation["state"].text(), "posted");
  CHECK_EQ(operation["sequence"].number(), 7);
  CHECK_EQ(operation["collective"].text(), "all_reduce");
  CHECK_EQ(operation["bytes"].number(), 56);
  CHECK_EQ(operation["dtype"].text(), "float32");
  CHECK_EQ(operation["reduce_op"].text(), "sum");
  CHECK_EQ(operation["algorithm"].text(), "ring");
  CHECK_EQ(operation["protocol"].text(), "bulk");
  CHECK_EQ(operation["chunk_bytes"].number(), 4096);
  CHECK_EQ(operation["calls"].number(), 1);
  for (const char* key : {"root", "peer", "tag", "started_ns", "ended_ns", "traffic", "error"}) {
    if (!operation[key].is_null()) FAIL(std::string(key) + " is given");
  }
  trace.started(handle);
  operation = read(trace)["operations"].items().at(0);
  CHECK_EQ(operation["state"].text(), "started");
  CHECK(operation["ended_ns"].is_null());
  trace.finished(handle, kTraffic);
  operation = read(trace)["operations"].items().at(0);
  CHECK_EQ(operation["state"].text(), "completed");
  CHECK(operation["posted_ns"].number() <= operation["started_ns"].number());
  CHECK(operation["started_ns"].number() <= operation["ended_ns"].number());
  CHECK_EQ(operation["traffic"]["messages_sent"].number(), 1);
  CHECK_EQ(operation["traffic"]["bytes_sent"].number(), 2);
  CHECK_EQ(operation["traffic"]["messages_received"].number(), 3);
  CHECK_EQ(operation["traffic"]["bytes_received"].number(), 4);
  CHECK_EQ(operation["traffic"]["bytes_reduced"].number(), 5);
}

TEST(trace_ended_operations_change_no_more) {
  Trace trace("world", 0, 2);
  const Handle first = trace.begin(record(1));
  trace.finished(first, kTraffic);  // without having been started
  trace.failed(first, "too late");
  trace.started(first);
  const Handle second = trace.begin(record(2));
  trace.failed(second, "a \"reason\"\twith\x01 odd \xFF bytes and \xC3\xBC");
  trace.finished(second, kTraffic);
  trace.finished(0, kTraffic);
  trace.finished(77, kTraffic);
  const Json json = read(trace);
  const auto& operations = json["operations"].items();
  CHECK_EQ(operations.size(), 2U);
  CHECK_EQ(operations[0]["state"].text(), "completed");
  CHECK(operations[0]["error"].is_null());
  CHECK(operations[0]["started_ns"].is_null());
  CHECK_EQ(operations[1]["state"].text(), "failed");
  CHECK(operations[1]["traffic"].is_null());
  CHECK_EQ(operations[1]["error"].text(),
           "a \"reason\"\twith\x01 odd \xEF\xBF\xBD bytes and \xC3\xBC");
}

TEST(trace_shows_root_and_peer_where_they_mean_something) {
  Trace trace("world", 0, 2);
  const auto show = [&](Collective collective, int root_or_peer, int tag) {
    Record r = record(1);
    r.collective = collective;
    r.root_or_peer = root_or_peer;
    r.tag = tag;
    r.calls = 4;
    trace.begin(r);
    return read(trace)["operations"].items().back();
  };
  const Json broadcast = show(Collective::kBroadcast, 5, 9);
  CHECK_EQ(broadcast["root"].number(), 5);
  CHECK(broadcast["peer"].is_null() && broadcast["tag"].is_null() &&
        broadcast["reduce_op"].is_null());
  const Json reduce = show(Collective::kReduce, 1, 0);
  CHECK_EQ(reduce["root"].number(), 1);
  CHECK_EQ(reduce["reduce_op"].text(), "sum");
  const Json send = show(Collective::kSend, 2, -7);
  CHECK_EQ(send["peer"].number(), 2);
  CHECK_EQ(send["tag"].number(), -7);
  CHECK_EQ(send["calls"].number(), 4);
  CHECK(send["root"].is_null());
  const Json any = show(Collective::kRecv, -1, 3);
  CHECK(any["peer"].is_null());
  CHECK_EQ(any["tag"].number(), 3);
  CHECK(show(Collective::kAllGather, 0, 0)["root"].is_null());
}

TEST(trace_keeps_the_last_operations) {
  Trace trace("world", 0, 2);
  const Handle old = trace.begin(record(1));
  for (std::uint64_t i = 2; i <= 5000; ++i) {
    const Handle handle = trace.begin(record(i));
    i % 2 == 0 ? trace.finished(handle, kTraffic)
               : trace.failed(handle, "failure " + std::to_string(i));
  }
  trace.failed(old, "it has left the ring");
  const Json json = read(trace);
  CHECK_EQ(json["recorded"].number(), 5000);
  const auto& operations = json["operations"].items();
  CHECK_EQ(operations.size(), 2048U);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto sequence = static_cast<double>(5000 - 2048 + 1 + i);
    CHECK_EQ(operations[i]["sequence"].number(), sequence);
    CHECK_EQ(operations[i]["bytes"].number(), sequence * 8);
    if (operations[i]["state"].text() == "failed") {
      CHECK_EQ(operations[i]["error"].text(),
               "failure " + std::to_string(static_cast<int>(sequence)));
    }
  }
}

TEST(trace_times_are_those_of_the_steady_clock) {
  Trace trace("world", 0, 1);
  for (int i = 1; i <= 20; ++i) {
    const std::int64_t before = steady_ns();
    const Handle handle = trace.begin(record(1));
    const std::int64_t between = steady_ns();
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 5));
    const std::int64_t later = steady_ns();
    trace.finished(handle, kTraffic);
    const std::int64_t after = steady_ns();
    const Json operation = read(trace)["operations"].items().back();
    constexpr double kSlack = 100e3;  // an anchor is taken on a busy machine
    CHECK(operation["posted_ns"].number() > static_cast<double>(before) - kSlack);
    CHECK(operation["posted_ns"].number() < static_cast<double>(between) + kSlack);
    CHECK(operation["ended_ns"].number() > static_cast<double>(later) - kSlack);
    CHECK(operation["ended_ns"].number() < static_cast<double>(after) + kSlack);
  }
}

// Fields of one record belong together, whenever another thread reads them.
TEST(trace_may_be_read_while_it_is_written) {
  Trace trace("world", 0, 2);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
      Record r = record(i);
      r.chunk_bytes = i * 64;
      r.collective = Collective::kSend;
      r.tag = static_cast<int>(i & 0xFFFFFF);
      r.algorithm = i % 2 == 0 ? "even" : "odd";
      const Handle handle = trace.begin(r);
      trace.started(handle);
      if (i % 8 == 0) {
        trace.failed(handle, "failure " + std::to_string(i));
      } else {
        trace.finished(handle, {i, i, i, i, i});
      }
    }
  });
  std::exception_ptr failure;
  std::size_t seen = 0;
  try {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (seen < 4 * kCapacity && std::chrono::steady_clock::now() < deadline) {
      double last = 0;
      const Json json = read(trace);
      for (const Json& operation : json["operations"].items()) {
        const double i = operation["sequence"].number();
        CHECK(i > last);
        last = i;
        ++seen;
        CHECK_EQ(operation["bytes"].number(), i * 8);
        CHECK_EQ(operation["chunk_bytes"].number(), i * 64);
        CHECK_EQ(operation["tag"].number(),
                 static_cast<double>(static_cast<std::uint64_t>(i) & 0xFFFFFF));
        CHECK_EQ(operation["algorithm"].text(), std::fmod(i, 2) == 0 ? "even" : "odd");
        if (operation["state"].text() == "completed") {
          CHECK_EQ(operation["traffic"]["bytes_reduced"].number(), i);
          CHECK(operation["ended_ns"].number() >= operation["posted_ns"].number());
        }
      }
    }
  } catch (...) {
    failure = std::current_exception();
  }
  stop = true;
  writer.join();
  if (failure) std::rethrow_exception(failure);
  CHECK(seen >= 4 * kCapacity);
}

TEST(trace_dump_is_a_private_file_of_its_own) {
  const TemporaryDirectory directory;
  Trace trace("a/b ../c\n", 3, 4);
  trace.begin(record(1));
  const std::string stem =
      directory.path() + "/accl-trace-a_b_.._c_-rank3-pid" + std::to_string(::getpid());
  directory.write(std::filesystem::path(stem + "-2.json").filename().string(), "somebody's");
  CHECK_EQ(trace.dump(directory.path(), "timeout"), stem + "-1.json");
  CHECK_EQ(trace.dump(directory.path(), "again"), stem + "-3.json");
  CHECK_EQ(read_file(stem + "-2.json"), "somebody's");
  CHECK_EQ(parse_json(read_file(stem + "-1.json"))["reason"].text(), "timeout");
  CHECK_EQ(parse_json(read_file(stem + "-3.json"))["operations"].items().size(), 1U);
  struct stat status{};
  CHECK_EQ(::stat((stem + "-1.json").c_str(), &status), 0);
  CHECK_EQ(status.st_mode & 0777, 0600U);
  CHECK_EQ(status.st_nlink, 1U);
  // Nothing else is left behind.
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    files.insert(entry.path());
  CHECK_EQ(files.size(), 3U);
}

TEST(trace_dump_that_fails_is_no_error) {
  const TemporaryDirectory directory;
  const Trace trace("world", 0, 1);
  CHECK_EQ(trace.dump(directory.path() + "/none", "timeout"), "");
  CHECK_EQ(trace.dump(directory.write("file", "x"), "timeout"), "");
  CHECK_EQ(trace.dump("/proc", "timeout"), "");
  CHECK_EQ(trace.dump("/dev/full", "timeout"), "");
}

TEST(trace_dump_names_do_not_leave_their_directory) {
  const std::string pid = std::to_string(::getpid());
  CHECK_EQ(dump_stem("../../etc/passwd", 0), "accl-trace-.._.._etc_passwd-rank0-pid" + pid);
  CHECK_EQ(dump_stem(std::string("a\0b", 3), 1), "accl-trace-a_b-rank1-pid" + pid);
  CHECK(dump_stem(std::string(10'000, 'x'), 2).size() < 120);
}

TEST(trace_json_strings_are_utf8_whatever_comes) {
  const auto shown = [](std::string_view text) {
    std::string to;
    append_string(to, text);
    return to;
  };
  CHECK_EQ(shown("a\"b\\c\n\x1f\x7f"), "\"a\\\"b\\\\c\\n\\u001f\\u007f\"");
  CHECK_EQ(shown("\xE6\x97\xA5 \xF0\x9F\x98\x80"), "\"\xE6\x97\xA5 \xF0\x9F\x98\x80\"");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK_EQ(shown("\xC3"), "\"" + bad + "\"");                                // cut off
  CHECK_EQ(shown("\xC0\xAF"), "\"" + bad + bad + "\"");                      // overlong
  CHECK_EQ(shown("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"");            // a surrogate
  CHECK_EQ(shown("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // above U+10FFFF
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = {'x', static_cast<char>(byte), 'y'};
    const Json json = parse_json(shown(text));
    if (byte < 128) {
      CHECK_EQ(json.text(), text);
    } else {
      CHECK_EQ(json.text(), "x" + bad + "y");
    }
  }
}

TEST(trace_states_have_names) {
  CHECK_EQ(name_of(State::kPosted), "posted");
  CHECK_EQ(name_of(State::kStarted), "started");
  CHECK_EQ(name_of(State::kCompleted), "completed");
  CHECK_EQ(name_of(State::kFailed), "failed");
}

}  // namespace accl::trace
