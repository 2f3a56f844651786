// Words that users write, or a sentence that lists the ones that are accepted.
#pragma once

#include <string>
#include <string_view>

#include "accl/error.h"
#include "accl/types.h"

namespace accl::python {

template <class Enum, class Names>
std::string list_words(int count, Names names) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += (i == 0 ? "" : ", ") + std::string(names(static_cast<Enum>(i)));
  return text;
}

inline Collective collective_of(const std::string& word) {
  if (const auto found = collective_from(word)) return *found;
  throw InvalidArgument(
      "Collective '" + word + "' is unknown; expected one of: " +
      list_words<Collective>(kCollectiveCount, [](Collective c) { return name_of(c); }) + ".");
}

inline ReduceOp reduce_op_of(const std::string& word) {
  if (const auto found = reduce_op_from(word)) return *found;
  throw InvalidArgument(
      "Operation '" + word + "' is unknown; expected one of: " +
      list_words<ReduceOp>(kReduceOpCount, [](ReduceOp o) { return name_of(o); }) + ".");
}

inline DType dtype_of(const std::string& word) {
  if (const auto found = dtype_from(word)) return *found;
  throw InvalidArgument("dtype '" + word + "' is unknown; expected one of: " +
                        list_words<DType>(kDTypeCount, [](DType d) { return name_of(d); }) + ".");
}

inline Engine engine_of(const std::string& word) {
  if (const auto found = engine_from(word)) return *found;
  throw InvalidArgument("Engine '" + word + "' is unknown; expected one of: cpu, nccl, cuda.");
}

}  // namespace accl::python
