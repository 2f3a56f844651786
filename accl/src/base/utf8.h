// UTF-8: what is text and what is not.
#pragma once

#include <cstddef>
#include <string_view>

namespace accl {

// Bytes of the UTF-8 sequence that starts at `at` (which is below text.size()); 0 where there is
// none.
std::size_t utf8_length(std::string_view text, std::size_t at) noexcept;

}  // namespace accl
