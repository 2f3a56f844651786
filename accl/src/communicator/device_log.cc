#include "communicator/device_log.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "communicator/validate.h"

namespace accl {

CallNote note_of(const Call& call, std::uint64_t sequence, std::size_t calls) {
  CallNote note;
  note.collective = call.collective;
  note.dtype = call.dtype;
  note.op = call.op;
  note.uneven = is_uneven(call);
  note.root_or_peer = is_point_to_point(call.collective) ? call.peer : call.root;
  note.count = call.count;
  note.others = static_cast<std::uint32_t>(calls - 1);
  note.sequence = sequence;
  return note;
}

std::string describe(const CallNote& note) {
  std::string text;
  if (is_point_to_point(note.collective)) {
    const char* way = note.collective == Collective::kSend ? " to" : " from";
    text = concat(name_of(note.collective), " of ", note.count, " ", name_of(note.dtype), way,
                  " rank ", note.root_or_peer);
  } else {
    text =
        describe(note.collective, note.count, note.uneven, note.dtype, note.op, note.root_or_peer);
  }
  if (note.others > 0) text += concat(" and ", note.others, " more of its group");
  return text;
}

std::string DeviceLog::text() const {
  std::string text = concat(collectives_, "\n");
  const std::uint64_t first = collectives_ > kKept ? collectives_ - kKept : 0;
  for (std::uint64_t i = first; i < collectives_; ++i) {
    const CallNote& note = notes_[i % kKept];
    text += concat(note.sequence, " ", describe(note), "\n");
  }
  return text;
}

std::string compare_logs(int peer, const std::string& theirs, std::uint64_t sequence,
                         const std::string& own) {
  std::uint64_t made = 0;
  std::from_chars(theirs.data(), theirs.data() + theirs.size(), made);
  const auto line_of = [&theirs](std::uint64_t wanted) {
    const std::string start = concat("\n", wanted, " ");
    const std::size_t at = theirs.find(start);
    if (at == std::string::npos) return std::string{};
    const std::size_t begin = at + start.size();
    return theirs.substr(begin, theirs.find('\n', begin) - begin);
  };
  if (made < sequence) {
    const std::string last = line_of(made);
    return concat("rank ", peer, " has not called it",
                  made == 0 ? std::string(" (it has made no collective yet)")
                            : concat(" (its last was #", made, ", ", last, ")"));
  }
  const std::string called = line_of(sequence);
  if (called.empty() || called == own) return {};
  return concat("rank ", peer, " calls ", called, " there");
}

}  // namespace accl
