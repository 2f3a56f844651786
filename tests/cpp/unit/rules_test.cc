#include "accl/rules.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>

#include "accl/error.h"
#include "accl/schedule.h"
#include "base/utf8.h"
#include "harness/test.h"
#include "rules/coverage.h"
#include "unit/temporary_directory.h"

namespace accl {

namespace {

using test::read_file;
using test::TemporaryDirectory;

const std::string kContracts = std::string(ACCL_CONTRACTS) + "/rules/";

std::vector<std::vector<std::string>> read_table(const std::string& name) {
  std::istringstream stream(read_file(kContracts + name));
  std::vector<std::vector<std::string>> table;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    table.emplace_back();
    for (std::string field; std::getline(fields, field, '\t');) table.back().push_back(field);
  }
  if (table.size() < 10) FAIL(name + " holds too few lines");
  return table;
}

std::string message_of(const std::string& text, const std::string& name = "f.csv") {
  try {
    Rules::parse(text, name);
  } catch (const RulesError& error) {
    return error.what();
  }
  FAIL("no error for: " + text);
}

// Draws that are the same on every platform.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t end) { return engine_() % end; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <class List>
  auto one_of(const List& list) {
    return list[static_cast<std::size_t>(below(list.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

constexpr std::array kEngines = {Engine::kCpu, Engine::kNccl, Engine::kCuda};
constexpr std::array kNcclCollectives = {Collective::kAllReduce, Collective::kAllGather,
                                         Collective::kReduceScatter, Collective::kBroadcast,
                                         Collective::kReduce};

// Any rule that the grammar can say.
Rule draw_rule(Draw& draw) {
  Rule rule;
  rule.engine = draw.one_of(kEngines);
  rule.collective = draw.one_of(kNcclCollectives);
  const std::array<std::uint64_t, 4> ends = {draw.below(5000), draw.below(1ULL << 40),
                                             kAnyBytes - 1, kAnyBytes};
  rule.min_bytes = draw.one_of(ends);
  rule.max_bytes = std::max(rule.min_bytes, draw.one_of(ends));
  if (draw.chance(2)) rule.ranks = static_cast<int>(1 + draw.below(1000));
  if (draw.chance(2))
    rule.nodes = static_cast<int>(
        1 + draw.below(rule.ranks == -1 ? 1000 : static_cast<std::uint64_t>(rule.ranks)));
  if (rule.engine == Engine::kNccl && draw.chance(2))
    rule.pipe_ops = static_cast<int>(1 + draw.below(64));
  if (draw.chance(2))
    rule.choice.algorithm = draw.one_of(Rules::algorithm_words(rule.engine, rule.collective));
  const bool simple_only = rule.engine == Engine::kNccl && !rule.choice.algorithm.empty() &&
                           rule.choice.algorithm != "ring" && rule.choice.algorithm != "tree";
  if (rule.engine != Engine::kCuda && draw.chance(2)) {
    rule.choice.protocol =
        simple_only ? "simple" : std::string(draw.one_of(Rules::protocol_words(rule.engine)));
  }
  if (draw.chance(2))
    rule.choice.channels = rule.engine == Engine::kCpu ? 1 : static_cast<int>(1 + draw.below(64));
  if (draw.chance(2) && (rule.engine != Engine::kNccl || !rule.choice.protocol.empty())) {
    rule.choice.chunk_bytes =
        static_cast<std::size_t>(7680 * (1 + draw.below(100)));  // 512 and 1920 divide it
  }
  return rule;
}

// A rule over a domain so small that every call can be tried.
Rule draw_small_rule(Draw& draw, Engine engine) {
  constexpr std::array kAnyTo3 = {-1, -1, 1, 2, 3};
  Rule rule;
  rule.engine = engine;
  rule.collective = draw.chance(2) ? Collective::kAllGather : Collective::kAllReduce;
  rule.min_bytes = draw.chance(3) ? 0 : draw.below(6);
  rule.max_bytes = draw.chance(3) ? kAnyBytes : rule.min_bytes + draw.below(4);
  rule.ranks = draw.one_of(kAnyTo3);
  rule.nodes = draw.one_of(kAnyTo3);
  if (rule.ranks != -1 && rule.nodes > rule.ranks) rule.nodes = rule.ranks;
  if (engine == Engine::kNccl && draw.chance(3))
    rule.pipe_ops = static_cast<int>(1 + draw.below(2));
  rule.choice.algorithm = "ring";
  return rule;
}

// The definition, spelt out again from docs/rules.md.
bool takes(const Rule& rule, const RulesQuery& q) {
  if (rule.engine != q.engine || rule.collective != q.collective) return false;
  if (rule.ranks != -1 && rule.ranks != q.ranks) return false;
  if (rule.nodes != -1 && rule.nodes != q.nodes) return false;
  if (rule.pipe_ops != -1 && rule.pipe_ops != q.pipe_ops) return false;
  if (q.uneven) return rule.min_bytes == 0 && rule.max_bytes == kAnyBytes;
  return q.bytes >= rule.min_bytes && q.bytes <= rule.max_bytes;
}

// Every call that differs to small rules: numbers up to 3 are named by them, one more stands for
// all others.
std::vector<RulesQuery> small_domain(Engine engine) {
  std::vector<RulesQuery> domain;
  for (const Collective collective : {Collective::kAllGather, Collective::kAllReduce}) {
    const bool may_be_uneven = engine != Engine::kNccl && collective == Collective::kAllGather;
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int nodes = 1; nodes <= ranks; ++nodes) {
        for (int pipe_ops = 1; pipe_ops <= 3; ++pipe_ops) {
          for (std::uint64_t bytes = 0; bytes <= 10; ++bytes) {
            domain.push_back({engine, collective, bytes == 10 ? kAnyBytes : bytes, false, ranks,
                              nodes, pipe_ops});
          }
          if (may_be_uneven)
            domain.push_back({engine, collective, 0, true, ranks, nodes, pipe_ops});
        }
      }
    }
  }
  return domain;
}

// The first rule that takes the call, by trying them in order; -1 for none.
int first_taker(const std::vector<Rule>& rules, const RulesQuery& query) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (takes(rules[i], query)) return static_cast<int>(i);
  }
  return -1;
}

bool is_reached(const std::vector<Rule>& rules, std::size_t index,
                const std::vector<RulesQuery>& domain) {
  return std::ranges::any_of(domain, [&](const RulesQuery& q) {
    return first_taker(rules, q) == static_cast<int>(index);
  });
}

std::string spell(const std::vector<Rule>& rules) {
  std::string text;
  for (const Rule& rule : rules) text += Rules::format(rule) + "\n";
  return text;
}

bool is_plain_text(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0 || static_cast<unsigned char>(text[at]) < 0x20) return false;
    at += length;
  }
  return true;
}

}  // namespace

TEST(rules_good_files_parse_to_their_digest) {
  for (const auto& row : read_table("good.tsv")) {
    const Rules rules = Rules::load(kContracts + row.at(0));
    CHECK_EQ(row[0] + " " + std::to_string(rules.rows().size()), row[0] + " " + row.at(1));
    CHECK_EQ(row[0] + " " + std::to_string(rules.provenance().size()), row[0] + " " + row.at(2));
    CHECK_EQ(row[0] + " " + rules.digest(), row[0] + " " + row.at(3));
    CHECK_EQ(rules.name(), kContracts + row[0]);
  }
}

TEST(rules_bad_files_name_line_value_and_remedy) {
  for (const auto& row : read_table("bad.tsv")) {
    const std::string path = kContracts + row.at(0);
    std::string message;
    try {
      Rules::load(path);
    } catch (const RulesError& error) {
      message = error.what();
    }
    const std::string head = path + ":" + row.at(1) + ": ";
    if (!message.starts_with(head))
      FAIL(row[0] + ": expected '" + head + "...', got '" + message + "'");
    if (!is_plain_text(message)) FAIL(row[0] + ": the message is not plain text");
    std::istringstream words(row.at(2));
    for (std::string word; std::getline(words, word, '|');) {
      if (message.find(word) == std::string::npos)
        FAIL(row[0] + ": '" + word + "' is not in '" + message + "'");
    }
  }
}

TEST(rules_queries_match_the_expected_line) {
  for (const auto& row : read_table("matches.tsv")) {
    const Rules rules = Rules::load(kContracts + row.at(0));
    RulesQuery query;
    query.engine = engine_from(row.at(1)).value();
    query.collective = collective_from(row.at(2)).value();
    query.bytes = std::stoull(row.at(3));
    query.uneven = row.at(4) == "1";
    query.ranks = std::stoi(row.at(5));
    query.nodes = std::stoi(row.at(6));
    query.pipe_ops = std::stoi(row.at(7));
    const Rule* rule = rules.match(query);
    std::string all;
    for (const auto& field : row) all += field + " ";
    CHECK_EQ(all + std::to_string(rule == nullptr ? 0 : rule->line), all + row.at(8));
  }
}

TEST(rules_provenance_is_the_head_of_the_file) {
  const Rules rules = Rules::load(kContracts + "good/provenance.csv");
  CHECK_EQ(rules.provenance().at(0).first, "written_by");
  CHECK_EQ(rules.provenance().at(0).second, "accl-tune 0.1.0");
  CHECK_EQ(rules.provenance().at(1).second, "two sockets");
  CHECK_EQ(rules.provenance().at(2).first, "empty");
  CHECK_EQ(rules.provenance().at(2).second, "");
}

TEST(rules_defaults_hold_for_every_collective_of_the_cpu_engine) {
  const Rules& rules = Rules::defaults();
  CHECK_EQ(&rules, &Rules::defaults());
  CHECK_EQ(Rules::parse(Rules::defaults_text(), "x").digest(), rules.digest());
  CHECK(!rules.provenance().empty());
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (algorithms(collective).empty()) continue;
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{1} << 14, std::uint64_t{1} << 33, kAnyBytes}) {
      const Rule* rule = rules.match({Engine::kCpu, collective, bytes, false, 7, 3, 1});
      CHECK(rule != nullptr);
      CHECK(find_algorithm(collective, rule->choice.algorithm) != nullptr);
    }
  }
  // Uneven calls find a rule wherever they exist, and its algorithm takes them.
  for (const Collective c : {Collective::kAllGather, Collective::kReduceScatter,
                             Collective::kAllToAll, Collective::kGather, Collective::kScatter}) {
    const Rule* rule = rules.match({Engine::kCpu, c, 0, true, 4, 1, 1});
    CHECK(rule != nullptr);
    CHECK(find_algorithm(c, rule->choice.algorithm)->uneven);
  }
  CHECK(rules.match({Engine::kNccl, Collective::kAllReduce, 8, false, 8, 1, 1}) == nullptr);
}

TEST(rules_accept_every_word_that_they_list) {
  for (const Engine engine : kEngines) {
    for (int i = 0; i < kCollectiveCount; ++i) {
      Rule rule;
      rule.engine = engine;
      rule.collective = static_cast<Collective>(i);
      for (const auto word : Rules::algorithm_words(engine, rule.collective)) {
        rule.choice.algorithm = word;
        const Rules rules = Rules::parse(Rules::format(rule), "x");
        CHECK_EQ(rules.rows().at(0).choice.algorithm, word);
      }
    }
  }
  CHECK_EQ(Rules::protocol_words(Engine::kCpu).size(), 2U);
  CHECK_EQ(Rules::protocol_words(Engine::kNccl).size(), 3U);
  CHECK(Rules::protocol_words(Engine::kCuda).empty());
  CHECK(Rules::algorithm_words(Engine::kCpu, Collective::kSend).empty());
}

TEST(rules_nccl_words_go_together_as_nccl_has_them) {
  const auto pairs = [](Collective collective) {
    int count = 0;
    for (const auto algorithm : Rules::algorithm_words(Engine::kNccl, collective)) {
      for (const auto protocol : Rules::protocol_words(Engine::kNccl)) {
        Rule rule;
        rule.collective = collective;
        rule.choice.algorithm = algorithm;
        rule.choice.protocol = protocol;
        try {
          Rules::parse(Rules::format(rule), "x");
          ++count;
        } catch (const RulesError&) {
        }
      }
    }
    return count;
  };
  CHECK_EQ(pairs(Collective::kAllReduce), 10);
  CHECK_EQ(pairs(Collective::kAllGather), 6);
  CHECK_EQ(pairs(Collective::kReduceScatter), 6);
  CHECK_EQ(pairs(Collective::kBroadcast), 3);
  CHECK_EQ(pairs(Collective::kReduce), 3);
}

TEST(rules_that_were_formatted_parse_to_the_same) {
  Draw draw(1);
  for (int i = 0; i < 4000; ++i) {
    const Rule rule = draw_rule(draw);
    const std::string text = Rules::format(rule);
    const Rule back = Rules::parse(text, "x").rows().at(0);
    CHECK_EQ(Rules::format(back), text);
    CHECK_EQ(back.engine == rule.engine && back.collective == rule.collective, true);
    CHECK_EQ(back.min_bytes, rule.min_bytes);
    CHECK_EQ(back.max_bytes, rule.max_bytes);
    CHECK_EQ(back.ranks, rule.ranks);
    CHECK_EQ(back.nodes, rule.nodes);
    CHECK_EQ(back.pipe_ops, rule.pipe_ops);
    CHECK(back.choice == rule.choice);
  }
}

TEST(rules_unreachable_ones_are_found_exactly) {
  int dead = 0;
  for (const Engine engine : {Engine::kCpu, Engine::kNccl}) {
    const auto domain = small_domain(engine);
    Draw draw(2);
    for (int i = 0; i < 400; ++i) {
      std::vector<Rule> rules;
      for (int line = 1; line <= 9; ++line) {
        rules.push_back(draw_small_rule(draw, engine));
        rules.back().line = line;
        const auto earlier = std::span(rules).first(rules.size() - 1);
        const auto lines = rules::covering_lines(rules.back(), earlier);
        if (lines.empty() != is_reached(rules, rules.size() - 1, domain))
          FAIL("wrong for the last of:\n" + spell(rules));
        if (lines.empty()) continue;
        // Those that the message names take everything by themselves, and the parser names them.
        ++dead;
        std::vector<Rule> named;
        for (const int l : lines) named.push_back(*std::ranges::find(rules, l, &Rule::line));
        named.push_back(rules.back());
        if (is_reached(named, named.size() - 1, domain))
          FAIL("the named rules do not cover the last of:\n" + spell(named));
        const std::string message = message_of(spell(rules));
        if (!message.starts_with("f.csv:" + std::to_string(rules.size()) +
                                 ": this rule can never match"))
          FAIL(message);
        rules.pop_back();
      }
    }
  }
  CHECK(dead > 500);  // both verdicts were tried
}

TEST(rules_first_match_wins) {
  int matched = 0;
  Draw draw(3);
  const auto domain = small_domain(Engine::kNccl);
  for (int i = 0; i < 100; ++i) {
    std::vector<Rule> rules;
    for (int k = 0; k < 12; ++k) {
      Rule rule = draw_small_rule(draw, Engine::kNccl);
      if (rules::covering_lines(rule, rules).empty()) rules.push_back(rule);
    }
    const Rules parsed = Rules::parse(spell(rules), "x");
    CHECK_EQ(parsed.rows().size(), rules.size());
    for (const RulesQuery& query : domain) {
      const Rule* rule = parsed.match(query);
      const int expected = first_taker(rules, query);
      CHECK_EQ(rule == nullptr ? 0 : rule->line, expected + 1);
      matched += rule != nullptr;
    }
  }
  CHECK(matched > 10'000);
}

TEST(rules_digest_is_of_meaning_and_order) {
  const std::string a = "allreduce,0,100,ring,-1,-1,-1,-1,-1,-1,cpu\n";
  const std::string b = "allreduce,101,-1,direct,-1,-1,-1,-1,-1,-1,cpu\n";
  const std::string digest = Rules::parse(a + b, "one").digest();
  CHECK_EQ(digest.size(), 16U);
  CHECK_EQ(Rules::parse("# note\r\n " + a + "\n\n# more\n" + b, "two").digest(), digest);
  CHECK_EQ(Rules::parse("allreduce,0,100,ring,-1,-1,-1,-1,-1,-1,cpu,-1\n" + b, "three").digest(),
           digest);
  CHECK(Rules::parse(b + a, "four").digest() != digest);
  CHECK(Rules::parse(a, "five").digest() != digest);
}

TEST(rules_messages_stay_short_and_plain) {
  const std::string message =
      message_of("allreduce,0,1," + std::string(100'000, 'x') + ",-1,-1,-1,-1,-1,-1\n");
  CHECK(message.size() < 400);
  // A value is cut between characters, not within one.
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xC3\xBC";
  CHECK(is_plain_text(message_of("allreduce,0,1,x" + umlauts + ",-1,-1,-1,-1,-1,-1\n")));
}

TEST(rules_have_a_greatest_number) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) {
    text += "allreduce," + std::to_string(i) + "," + std::to_string(i) +
            ",ring,-1,-1,-1,-1,-1,-1,cpu\n";
  }
  CHECK_EQ(Rules::parse(text, "x").rows().size(), 10'000U);
  CHECK_THROWS(RulesError, "x:10001: there are more than 10000 rules",
               Rules::parse(text + "broadcast,0,-1,-1,-1,-1,-1,-1,-1,-1,cpu", "x"));
}

TEST(rules_files_that_cannot_be_read_say_why) {
  const TemporaryDirectory directory;
  CHECK_THROWS(RulesError, "path of the rules file is empty", Rules::load(""));
  CHECK_THROWS(RulesError, "NUL", Rules::load(std::string("a\0b", 3)));
  CHECK_THROWS(RulesError, "does not exist", Rules::load(directory.path() + "/none.csv"));
  CHECK_THROWS(RulesError, "is a directory", Rules::load(directory.path()));
  const std::string pipe = directory.path() + "/pipe";
  CHECK_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  CHECK_THROWS(RulesError, "is a pipe or a device", Rules::load(pipe));
  CHECK_THROWS(RulesError, "is a pipe or a device", Rules::load("/dev/null"));
  const std::string large = directory.write("large.csv", "# x\n");
  CHECK_EQ(::truncate(large.c_str(), (16 << 20) + 1), 0);
  CHECK_THROWS(RulesError, "is larger than 16777216 bytes", Rules::load(large));
  CHECK_THROWS(InvalidArgument, "", Rules::load(large));  // and so it is for who catches the family
}

TEST(rules_files_without_permission_say_so) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("secret.csv", "");
  CHECK_EQ(::chmod(path.c_str(), 0), 0);
  CHECK_EQ(::chmod(directory.path().c_str(), 0755), 0);
  const uid_t self = ::geteuid();
  constexpr uid_t kNobody = 65534;
  if (self == 0) CHECK_EQ(::seteuid(kNobody), 0);  // root may read everything
  std::string message;
  try {
    Rules::load(path);
  } catch (const RulesError& error) {
    message = error.what();
  }
  if (self == 0) CHECK_EQ(::seteuid(0), 0);
  CHECK_EQ(message,
           "The rules file '" + path + "' may not be read by this user (permission denied).");
}

// docs/rules.md is true: its example parses, and no word is missing.
TEST(rules_documentation_holds) {
  const std::string text = read_file(std::string(ACCL_CONTRACTS) + "/../../docs/rules.md");
  const std::string fence = "```csv\n";
  const std::size_t begin = text.find(fence) + fence.size();
  const Rules example =
      Rules::parse(text.substr(begin, text.find("```", begin) - begin), "docs/rules.md");
  CHECK_EQ(example.rows().size(), 6U);
  CHECK_EQ(example.provenance().size(), 2U);
  const auto check_word = [&](std::string_view word) {
    if (text.find("`" + std::string(word) + "`") == std::string::npos)
      FAIL("docs/rules.md lacks " + std::string(word));
  };
  for (const Engine engine : kEngines) {
    check_word(name_of(engine));
    for (const auto word : Rules::protocol_words(engine)) check_word(word);
    for (int i = 0; i < kCollectiveCount; ++i) {
      const auto words = Rules::algorithm_words(engine, static_cast<Collective>(i));
      if (!words.empty()) check_word(rules_name_of(static_cast<Collective>(i)));
      if (engine == Engine::kCpu) continue;  // docs/algorithms.md has these
      for (const auto word : words) check_word(word);
    }
  }
}

// Whatever the bytes are: rules that survive a round trip, or one sentence.
TEST(rules_parser_survives_mutations) {
  std::vector<std::string> corpus = {std::string(Rules::defaults_text())};
  for (const char* table : {"good.tsv", "bad.tsv"}) {
    for (const auto& row : read_table(table)) corpus.push_back(read_file(kContracts + row.at(0)));
  }
  constexpr std::array<std::string_view, 12> kPieces = {
      ",",    "\n",           "\r",        "-1",  "#", "\0", "18446744073709551616",
      "\xFF", "\xEF\xBB\xBF", "allreduce", "cpu", "0"};
  Draw draw(4);
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 8000; ++i) {
    std::string text = draw.one_of(corpus);
    for (std::uint64_t n = 1 + draw.below(4); n > 0; --n) {
      const auto at = static_cast<std::size_t>(draw.below(text.size() + 1));
      switch (draw.below(5)) {
        case 0:
          if (at < text.size()) text[at] = static_cast<char>(draw.below(256));
          break;
        case 1:
          text.insert(at, draw.one_of(kPieces));
          break;
        case 2:
          text.erase(at, static_cast<std::size_t>(draw.below(8)));
          break;
        case 3:
          text.resize(at);
          break;
        case 4:
          text += draw.one_of(corpus).substr(0, static_cast<std::size_t>(draw.below(300)));
          break;
      }
    }
    try {
      const Rules rules = Rules::parse(text, "fuzz");
      ++accepted;
      CHECK_EQ(Rules::parse(spell(rules.rows()), "again").digest(), rules.digest());
    } catch (const RulesError& error) {
      ++refused;
      const std::string_view message = error.what();
      CHECK(message.starts_with("fuzz:"));
      CHECK(is_plain_text(message));
    }
  }
  CHECK(accepted > 200);
  CHECK(refused > 2000);
}

}  // namespace accl
