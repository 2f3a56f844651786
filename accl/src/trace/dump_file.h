// Dump file: a trace on disk, whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace accl::trace {

// "accl-trace-<name>-rank<r>-pid<pid>", with what does not suit a file name replaced in `name`.
std::string dump_stem(std::string_view name, int rank);

// Writes `text` to "<directory>/<stem>-<n>.json", n being the first free number from 1; mode 0600.
// Returns the path. Throws SystemError with a sentence.
std::string write_dump(const std::string& directory, const std::string& stem,
                       std::string_view text);

}  // namespace accl::trace
