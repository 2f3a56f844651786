// Words: what each engine calls its algorithms and protocols, and which go together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "accl/types.h"

namespace accl::rules {

// The collectives that an engine lets the rules steer.
std::vector<Collective> steered_collectives(Engine engine);

// The protocols that `algorithm` of `engine` can have; all of the engine's where it is empty.
std::span<const std::string_view> protocols_of(Engine engine, std::string_view algorithm) noexcept;

// True where the sizes of a call may differ between ranks.
bool may_be_uneven(Engine engine, Collective collective) noexcept;

int most_channels(Engine engine) noexcept;

// A chunk is a multiple of `grain` bytes, from one grain to `most`.
struct ChunkLimits {
  std::uint64_t grain;
  std::uint64_t most;
};
ChunkLimits chunk_limits(Engine engine, std::string_view protocol) noexcept;

}  // namespace accl::rules
