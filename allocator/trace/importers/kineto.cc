// torch.profiler's Chrome trace: instant events "[memory]", one an allocation or a free of the profiled time.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/importers/json_stream.h"

namespace nofrag {
namespace {

constexpr const char* kExpected = "a Chrome trace of torch.profiler, with profile_memory=True";
constexpr std::uint64_t kMostMicroseconds = std::uint64_t{1} << 53;

struct MemoryEvent {
  std::uint64_t time_ns = 0;
  std::uint64_t index = 0;  // "Ev Idx": the order at equal times
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t total_allocated = 0;
  std::uint64_t place = 0;
  std::uint32_t device = 0;
  bool is_free = false;
  bool has_total = false;
};

// Microseconds, whole or with a fraction, to nanoseconds.
std::optional<std::uint64_t> nanoseconds(const JsonScalar& value) {
  if (const std::optional<std::uint64_t> whole = value.as_unsigned()) {
    return *whole > kMostMicroseconds ? std::nullopt : std::optional(*whole * 1000);
  }
  // Times of text form have more digits than a double holds.
  const std::size_t point = value.text.find('.');
  if (value.kind != JsonScalar::Kind::kInteger && point != std::string_view::npos &&
      value.text.find_first_not_of("0123456789.") == std::string_view::npos) {
    const std::optional<std::uint64_t> whole = parse_unsigned(value.text.substr(0, point));
    std::string digits(value.text.substr(point + 1, 3));
    digits.resize(3, '0');
    const std::optional<std::uint64_t> rest = parse_unsigned(digits);
    if (whole && rest && *whole <= kMostMicroseconds) {
      return *whole * 1000 + *rest;
    }
  }
  if (value.kind == JsonScalar::Kind::kFraction && std::isfinite(value.fraction) &&
      value.fraction >= 0 && value.fraction <= static_cast<double>(kMostMicroseconds)) {
    return static_cast<std::uint64_t>(std::llround(value.fraction * 1000));
  }
  return std::nullopt;
}

class KinetoHandler final : public JsonHandler {
 public:
  explicit KinetoHandler(const std::string& name) : name_(name) {}

  bool open(char bracket, std::string_view key) override;
  bool close(char bracket) override;
  bool scalar(std::string_view key, const JsonScalar& value) override;
  ImportError build(std::vector<Trace>* traces);

 private:
  struct Fields {
    bool is_memory = false;
    bool bad_time = false;
    std::optional<std::uint64_t> time_ns;
    std::optional<std::uint64_t> process;
    std::optional<std::uint64_t> device_type;
    std::optional<std::uint64_t> device;
    std::optional<std::uint64_t> address;
    std::optional<std::int64_t> bytes;
    std::optional<std::uint64_t> total;
    std::optional<std::uint64_t> index;
  };

  bool argument(std::string_view key, const JsonScalar& value);
  bool finish_event();

  const std::string& name_;
  EventList events_;
  std::vector<MemoryEvent> memory_;
  std::map<std::uint32_t, std::uint64_t> stated_peak_;
  std::map<std::uint32_t, std::uint64_t> live_before_;
  int events_depth_ = -1;  // brackets around the list of events, that of the list included
  bool seen_events_ = false;
  bool in_arguments_ = false;
  std::uint64_t of_the_host_ = 0;
  Fields fields_;
};

bool KinetoHandler::open(char bracket, std::string_view key) {
  const bool is_list = bracket == '[';
  if (events_depth_ < 0 && is_list && (depth() == 0 || (depth() == 1 && key == "traceEvents"))) {
    events_depth_ = depth() + 1;
    seen_events_ = true;
  } else if (events_depth_ >= 0 && depth() == events_depth_) {
    fields_ = {};
  } else if (events_depth_ >= 0 && depth() == events_depth_ + 1) {
    in_arguments_ = key == "args" && !is_list;
  }
  return true;
}

bool KinetoHandler::close(char bracket) {
  if (events_depth_ < 0) {
    return true;
  }
  if (depth() == events_depth_ + 1) {
    in_arguments_ = false;
  } else if (depth() == events_depth_ && bracket == '{') {
    return finish_event();
  } else if (depth() < events_depth_) {
    events_depth_ = -1;
  }
  return true;
}

bool KinetoHandler::scalar(std::string_view key, const JsonScalar& value) {
  if (events_depth_ < 0) {
    return true;
  }
  if (depth() == events_depth_ + 1) {
    if (key == "name") {
      fields_.is_memory = value.kind == JsonScalar::Kind::kText && value.text == "[memory]";
    } else if (key == "ts") {
      fields_.time_ns = nanoseconds(value);
      fields_.bad_time = !fields_.time_ns;
    } else if (key == "pid") {
      fields_.process = value.as_unsigned();
    }
  } else if (in_arguments_ && depth() == events_depth_ + 2) {
    return argument(key, value);
  }
  return true;
}

bool KinetoHandler::argument(std::string_view key, const JsonScalar& value) {
  if (key == "Device Type") {
    fields_.device_type = value.as_unsigned();
  } else if (key == "Device Id") {
    fields_.device = value.as_unsigned();
  } else if (key == "Addr") {
    fields_.address = value.as_unsigned();
  } else if (key == "Bytes") {
    fields_.bytes = value.as_signed();
  } else if (key == "Total Allocated") {
    fields_.total = value.as_unsigned();
  } else if (key == "Ev Idx") {
    fields_.index = value.as_unsigned();
  }
  return true;
}

bool KinetoHandler::finish_event() {
  if (!fields_.is_memory) {
    return true;
  }
  if (!fields_.device_type || !fields_.bytes) {
    return fail(name_,
                "a [memory] event without 'Device Type' or without 'Bytes'",
                "args with 'Device Type', 'Device Id', 'Addr', 'Bytes'");
  }
  if (*fields_.device_type == 0) {
    ++of_the_host_;
    return true;
  }
  if (!fields_.address) {
    return fail(name_,
                "a [memory] event without 'Addr': frees cannot be told apart",
                "a trace of PyTorch 1.9 or later, which records addresses");
  }
  if (!fields_.time_ns) {
    return fail(name_,
                fields_.bad_time ? "a [memory] event with a bad 'ts'" : "a [memory] event without 'ts'",
                "'ts': microseconds from 0 to 2^53");
  }
  MemoryEvent event;
  event.time_ns = *fields_.time_ns;
  event.index = fields_.index.value_or(0);
  event.address = *fields_.address;
  event.is_free = *fields_.bytes < 0;
  event.bytes = event.is_free ? ~static_cast<std::uint64_t>(*fields_.bytes) + 1
                              : static_cast<std::uint64_t>(*fields_.bytes);
  event.has_total = fields_.total.has_value();
  event.total_allocated = fields_.total.value_or(0);
  event.place = offset();
  event.device = events_.device(fields_.device.value_or(0), fields_.process.value_or(0));
  memory_.push_back(event);
  return true;
}

ImportError KinetoHandler::build(std::vector<Trace>* traces) {
  if (memory_.empty()) {
    std::string found = seen_events_ ? "a trace without one [memory] event" : "JSON without 'traceEvents'";
    if (of_the_host_ > 0) {
      found = "[memory] events of the CPU only (" + std::to_string(of_the_host_) + ")";
    }
    return error_at_byte(name_, 0, std::move(found), kExpected);
  }
  std::stable_sort(memory_.begin(), memory_.end(), [](const MemoryEvent& a, const MemoryEvent& b) {
    return std::pair(a.time_ns, a.index) < std::pair(b.time_ns, b.index);
  });
  for (const MemoryEvent& event : memory_) {
    if (event.has_total) {
      // What was live before the first event, by the source's own count after it.
      const std::uint64_t before =
          event.is_free ? event.total_allocated + event.bytes
                        : event.total_allocated - std::min(event.bytes, event.total_allocated);
      const bool is_new = live_before_.try_emplace(event.device, before).second;
      std::uint64_t& peak = stated_peak_[event.device];
      peak = std::max({peak, event.total_allocated, is_new ? before : 0});
    }
    EventList::Event one;
    one.time_us = event.time_ns / 1000;
    one.address = event.address;
    one.size = event.bytes;
    one.place = event.place;
    one.device = event.device;
    if (!(event.is_free ? events_.add_free(one) : events_.add_allocation(one))) {
      return error_at_byte(
          name_, event.place, events_.problem().found, events_.problem().expected);
    }
  }
  memory_ = {};
  events_.note("streams are not recorded: all events are on stream 0");
  if (of_the_host_ > 0) {
    events_.note(counted(of_the_host_, "event", "events") + " of host memory left out");
  }
  EventList::Rules rules;
  rules.live_before = live_before_;
  if (!events_.build(TraceFormat::kKineto, rules, traces)) {
    return error_at_byte(
        name_, events_.problem().place, events_.problem().found, events_.problem().expected);
  }
  for (Trace& trace : *traces) {
    for (const auto& [device, peak] : stated_peak_) {
      if (traces->size() == 1 && stated_peak_.size() == 1 &&
          round_up(Bytes(peak), kTraceRounding) != trace.peak_live) {
        trace.notes.push_back("the source counts a peak of " + std::to_string(peak) +
                              " bytes, its events add up to " +
                              std::to_string(trace.peak_live.count()));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

ImportError import_kineto(ByteWindow& input, const std::string& name, std::vector<Trace>* traces) {
  KinetoHandler handler(name);
  if (ImportError error = read_json(input, name, kExpected, handler)) {
    return error;
  }
  return handler.build(traces);
}

}  // namespace nofrag
