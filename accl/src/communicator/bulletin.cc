#include "communicator/bulletin.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "accl/error.h"
#include "base/text.h"

namespace accl {

namespace {

constexpr int kMostFailures = 3;
constexpr int kRanksASecond = 64;  // reads that one communicator asks of the store in a second
constexpr Milliseconds kLongest{30'000};
constexpr Milliseconds kSoon{250};  // the notice is always there, so this only bounds a slow store
constexpr const char* kNone = "none";

}  // namespace

Bulletin::Bulletin(std::shared_ptr<Store> store, std::string id, int rank, int size)
    : store_(std::move(store)), base_(concat("accl-live/", id, "/")), rank_(rank), size_(size) {
  if (rank_ == 0) set("notice", kNone);
}

void Bulletin::set(const std::string& key, const std::string& value) noexcept {
  try {
    store_->set(base_ + key, value);
  } catch (...) {  // the program's end takes the store away; what is left to say is lost
  }
}

std::optional<std::string> Bulletin::get(const std::string& key, Milliseconds timeout) noexcept {
  try {
    return store_->get(base_ + key, timeout);
  } catch (...) {
    return std::nullopt;
  }
}

std::optional<Bulletin::Notice> Bulletin::read() noexcept {
  if (failures_ >= kMostFailures) return std::nullopt;
  const auto text = get("notice", kSoon);
  failures_ = text ? 0 : failures_ + 1;
  if (!text || *text == kNone) return std::nullopt;
  // "fault <rank> <text>" or "ask <rank> <number>"
  const std::size_t first = text->find(' ');
  const std::size_t second = first == std::string::npos ? first : text->find(' ', first + 1);
  if (second == std::string::npos) return std::nullopt;
  Notice notice;
  notice.fault = text->compare(0, first, "fault") == 0;
  std::from_chars(text->data() + first + 1, text->data() + second, notice.rank);
  notice.text = text->substr(second + 1);
  return notice;
}

void Bulletin::report_fault(const std::string& text) noexcept {
  set("notice", concat("fault ", rank_, " ", text));
}

void Bulletin::ask(const std::string& number) noexcept {
  set("notice", concat("ask ", rank_, " ", number));
}

void Bulletin::answer(const std::string& number, const std::string& text) noexcept {
  set(concat("answer/", number, "/", rank_), text.empty() ? " " : text);
}

std::optional<std::string> Bulletin::wait_for_answer(const std::string& number, int rank,
                                                     Milliseconds timeout) noexcept {
  return get(concat("answer/", number, "/", rank), timeout);
}

void Bulletin::leave() noexcept { set(concat("left/", rank_), "yes"); }

bool Bulletin::has_left(int rank) noexcept {
  return get(concat("left/", rank), Milliseconds{10}).has_value();
}

Milliseconds Bulletin::interval() const noexcept {
  return std::min(Milliseconds{1000} * std::max(1, size_ / kRanksASecond), kLongest);
}

}  // namespace accl
