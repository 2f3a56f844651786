// Sends and receives: matching by source and tag, order, groups, messages to oneself.
#include <algorithm>
#include <numeric>

#include "contract/elements.h"
#include "contract/ranks.h"
#include "harness/test.h"

namespace accl::test {
namespace {

Call message(Collective kind, int peer, int tag, std::vector<std::byte>& data) {
  Call call;
  call.collective = kind;
  call.dtype = DType::kUint8;
  call.count = data.size();
  call.peer = peer;
  call.tag = tag;
  (kind == Collective::kSend ? call.input : call.output).data = data.data();
  return call;
}

std::vector<std::byte> filled(int from, int tag, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(from, tag, i);
  return data;
}

const std::vector<std::size_t> kSizes = {0,   1,   31,   32,   33,   80,    81,       255,
                                         256, 257, 4095, 4096, 4097, 65537, 3'000'001};

TEST(messages_of_every_size_arrive) {
  run_ranks(2, [](Communicator& c) {
    for (const std::size_t bytes : kSizes) {
      auto data = c.rank() == 0 ? filled(0, 5, bytes) : std::vector<std::byte>(bytes);
      const auto kind = c.rank() == 0 ? Collective::kSend : Collective::kRecv;
      const auto work = c.post(message(kind, 1 - c.rank(), 5, data));
      CHECK(work->wait());
      CHECK(data == filled(0, 5, bytes));
      if (c.rank() == 1) CHECK_EQ(work->source_rank(), 0);
    }
  });
}

TEST(tags_are_matched_out_of_order) {
  run_ranks(2, [](Communicator& c) {
    const std::vector<int> tags = {3, 1, 2};
    std::vector<std::vector<std::byte>> data;
    std::vector<std::shared_ptr<Work>> works;
    if (c.rank() == 0) {
      for (const int tag : tags) data.push_back(filled(0, tag, 100'000));
      for (std::size_t i = 0; i < 3; ++i)
        works.push_back(c.post(message(Collective::kSend, 1, tags[i], data[i])));
      for (const auto& work : works) CHECK(work->wait());
      return;
    }
    for (int tag = 1; tag <= 3; ++tag) {
      std::vector<std::byte> got(100'000);
      CHECK(c.post(message(Collective::kRecv, 0, tag, got))->wait());
      CHECK(got == filled(0, tag, 100'000));
    }
  });
}

TEST(messages_of_one_tag_keep_their_order) {
  run_ranks(3, [](Communicator& c) {
    std::vector<std::vector<std::byte>> data;
    std::vector<std::shared_ptr<Work>> works;
    for (int k = 0; k < 50; ++k)
      data.push_back(c.rank() == 0 ? filled(k, 0, 500) : std::vector<std::byte>(500));
    for (auto& d : data) {
      if (c.rank() == 0) works.push_back(c.post(message(Collective::kSend, 2, 9, d)));
      if (c.rank() == 2) works.push_back(c.post(message(Collective::kRecv, 0, 9, d)));
    }
    for (const auto& work : works) CHECK(work->wait());
    if (c.rank() != 2) return;
    for (int k = 0; k < 50; ++k) CHECK(data[static_cast<std::size_t>(k)] == filled(k, 0, 500));
  });
}

TEST(any_source_takes_whoever_comes) {
  run_ranks(4, [](Communicator& c) {
    if (c.rank() != 0) {
      auto data = filled(c.rank(), 1, 5000);
      CHECK(c.post(message(Collective::kSend, 0, 1, data))->wait());
      return;
    }
    std::vector<int> sources;
    for (int k = 0; k < 3; ++k) {
      std::vector<std::byte> got(5000);
      const auto work = c.post(message(Collective::kRecv, kAnySource, 1, got));
      CHECK(work->wait());
      CHECK(got == filled(work->source_rank(), 1, 5000));
      sources.push_back(work->source_rank());
    }
    std::sort(sources.begin(), sources.end());
    CHECK(sources == std::vector<int>({1, 2, 3}));
  });
}

TEST(both_sides_may_send_first) {
  run_ranks(2, [](Communicator& c) {
    auto out = filled(c.rank(), 2, 3'000'000);
    CHECK(c.post(message(Collective::kSend, 1 - c.rank(), 2, out))->wait());
    std::vector<std::byte> got(3'000'000);
    CHECK(c.post(message(Collective::kRecv, 1 - c.rank(), 2, got))->wait());
    CHECK(got == filled(1 - c.rank(), 2, 3'000'000));
  });
}

TEST(a_rank_may_send_to_itself) {
  run_ranks(2, [](Communicator& c) {
    for (const bool receive_first : {false, true}) {
      auto out = filled(c.rank(), 4, 1000);
      std::vector<std::byte> got(1000);
      std::vector<std::shared_ptr<Work>> works;
      if (receive_first) works.push_back(c.post(message(Collective::kRecv, c.rank(), 4, got)));
      works.push_back(c.post(message(Collective::kSend, c.rank(), 4, out)));
      if (!receive_first) works.push_back(c.post(message(Collective::kRecv, c.rank(), 4, got)));
      for (const auto& work : works) CHECK(work->wait());
      CHECK(got == out);
    }
  });
}

TEST(groups_need_no_order) {
  for (const int ranks : {2, 3, 5}) {
    run_ranks(ranks, [](Communicator& c) {
      std::vector<std::vector<std::byte>> out;
      std::vector<std::vector<std::byte>> in;
      for (int peer = 0; peer < c.size(); ++peer) {
        out.push_back(filled(c.rank(), peer, 700'000));
        in.emplace_back(700'000);
      }
      std::vector<Call> calls;
      for (int peer = 0; peer < c.size(); ++peer) {
        const auto p = static_cast<std::size_t>(peer);
        calls.push_back(message(Collective::kRecv, peer, peer * 100 + c.rank(), in[p]));
        calls.push_back(message(Collective::kSend, peer, c.rank() * 100 + peer, out[p]));
      }
      std::rotate(calls.begin(), calls.begin() + c.rank(), calls.end());
      CHECK(c.post_group(calls)->wait());
      for (int peer = 0; peer < c.size(); ++peer) {
        CHECK(in[static_cast<std::size_t>(peer)] == filled(peer, c.rank(), 700'000));
      }
    });
  }
}

TEST(messages_run_beside_collectives) {
  run_ranks(2, [](Communicator& c) {
    auto data = c.rank() == 0 ? filled(0, 1, 2'000'000) : std::vector<std::byte>(2'000'000);
    std::shared_ptr<Work> send;
    if (c.rank() == 0) send = c.post(message(Collective::kSend, 1, 1, data));
    float x = 1.0f;
    Call call;
    call.input.data = call.output.data = &x;
    call.count = 1;
    CHECK(c.post(call)->wait());  // rank 1 receives only after it
    CHECK_EQ(x, 2.0f);
    if (c.rank() == 1) {
      CHECK(c.post(message(Collective::kRecv, 0, 1, data))->wait());
      CHECK(data == filled(0, 1, 2'000'000));
    } else {
      CHECK(send->wait());
    }
  });
}

TEST(an_empty_group_is_complete) {
  run_ranks(2, [](Communicator& c) { CHECK(c.post_group({})->wait()); });
}

TEST(a_wrong_size_is_a_named_error_on_both_sides) {
  const auto errors = run_ranks_with_errors(2, quick_options(), [](Communicator& c) {
    std::vector<std::byte> data(c.rank() == 0 ? 8 : 16);
    const auto kind = c.rank() == 0 ? Collective::kSend : Collective::kRecv;
    c.post(message(kind, 1 - c.rank(), 7, data))->wait();
    Call barrier;
    barrier.collective = Collective::kBarrier;
    c.post(barrier)->wait();
  });
  for (const auto& error : errors) {
    CHECK(is_kind<MismatchError>(error) || is_kind<AbortedError>(error));
    CHECK(text_of(error).find("rank 0 sent 8 bytes with tag 7, but rank 1 receives 16 bytes") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace accl::test
