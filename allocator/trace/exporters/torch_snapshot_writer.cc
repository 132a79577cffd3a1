// The pickle that PyTorch's memory_viz loads: protocol 2, plain values, one text a name.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "trace/exporters/address_plan.h"
#include "trace/exporters/exporter.h"
#include "trace/packed_codec.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kBase = 0x7f0000000000;  // where CUDA's own addresses tend to be
constexpr std::size_t kBatch = 1000;  // values between MARK and APPENDS, as Python writes it
constexpr std::uint64_t kMostDevices = 4096;

// Writes opcodes; texts are written once and named by number afterwards.
class PickleWriter {
 public:
  explicit PickleWriter(const ExportSink& sink) : sink_(sink) { out_ = "\x80\x02"; }

  void open_dict() { out_ += "}("; }
  void close_dict() { out_ += 'u'; }
  void open_list() { out_ += "]("; }
  void close_list() { out_ += 'e'; }
  void next_batch() { out_ += "e("; }
  void empty_list() { out_ += ']'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void close_tuple_of_two() { out_ += '\x86'; }

  void number(std::uint64_t value) {
    if (value < 256) {
      out_ += 'K';
      append_little_endian<std::uint8_t>(static_cast<std::uint8_t>(value), &out_);
    } else if (value < (std::uint64_t{1} << 31)) {
      out_ += 'J';
      append_little_endian<std::uint32_t>(static_cast<std::uint32_t>(value), &out_);
    } else {
      // memory_viz reads at most 8 bytes. Two's complement: above 2^63 a ninth keeps the sign off.
      const bool wide = value >> 63 != 0;
      out_ += '\x8a';
      out_ += wide ? '\x09' : '\x08';
      append_little_endian<std::uint64_t>(value, &out_);
      if (wide) {
        out_ += '\0';
      }
    }
  }

  void text(std::string_view text) {
    const auto [at, is_new] =
        numbers_.try_emplace(std::string(text), static_cast<std::uint32_t>(numbers_.size()));
    if (!is_new) {
      if (at->second < 256) {
        out_ += 'h';
        append_little_endian<std::uint8_t>(static_cast<std::uint8_t>(at->second), &out_);
      } else {
        out_ += 'j';
        append_little_endian<std::uint32_t>(at->second, &out_);
      }
      return;
    }
    out_ += 'X';
    append_little_endian<std::uint32_t>(static_cast<std::uint32_t>(text.size()), &out_);
    out_ += text;
    out_ += 'r';
    append_little_endian<std::uint32_t>(at->second, &out_);
  }

  void entry(std::string_view key, std::uint64_t value) {
    text(key);
    number(value);
  }
  void entry(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }

  bool flush_if_large() { return out_.size() < kExportPiece || flush(); }
  bool finish() {
    out_ += '.';
    return flush();
  }

 private:
  bool flush() {
    const bool goes_on = sink_(out_);
    out_.clear();
    return goes_on;
  }

  const ExportSink& sink_;
  std::string out_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

// "engine/step.py:12 forward" as PyTorch has it: three fields.
struct Frame {
  std::string_view file;
  std::uint64_t line = 0;
  std::string_view function;
};
Frame frame_of(std::string_view site) {
  const std::size_t space = site.find(' ');
  const std::size_t colon = site.substr(0, space).rfind(':');
  if (space == std::string_view::npos || colon == std::string_view::npos || colon + 1 == space) {
    return {{}, 0, site};
  }
  Frame frame{site.substr(0, colon), 0, site.substr(space + 1)};
  for (const char digit : site.substr(colon + 1, space - colon - 1)) {
    if (digit < '0' || digit > '9' || frame.line > 100'000'000) {
      return {{}, 0, site};
    }
    frame.line = frame.line * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  return frame;
}

class DeviceWriter {
 public:
  DeviceWriter(const Trace& trace, std::uint64_t ordinal, PickleWriter& out)
      : trace_(trace), ordinal_(ordinal), out_(out), plan_(trace) {}

  [[nodiscard]] std::uint64_t ordinal() const { return ordinal_; }

  // The list of the device's events.
  bool write_events() {
    out_.open_list();
    begin_event("segment_alloc", kBase, plan_.top(), trace_.streams.front(), first_time());
    end_event(UINT32_MAX);
    std::size_t mark = 0;
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      for (; mark < trace_.marks.size() && trace_.marks[mark].event <= i; ++mark) {
        write_mark(trace_.marks[mark]);
      }
      write_event(trace_.events[i]);
      if ((i + 1) % kBatch == 0) {
        out_.next_batch();
      }
      if (!out_.flush_if_large()) {
        return false;
      }
    }
    for (; mark < trace_.marks.size(); ++mark) {
      write_mark(trace_.marks[mark]);
    }
    out_.close_list();
    return true;
  }

  // The device's one segment as it is at the end.
  bool write_segment() {
    struct Live {
      std::uint64_t address;
      std::uint64_t size;
      std::uint32_t block;
    };
    std::vector<std::uint64_t> sizes(trace_.allocations, UINT64_MAX);
    std::uint64_t requested = 0;
    std::uint64_t allocated = 0;
    for (const TraceEvent& event : trace_.events) {
      sizes[event.block] = event.is_free() ? UINT64_MAX : event.size;
    }
    std::vector<Live> live;
    for (std::uint32_t block = 0; block < sizes.size(); ++block) {
      if (sizes[block] != UINT64_MAX) {
        live.push_back({plan_.address(block), sizes[block], block});
        requested += sizes[block];
        allocated += AddressPlan::held(sizes[block]);
      }
    }
    std::sort(live.begin(), live.end(), [](const Live& a, const Live& b) {
      return a.address < b.address;
    });
    out_.open_dict();
    out_.entry("device", ordinal_);
    out_.entry("address", kBase);
    out_.entry("total_size", plan_.top());
    out_.entry("allocated_size", allocated);
    out_.entry("active_size", allocated);
    out_.entry("requested_size", requested);
    out_.entry("stream", trace_.streams.front());
    out_.entry("segment_type", "large");
    out_.text("segment_pool_id");
    out_.number(0);
    out_.number(0);
    out_.close_tuple_of_two();
    out_.text("is_expandable");
    out_.boolean(false);
    write_frames(UINT32_MAX);
    out_.text("blocks");
    out_.open_list();
    std::uint64_t at = 0;
    std::size_t written = 0;
    for (const Live& one : live) {
      write_gap(at, one.address);
      write_block(
          one.address, AddressPlan::held(one.size), one.size, "active_allocated", one.block);
      at = one.address + AddressPlan::held(one.size);
      if (++written % kBatch == 0) {
        out_.next_batch();
      }
      if (!out_.flush_if_large()) {
        return false;
      }
    }
    write_gap(at, plan_.top());
    out_.close_list();
    out_.close_dict();
    return true;
  }

 private:
  [[nodiscard]] std::uint64_t first_time() const { return trace_.events.front().time_us; }
  [[nodiscard]] std::uint32_t site_of(std::uint32_t block) const {
    return trace_.sites.empty() ? UINT32_MAX : trace_.sites[block];
  }

  void begin_event(std::string_view action,
                   std::uint64_t address,
                   std::uint64_t size,
                   std::uint64_t stream,
                   std::uint64_t time_us) {
    out_.open_dict();
    out_.entry("action", action);
    out_.entry("addr", address);
    out_.entry("size", size);
    out_.entry("stream", stream);
    out_.entry("time_us", time_us);
  }
  void end_event(std::uint32_t site) {
    write_frames(site);
    out_.close_dict();
  }

  void write_event(const TraceEvent& event) {
    const std::uint64_t address = kBase + plan_.address(event.block);
    const std::uint64_t stream = trace_.streams[event.stream()];
    if (!event.is_free()) {
      begin_event("alloc", address, event.size, stream, event.time_us);
      end_event(site_of(event.block));
      return;
    }
    for (const std::string_view action : {"free_requested", "free_completed"}) {
      begin_event(action, address, event.size, stream, event.time_us);
      end_event(UINT32_MAX);
    }
  }

  void write_mark(const TraceMark& mark) {
    out_.open_dict();
    out_.entry("action", "oom");
    out_.entry("device_free", mark.free_bytes.value_or(0));
    out_.entry("size", mark.requested);
    out_.entry("stream", std::uint64_t{0});
    out_.entry("time_us", mark.time_us);
    end_event(UINT32_MAX);
  }

  void write_frames(std::uint32_t site) {
    out_.text("frames");
    if (site == UINT32_MAX) {
      out_.empty_list();
      return;
    }
    if (trace_.site_frames.empty()) {
      out_.open_list();
      write_frame(trace_.site_names[site]);
      out_.close_list();
      return;
    }
    const std::vector<std::string>& frames = trace_.site_frames[site];
    if (frames.empty()) {
      out_.empty_list();
      return;
    }
    out_.open_list();
    for (const std::string& frame : frames) {
      write_frame(frame);
    }
    out_.close_list();
  }
  void write_frame(std::string_view text) {
    const Frame frame = frame_of(text);
    out_.open_dict();
    out_.entry("name", frame.function);
    out_.entry("filename", frame.file);
    out_.entry("line", frame.line);
    out_.close_dict();
  }

  void write_gap(std::uint64_t from, std::uint64_t to) {
    if (to > from) {
      write_block(from, to - from, 0, "inactive", UINT32_MAX);
    }
  }
  void write_block(std::uint64_t address,
                   std::uint64_t size,
                   std::uint64_t requested,
                   std::string_view state,
                   std::uint32_t block) {
    out_.open_dict();
    out_.entry("address", kBase + address);
    out_.entry("size", size);
    out_.entry("requested_size", requested);
    out_.entry("state", state);
    write_frames(block == UINT32_MAX ? UINT32_MAX : site_of(block));
    out_.close_dict();
  }

  const Trace& trace_;
  std::uint64_t ordinal_;  // the place of the events in the list of devices
  PickleWriter& out_;
  AddressPlan plan_;
};

void write_settings(PickleWriter& out) {
  out.text("allocator_settings");
  out.open_dict();
  out.entry("PYTORCH_CUDA_ALLOC_CONF", "");
  out.entry("max_split_size", UINT64_MAX >> 1);
  out.entry("garbage_collection_threshold", std::uint64_t{0});
  out.text("expandable_segments");
  out.boolean(false);
  out.close_dict();
  out.text("external_annotations");
  out.empty_list();
}

}  // namespace

bool export_torch_snapshot(const std::vector<Trace>& traces, const ExportSink& sink) {
  PickleWriter out(sink);
  std::vector<DeviceWriter> devices;
  devices.reserve(traces.size());
  std::uint64_t next = 0;
  for (const Trace& trace : traces) {
    // Two processes may each have a device 0.
    const std::uint64_t ordinal = std::max(next, std::min(trace.device, kMostDevices));
    devices.emplace_back(trace, ordinal, out);
    next = ordinal + 1;
  }
  out.open_dict();
  out.text("segments");
  out.open_list();
  for (DeviceWriter& device : devices) {
    if (!device.write_segment()) {
      return false;
    }
  }
  out.close_list();
  out.text("device_traces");
  out.open_list();
  next = 0;
  for (DeviceWriter& device : devices) {
    for (; next < device.ordinal(); ++next) {
      out.empty_list();
    }
    if (!device.write_events()) {
      return false;
    }
    ++next;
  }
  out.close_list();
  write_settings(out);
  out.close_dict();
  return out.finish();
}

}  // namespace nofrag
