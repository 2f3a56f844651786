// Digest: 64 bits that are equal on all ranks if and (almost) only if they make the same call.
#pragma once

#include <cstdint>
#include <string_view>

namespace accl {

class Digest {
 public:
  // One round of splitmix64's finaliser over the running value.
  Digest& add(std::uint64_t word) noexcept {
    std::uint64_t x = value_ ^ (word + 0x9e3779b97f4a7c15ULL + (value_ << 6) + (value_ >> 2));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    value_ = x ^ (x >> 31);
    return *this;
  }
  Digest& add(std::string_view text) noexcept {
    for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    return add(static_cast<std::uint64_t>(text.size()));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace accl
