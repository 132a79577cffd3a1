// PyTorch's memory snapshot: segments as they are at the end, and a ring of the last events.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/importers/pickle/pickle_document.h"

namespace nofrag {
namespace {

constexpr std::size_t kMostFrames = 4096;

// "engine/step.py:12 forward": the last two parts of the path are enough to find it.
std::string frame_name(std::string_view file, std::uint64_t line, std::string_view function) {
  if (file.empty()) {
    return std::string(function);
  }
  std::size_t start = file.rfind('/');
  if (start != std::string_view::npos && start > 0) {
    start = file.rfind('/', start - 1);
  }
  std::string text(start == std::string_view::npos ? file : file.substr(start + 1));
  text += ':';
  text += std::to_string(line);
  text += ' ';
  text += function;
  return text;
}

class SnapshotReader {
 public:
  SnapshotReader(const PickleDocument& document, std::uint64_t file_bytes, const std::string& name)
      : document_(document), budget_(file_bytes), name_(name) {}

  bool read();
  ImportError build(std::vector<Trace>* traces);
  [[nodiscard]] const ImportError& error() const { return error_; }

 private:
  using Event = EventList::Event;

  bool fail(std::uint64_t offset, std::string found, std::string expected);
  bool list_of(PickleValue dict, std::string_view key, PickleValue* list);
  bool number(PickleValue dict, std::string_view key, const char* of, std::uint64_t* value);
  std::uint64_t number_or(PickleValue dict, std::string_view key, std::uint64_t otherwise) const;
  bool spend(PickleValue value);
  std::uint32_t site_of(PickleValue owner);
  std::string name_of(PickleValue frames) const;

  bool read_traces(PickleValue traces);
  bool read_event(PickleValue entry, std::uint32_t device, std::uint64_t index);
  bool add_free(const Event& event, bool completed, std::uint64_t index);
  bool read_segments(PickleValue segments);
  bool read_segment(PickleValue segment);
  bool read_block(PickleValue block,
                  std::uint32_t device,
                  std::uint64_t stream,
                  std::uint64_t address);
  void note_segment(std::string_view action, PickleValue entry, std::uint32_t device);
  void add_reserved();
  void add_notes(bool has_traces);

  struct Window {
    std::unordered_set<std::uint64_t> touched;  // addresses of the recording's events
    // Freed by the program, perhaps not by the GPU: at which event.
    std::unordered_map<std::uint64_t, std::uint64_t> requested;
    // Segments made less segments given back: by the recording's events, until each failure, and at the end.
    // (Modulo 2^64: a ring that begins in the middle may see more given back than made.)
    std::uint64_t held = 0;
    std::vector<std::uint64_t> held_at_failures;
    std::uint64_t held_at_end = 0;
  };
  Window& window(std::uint32_t device) {
    if (device >= windows_.size()) {
      windows_.resize(device + std::size_t{1});
    }
    return windows_[device];
  }

  const PickleDocument& document_;
  std::uint64_t budget_;
  const std::string& name_;
  EventList events_;
  std::vector<Window> windows_;
  std::unordered_map<std::uint64_t, std::uint32_t> sites_;  // by frame list
  std::uint64_t without_time_ = 0;
  std::uint64_t event_count_ = 0;
  std::uint64_t delayed_ = 0;
  ImportError error_;
};

bool SnapshotReader::fail(std::uint64_t offset, std::string found, std::string expected) {
  error_ = error_at_byte(name_, offset, std::move(found), std::move(expected));
  return false;
}

// Values may be shared, so that a small file could stand for endless events: no file of torch's has more
// of them than bytes.
bool SnapshotReader::spend(PickleValue value) {
  if (budget_ == 0) {
    return fail(
        document_.offset(value), "more entries than the file has bytes", "entries of their own");
  }
  --budget_;
  return true;
}

bool SnapshotReader::list_of(PickleValue dict, std::string_view key, PickleValue* list) {
  const PickleValue* found = document_.find(dict, key);
  if (found == nullptr || found->type() != PickleType::kList) {
    return fail(document_.offset(dict),
                "a dictionary in which '" + std::string(key) + "' is " +
                    (found == nullptr ? "missing" : to_string(found->type())),
                "'" + std::string(key) + "': a list");
  }
  *list = *found;
  return true;
}

bool SnapshotReader::number(PickleValue dict,
                            std::string_view key,
                            const char* of,
                            std::uint64_t* value) {
  const PickleValue* found = document_.find(dict, key);
  const std::optional<std::uint64_t> read =
      found == nullptr ? std::nullopt : document_.as_unsigned(*found);
  if (!read) {
    return fail(document_.offset(dict),
                std::string(of) + " in which '" + std::string(key) + "' is " +
                    (found == nullptr ? "missing" : "not a whole number from 0 on"),
                "'" + std::string(key) + "': a whole number from 0 on");
  }
  *value = *read;
  return true;
}

std::uint64_t SnapshotReader::number_or(PickleValue dict,
                                        std::string_view key,
                                        std::uint64_t otherwise) const {
  const PickleValue* found = document_.find(dict, key);
  return found == nullptr ? otherwise : document_.as_unsigned(*found).value_or(otherwise);
}

// The innermost frame of the user's own Python, else the innermost of any.
std::string SnapshotReader::name_of(PickleValue frames) const {
  std::string first;
  std::size_t seen = 0;
  for (const PickleValue frame : document_.items(frames)) {
    if (++seen > kMostFrames) {
      break;
    }
    const PickleValue* file = document_.find(frame, "filename");
    const PickleValue* function = document_.find(frame, "name");
    if (file == nullptr || function == nullptr) {
      continue;
    }
    const std::string_view file_text = document_.as_text(*file).value_or("");
    const std::string_view function_text = document_.as_text(*function).value_or("");
    if (file_text.empty() && function_text.empty()) {
      continue;
    }
    const bool python = file_text.ends_with(".py");
    const bool library = file_text.find("/torch/") != std::string_view::npos;
    if (python && !library) {
      return frame_name(file_text, number_or(frame, "line", 0), function_text);
    }
    if (first.empty() || (python && first.find(".py:") == std::string::npos)) {
      first = frame_name(file_text, number_or(frame, "line", 0), function_text);
    }
  }
  return first;
}

std::uint32_t SnapshotReader::site_of(PickleValue owner) {
  const PickleValue* frames = document_.find(owner, "frames");
  if (frames == nullptr || document_.items(*frames).empty()) {
    return EventList::kNoSite;
  }
  const auto [at, is_new] = sites_.try_emplace(frames->payload(), EventList::kNoSite);
  if (is_new) {
    const std::string name = name_of(*frames);
    if (!name.empty()) {
      at->second = events_.site(name);
    }
  }
  return at->second;
}

bool SnapshotReader::read() {
  const PickleValue root = document_.root();
  PickleValue segments = root;
  bool has_traces = false;
  if (root.type() == PickleType::kDict) {
    PickleValue traces;
    if (!list_of(root, "segments", &segments)) {
      return false;
    }
    if (document_.find(root, "device_traces") != nullptr) {
      if (!list_of(root, "device_traces", &traces) || !read_traces(traces)) {
        return false;
      }
      has_traces = event_count_ > 0;
    }
  } else if (root.type() != PickleType::kList) {
    return fail(
        0,
        std::string("a pickle of ") + to_string(root.type()),
        "a snapshot of torch.cuda.memory: a dictionary with 'segments' and 'device_traces'");
  }
  if (!read_segments(segments)) {
    return false;
  }
  add_reserved();
  if (events_.empty()) {
    return fail(document_.offset(root),
                "a snapshot without events and without live blocks",
                "a recording: torch.cuda.memory._record_memory_history() before the job");
  }
  add_notes(has_traces);
  return true;
}

// What PyTorch takes from the driver and gives back; with expandable segments, by pages.
void SnapshotReader::note_segment(std::string_view action,
                                  PickleValue entry,
                                  std::uint32_t device) {
  const bool taken = action == "segment_alloc" || action == "segment_map";
  const bool given_back = action == "segment_free" || action == "segment_unmap";
  const std::uint64_t size = number_or(entry, "size", 0);
  if ((taken || given_back) && device != EventList::kNoDevice) {
    window(device).held += taken ? size : std::uint64_t{0} - size;
  }
}

// The events say how much it changed, the segments at the end how much that came to.
void SnapshotReader::add_reserved() {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;  // what does not add up is far beyond
  for (std::uint32_t device = 0; device < windows_.size(); ++device) {
    const Window& seen = windows_[device];
    for (std::size_t i = 0; i < seen.held_at_failures.size(); ++i) {
      const std::uint64_t held = seen.held_at_end - seen.held + seen.held_at_failures[i];
      if (seen.held_at_end > 0 && held <= kMost) {
        events_.set_reserved(device, i, held);
      }
    }
  }
}

void SnapshotReader::add_notes(bool has_traces) {
  if (!has_traces) {
    events_.note(
        "the snapshot has no recorded events: what is live in its segments is all there is, "
        "without "
        "times, order or frees");
  }
  if (without_time_ > 0) {
    events_.note("events have no times: their number stands for it, in microseconds");
  }
  if (delayed_ > 0) {
    events_.note(counted(delayed_, "free", "frees") +
                 " waited for other streams; the snapshot does not say which");
  }
}

bool SnapshotReader::read_traces(PickleValue traces) {
  std::uint64_t ordinal = 0;
  for (const PickleValue list : document_.items(traces)) {
    if (list.type() != PickleType::kList || !spend(list)) {
      return error_ ? false
                    : fail(document_.offset(traces),
                           std::string("'device_traces' with ") + to_string(list.type()) + " in it",
                           "a list of events for each device");
    }
    const std::vector<PickleValue>& entries = document_.items(list);
    const std::uint32_t device = entries.empty() ? 0 : events_.device(ordinal);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!spend(entries[i]) || !read_event(entries[i], device, i)) {
        return false;
      }
    }
    ++ordinal;
  }
  return true;
}

bool SnapshotReader::read_event(PickleValue entry, std::uint32_t device, std::uint64_t index) {
  const PickleValue* action = document_.find(entry, "action");
  const std::optional<std::string_view> what =
      action == nullptr ? std::nullopt : document_.as_text(*action);
  if (!what) {
    return fail(document_.offset(entry),
                std::string("an event that is ") + to_string(entry.type()) + " without 'action'",
                "a dictionary with 'action', 'addr', 'size', 'stream'");
  }
  Event event;
  event.device = device;
  event.place = document_.offset(entry);
  const bool timed = document_.find(entry, "time_us") != nullptr;
  without_time_ += timed ? 0 : 1;
  event.time_us = timed ? number_or(entry, "time_us", 0) : index;
  const bool is_free = *what == "free_requested" || *what == "free_completed";
  if (*what == "oom") {
    TraceMark mark;
    mark.time_us = event.time_us;
    const PickleValue* left = document_.find(entry, "device_free");
    mark.free_bytes = left == nullptr ? std::nullopt : document_.as_unsigned(*left);
    if (!number(entry, "size", "an oom event", &mark.requested)) {
      return false;
    }
    events_.add_mark(device, mark);
    if (device != EventList::kNoDevice) {
      window(device).held_at_failures.push_back(window(device).held);
    }
    return true;
  }
  if (*what != "alloc" && !is_free) {
    note_segment(*what, entry, device);
    return true;  // segments, snapshots, annotations: not the program's doing
  }
  if (!number(entry, "addr", "an event", &event.address) ||
      !number(entry, "size", "an event", &event.size)) {
    return false;
  }
  event.stream = number_or(entry, "stream", 0);
  if (is_free) {
    return add_free(event, *what == "free_completed", index);
  }
  ++event_count_;
  event.site = site_of(entry);
  Window& seen = window(device);
  seen.touched.insert(event.address);
  seen.requested.erase(event.address);
  return events_.add_allocation(event) ||
         fail(event.place, events_.problem().found, events_.problem().expected);
}

// The program's free counts; the later one, when the GPU is done, only where the first was not recorded.
bool SnapshotReader::add_free(const Event& event, bool completed, std::uint64_t index) {
  Window& seen = window(event.device);
  const auto requested = seen.requested.find(event.address);
  if (completed && requested != seen.requested.end()) {
    delayed_ += requested->second + 1 == index ? 0U : 1U;
    seen.requested.erase(requested);
    return true;
  }
  if (!completed) {
    seen.requested[event.address] = index;
  }
  ++event_count_;
  seen.touched.insert(event.address);
  return events_.add_free(event) ||
         fail(event.place, events_.problem().found, events_.problem().expected);
}

bool SnapshotReader::read_segments(PickleValue segments) {
  for (const PickleValue segment : document_.items(segments)) {
    if (!spend(segment) || !read_segment(segment)) {
      return false;
    }
  }
  return true;
}

bool SnapshotReader::read_segment(PickleValue segment) {
  if (segment.type() != PickleType::kDict) {
    return fail(document_.offset(segment),
                std::string("a segment that is ") + to_string(segment.type()),
                "a dictionary with 'address', 'stream', 'blocks'");
  }
  std::uint64_t ordinal = 0;
  std::uint64_t address = 0;
  PickleValue blocks;
  if (!number(segment, "device", "a segment", &ordinal) ||
      !number(segment, "address", "a segment", &address) || !list_of(segment, "blocks", &blocks)) {
    return false;
  }
  const std::uint64_t stream = number_or(segment, "stream", 0);
  const std::uint32_t device = events_.device(ordinal);
  if (device == EventList::kNoDevice) {
    return fail(
        document_.offset(segment), "a device number beyond all others", "a device of this machine");
  }
  std::uint64_t& held = window(device).held_at_end;
  held += std::min(number_or(segment, "total_size", 0), UINT64_MAX - held);
  for (const PickleValue block : document_.items(blocks)) {
    std::uint64_t size = 0;
    if (!spend(block) || !number(block, "size", "a block", &size)) {
      return false;
    }
    // Blocks tile their segment; files of PyTorch 1 and 2.0 do not say where each begins.
    const std::uint64_t at = number_or(block, "address", address);
    if (!read_block(block, device, stream, at)) {
      return false;
    }
    address = at + size;
  }
  return true;
}

bool SnapshotReader::read_block(PickleValue block,
                                std::uint32_t device,
                                std::uint64_t stream,
                                std::uint64_t address) {
  const PickleValue* state = document_.find(block, "state");
  const std::optional<std::string_view> text =
      state == nullptr ? std::nullopt : document_.as_text(*state);
  if (!text) {
    return fail(
        document_.offset(block), "a block without 'state'", "'state': 'active_allocated', ...");
  }
  // Blocks that wait for the GPU were freed by the program. Those that the recording has seen are its own.
  if (*text != "active_allocated" || window(device).touched.count(address) > 0) {
    return true;
  }
  Event event;
  event.device = device;
  event.address = address;
  event.stream = stream;
  event.place = document_.offset(block);
  event.site = site_of(block);
  std::uint64_t size = number_or(block, "size", 0);
  const PickleValue* history = document_.find(block, "history");
  if (history != nullptr && !document_.items(*history).empty()) {
    const PickleValue last = document_.items(*history).front();
    size = std::min(size, number_or(last, "real_size", size));
    event.site = site_of(last);
  }
  event.size = number_or(block, "requested_size", size);
  return events_.add_existing(event) ||
         fail(event.place, events_.problem().found, events_.problem().expected);
}

ImportError SnapshotReader::build(std::vector<Trace>* traces) {
  if (!events_.build(TraceFormat::kTorch, {}, traces)) {
    fail(events_.problem().place, events_.problem().found, events_.problem().expected);
  }
  return error_;
}

}  // namespace

ImportError import_torch_snapshot(ByteWindow& input,
                                  const std::string& name,
                                  std::vector<Trace>* traces) {
  std::string bytes;
  if (ImportError error = read_all(input, &bytes)) {
    return error;
  }
  PickleDocument document;
  if (const std::optional<PickleDocument::Problem> problem = document.read(bytes)) {
    return error_at_byte(name, problem->offset, problem->found, problem->expected);
  }
  SnapshotReader reader(document, bytes.size(), name);
  // NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): errors are texts of their own
  return reader.read() ? reader.build(traces) : reader.error();
}

}  // namespace nofrag
