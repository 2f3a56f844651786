#include "communicator/device_join.h"

#include <array>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/host.h"
#include "base/text.h"
#include "base/version.h"
#include "communicator/meeting.h"
#include "engine/nccl/library.h"
#include "engine/nccl/steering.h"

namespace accl {

namespace {

constexpr std::size_t kFields = 9;
constexpr char kNoKernels = '-';

// What a rank brings to the meeting: one field a line.
struct Card {
  std::string version;
  std::string size;
  std::string host;       // whose memory it can map
  std::string nccl_host;  // where NCCL takes it to be
  std::string gpu;
  std::string nccl;     // version
  std::string rules;    // digest
  std::string options;  // those that must agree
  std::string kernels;  // address, or '-' and the reason why not

  std::array<std::string*, kFields> fields() {
    return {&version, &size, &host, &nccl_host, &gpu, &nccl, &rules, &options, &kernels};
  }
  std::string text() {
    std::string all;
    for (const std::string* field : fields()) all += *field + "\n";
    return all;
  }
};

Card card_from(const std::string& text, int rank) {
  Card card;
  std::size_t at = 0;
  for (std::string* field : card.fields()) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos)
      throw MismatchError(concat("Rank ", rank,
                                 " joins with a card that this version cannot read; use the same "
                                 "ACCL-N on every rank."));
    *field = text.substr(at, end - at);
    at = end + 1;
  }
  return card;
}

std::string gpu_of(int ordinal) {
  const driver::Table& cuda = driver::table();
  driver::Device device = 0;
  driver::check(cuda.device_get(&device, ordinal), "cuDeviceGet");
  driver::Uuid uuid{};
  driver::check(cuda.device_uuid(&uuid, device), "cuDeviceGetUuid");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : uuid.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

std::string options_text(const DeviceOptions& options) {
  return concat("kernels ", options.kernels, ", blocking ", options.blocking, ", min_channels ",
                options.min_channels, ", max_channels ", options.max_channels,
                ", cga_cluster_size ", options.cga_cluster_size, ", traffic_class ",
                options.traffic_class, ", network ", options.network, ", split_share ",
                options.split_share);
}

Card own_card(int size, const DeviceOptions& options, const Rules& rules) {
  Card card;
  card.version = kVersion;
  card.size = std::to_string(size);
  card.host = host_id();
  const std::string& nccl_host = environment().nccl_host_id;
  card.nccl_host = nccl_host.empty() ? card.host : one_line(nccl_host);
  card.gpu = gpu_of(options.device);
  card.nccl = std::to_string(nccl::library().version);
  card.rules = rules.digest();
  card.options = one_line(options_text(options));
  return card;
}

void require_equal(const std::vector<Card>& cards, std::string Card::* field, const char* what) {
  for (std::size_t r = 1; r < cards.size(); ++r) {
    if (cards[r].*field == cards[0].*field) continue;
    throw MismatchError(concat("The ranks differ in ", what, ": rank 0 has ", cards[0].*field,
                               ", rank ", r, " has ", cards[r].*field,
                               "; all must have the same."));
  }
}

// NCCL takes two ranks on one GPU for a mistake, which it nearly always is.
void require_own_gpus(const std::vector<Card>& cards) {
  if (environment().nccl_shares_gpus) return;
  for (std::size_t a = 0; a < cards.size(); ++a) {
    for (std::size_t b = a + 1; b < cards.size(); ++b) {
      if (cards[a].gpu != cards[b].gpu || cards[a].nccl_host != cards[b].nccl_host) continue;
      throw InvalidArgument(concat(
          "Ranks ", a, " and ", b, " use the same GPU (", cards[a].gpu,
          "); give each rank its own: torch.cuda.set_device(LOCAL_RANK), device_id, or "
          "CUDA_VISIBLE_DEVICES. To share a GPU on purpose, for tests, set a distinct NCCL_HOSTID "
          "in each process, or NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30 or later."));
    }
  }
}

int count_nodes(const std::vector<Card>& cards) {
  std::set<std::string> hosts;
  for (const Card& card : cards) hosts.insert(card.nccl_host);
  return static_cast<int>(hosts.size());
}

// Why this rank's kernels are out of the question, before others are asked.
std::string open_kernels(DeviceParts& parts, const DeviceOptions& options) {
  std::string why;
  if (!options.kernels) return "they are switched off (kernels is false)";
  if (parts.size == 1) return "there is one rank";
  if (parts.size > cuda::kMostRanks)
    return concat("there are ", parts.size, " ranks, and the kernels take up to ",
                  cuda::kMostRanks);
  if (!cuda::KernelEngine::built_in(&why)) return why;
  try {
    parts.kernels = cuda::KernelEngine::open(parts.rank, parts.size, options.device);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string shared_reason(const std::vector<Card>& cards) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].kernels.empty() || cards[r].kernels[0] != kNoKernels) continue;
    return r == 0 ? cards[r].kernels.substr(1)
                  : concat("rank ", r, ": ", cards[r].kernels.substr(1));
  }
  for (const Card& card : cards) {
    if (card.host != cards[0].host) return "the ranks are on several hosts";
  }
  return {};
}

// All ranks have kernels, or none: a second meeting tells who could map the others' memory.
void connect_kernels(DeviceParts& parts, const std::vector<Card>& cards, const std::string& name,
                     Milliseconds timeout) {
  parts.why_no_kernels = shared_reason(cards);
  if (!parts.why_no_kernels.empty()) {
    parts.kernels.reset();
    return;
  }
  std::vector<std::string> addresses;
  for (const Card& card : cards) addresses.push_back(card.kernels);
  std::string fault;
  try {
    parts.kernels->connect(addresses);
  } catch (const Error& error) {
    fault = concat(kNoKernels, one_line(error.what()));
  }
  const Meeting verdict = meet(*parts.store, concat(name, "/kernels/", parts.id), parts.rank,
                               parts.size, fault.empty() ? "yes" : fault, timeout);
  for (std::size_t r = 0; r < verdict.texts.size(); ++r) {
    if (verdict.texts[r] == "yes") continue;
    parts.why_no_kernels = concat("rank ", r, ": ", verdict.texts[r].substr(1));
    parts.kernels.reset();
    return;
  }
}

std::vector<Card> cards_of(const Meeting& meeting, std::vector<std::string>* rests = nullptr) {
  std::vector<Card> cards;
  for (std::size_t r = 0; r < meeting.texts.size(); ++r) {
    cards.push_back(card_from(meeting.texts[r], static_cast<int>(r)));
    if (rests != nullptr) {
      std::string own = cards.back().text();
      rests->push_back(meeting.texts[r].substr(own.size()));
    }
  }
  return cards;
}

void compare(const std::vector<Card>& cards) {
  require_equal(cards, &Card::version, "the version of ACCL-N");
  require_equal(cards, &Card::size, "the number of ranks");
  require_equal(cards, &Card::nccl, "the version of NCCL");
  require_equal(cards, &Card::rules, "the digest of their rules");
  require_equal(cards, &Card::options, "their options");
  require_own_gpus(cards);
}

}  // namespace

nccl::EngineOptions engine_options(const DeviceOptions& options,
                                   std::shared_ptr<const Rules> rules) {
  nccl::EngineOptions made;
  made.name = options.name;
  made.blocking = options.blocking;
  made.min_channels = options.min_channels;
  made.max_channels = options.max_channels;
  made.cga_cluster_size = options.cga_cluster_size;
  made.traffic_class = options.traffic_class;
  made.network = options.network;
  made.split_share = options.split_share;
  made.timeout = options.timeout;
  made.rules = std::move(rules);
  return made;
}

DeviceParts join_device(std::shared_ptr<Store> store, int rank, int size,
                        std::shared_ptr<const Rules> rules, const DeviceOptions& options) {
  DeviceParts parts;
  parts.rank = rank;
  parts.size = size;
  parts.store = std::move(store);
  parts.rules = std::move(rules);
  const std::string name = concat(options.name, "/device");
  const auto engine = engine_options(options, parts.rules);
  Card own;
  std::string unique_id;
  try {
    nccl::validate(engine);
    parts.context = driver::primary_context(options.device);
    const driver::Current current(parts.context);
    own = own_card(size, options, *parts.rules);
    const std::string why = open_kernels(parts, options);
    own.kernels = why.empty() ? parts.kernels->address() : concat(kNoKernels, one_line(why));
    nccl::prepare_steering();
    if (rank == 0) unique_id = nccl::make_unique_id();
  } catch (const Error& error) {
    decline_meeting(*parts.store, name, rank, error.what());
    throw;
  }
  const Meeting meeting =
      meet(*parts.store, name, rank, size, own.text() + unique_id, options.timeout);
  parts.id = meeting.id;
  std::vector<std::string> rests;
  const auto cards = cards_of(meeting, &rests);
  compare(cards);
  parts.nodes = count_nodes(cards);
  const driver::Current current(parts.context);
  connect_kernels(parts, cards, name, options.timeout);
  parts.bulletin = std::make_unique<Bulletin>(parts.store, parts.id, rank, size);
  parts.engine = nccl::Engine::join(rests[0], rank, size, parts.context, engine);
  return parts;
}

DeviceParts join_split(const DeviceParts& parent, std::unique_ptr<nccl::Engine> engine,
                       const std::string& meeting_name, std::shared_ptr<const Rules> rules,
                       const DeviceOptions& options) {
  DeviceParts parts;
  parts.rank = engine->rank();
  parts.size = engine->ranks();
  parts.store = parent.store;
  parts.rules = std::move(rules);
  parts.context = parent.context;
  parts.engine = std::move(engine);
  if (const std::string fault = nccl::steering_fault(*parts.rules); !fault.empty()) {
    decline_meeting(*parts.store, meeting_name, parts.rank, fault);
    throw SystemError(fault, 0);
  }
  const driver::Current current(parts.context);
  Card own = own_card(parts.size, options, *parts.rules);
  const std::string why = open_kernels(parts, options);
  own.kernels = why.empty() ? parts.kernels->address() : concat(kNoKernels, one_line(why));
  const Meeting meeting =
      meet(*parts.store, meeting_name, parts.rank, parts.size, own.text(), options.timeout);
  parts.id = meeting.id;
  const auto cards = cards_of(meeting);
  compare(cards);
  parts.nodes = count_nodes(cards);
  connect_kernels(parts, cards, meeting_name, options.timeout);
  parts.bulletin = std::make_unique<Bulletin>(parts.store, parts.id, parts.rank, parts.size);
  return parts;
}

}  // namespace accl
