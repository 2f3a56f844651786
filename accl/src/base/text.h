// Text: sentences made of values.
#pragma once

#include <sstream>
#include <string>

namespace accl {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());  // no thousands separators, whatever the program's locale
  (stream << ... << parts);
  return stream.str();
}

}  // namespace accl
