#include "cli/report/trace_digest.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_map>

#include "config/human_bytes.h"
#include "trace/record/ranges.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kNotFreed = UINT64_MAX;

Bytes held(std::uint64_t size) {
  return round_up(Bytes(size), kTraceRounding);
}

class Digester {
 public:
  Digester(const Trace& trace, std::uint64_t events_a_bucket, std::size_t rows)
      : trace_(trace), events_a_bucket_(events_a_bucket), rows_(rows) {}

  TraceDigest run() {
    find_lives();
    find_groups();
    find_blocks();
    find_bins();
    find_ranges();
    return std::move(digest_);
  }

 private:
  [[nodiscard]] std::uint64_t time(std::uint64_t event) const {
    return trace_.events[event].time_us - trace_.events.front().time_us;
  }
  [[nodiscard]] std::uint64_t lifetime(std::uint32_t block) const {
    return (freed_[block] == kNotFreed ? trace_.duration_us() : time(freed_[block])) -
           time(allocated_[block]);
  }

  void find_lives() {
    allocated_.resize(trace_.allocations);
    freed_.assign(trace_.allocations, kNotFreed);
    Bytes live;
    Bytes most;
    TraceDigest::Bucket bucket;
    for (std::uint64_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      (event.is_free() ? freed_ : allocated_)[event.block] = i;
      live = event.is_free() ? live - held(event.size) : live + held(event.size);
      if (live > most) {
        most = live;
        digest_.peak_events = i + 1;
      }
      bucket.highest = std::max(bucket.highest, live);
      if ((i + 1) % events_a_bucket_ == 0 || i + 1 == trace_.events.size()) {
        bucket.time_us = time(i);
        bucket.last = live;
        digest_.live.push_back(bucket);
        bucket = {};
        bucket.highest = live;
      }
    }
  }

  // Call sites of one name belong together, however they were reached.
  [[nodiscard]] std::vector<std::uint64_t> sites_by_name() const {
    std::unordered_map<std::string_view, std::uint64_t> first;
    std::vector<std::uint64_t> numbers;
    numbers.reserve(trace_.site_names.size());
    for (const std::string& name : trace_.site_names) {
      numbers.push_back(first.try_emplace(name, numbers.size()).first->second);
    }
    return numbers;
  }

  void find_groups() {
    digest_.by_site = !trace_.sites.empty();
    const std::vector<std::uint64_t> numbers = sites_by_name();
    std::unordered_map<std::uint64_t, TraceDigest::Group> groups;
    for (std::uint32_t block = 0; block < trace_.allocations; ++block) {
      const std::uint64_t size = trace_.events[allocated_[block]].size;
      TraceDigest::Group& group = groups[digest_.by_site ? numbers[trace_.sites[block]] : size];
      if (group.allocations++ == 0) {
        group.name = digest_.by_site ? site_name(block) : human_bytes(Bytes(size));
      }
      const bool at_peak = allocated_[block] < digest_.peak_events &&
                           (freed_[block] == kNotFreed || freed_[block] >= digest_.peak_events);
      if (group.frames.empty() || (at_peak && Bytes(size) > group.largest)) {
        group.frames = frames_of(block);
      }
      group.largest = std::max(group.largest, Bytes(size));
      if (at_peak) {
        ++group.blocks_at_peak;
        group.bytes_at_peak += held(size);
      }
    }
    for (auto& [key, group] : groups) {
      digest_.groups.push_back(std::move(group));
    }
    std::sort(digest_.groups.begin(), digest_.groups.end(), [](const auto& a, const auto& b) {
      return a.bytes_at_peak != b.bytes_at_peak ? a.bytes_at_peak > b.bytes_at_peak
             : a.largest != b.largest           ? a.largest > b.largest
                                                : a.name < b.name;
    });
    digest_.groups.resize(std::min(digest_.groups.size(), rows_));
  }

  [[nodiscard]] const std::string& site_name(std::uint32_t block) const {
    return trace_.site_names[trace_.sites[block]];
  }
  [[nodiscard]] std::vector<std::string> frames_of(std::uint32_t block) const {
    return trace_.site_frames.empty() ? std::vector<std::string>()
                                      : trace_.site_frames[trace_.sites[block]];
  }

  template <typename Before>
  std::vector<TraceDigest::Block> first_blocks(const Before& before) const {
    std::vector<std::uint32_t> order(trace_.allocations);
    for (std::uint32_t block = 0; block < order.size(); ++block) {
      order[block] = block;
    }
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(rows_, order.size()));
    std::partial_sort(order.begin(), end, order.end(), before);
    std::vector<TraceDigest::Block> blocks;
    for (auto at = order.begin(); at != end; ++at) {
      const TraceEvent& event = trace_.events[allocated_[*at]];
      TraceDigest::Block block;
      block.id = trace_.id_of(*at);
      block.size = event.size;
      block.stream = trace_.streams[event.stream()];
      block.from_us = time(allocated_[*at]);
      block.to_us = block.from_us + lifetime(*at);
      block.freed = freed_[*at] != kNotFreed;
      block.site = digest_.by_site ? site_name(*at) : "";
      block.frames = frames_of(*at);
      blocks.push_back(std::move(block));
    }
    return blocks;
  }

  void find_blocks() {
    const auto size = [this](std::uint32_t block) { return trace_.events[allocated_[block]].size; };
    digest_.biggest = first_blocks([&](std::uint32_t a, std::uint32_t b) {
      return size(a) != size(b) ? size(a) > size(b) : a < b;
    });
    digest_.longest = first_blocks([&](std::uint32_t a, std::uint32_t b) {
      return lifetime(a) != lifetime(b) ? lifetime(a) > lifetime(b)
             : size(a) != size(b)       ? size(a) > size(b)
                                        : a < b;
    });
  }

  static void count(std::vector<TraceDigest::Bin>* bins, std::uint64_t value, Bytes bytes) {
    const auto bin = static_cast<std::size_t>(std::bit_width(value));
    if (bin >= bins->size()) {
      bins->resize(bin + 1);
    }
    (*bins)[bin].from = bin == 0 ? 0 : std::uint64_t{1} << (bin - 1);
    ++(*bins)[bin].blocks;
    (*bins)[bin].bytes += bytes;
  }

  void find_bins() {
    for (std::uint32_t block = 0; block < trace_.allocations; ++block) {
      const std::uint64_t size = trace_.events[allocated_[block]].size;
      count(&digest_.sizes, size, held(size));
      count(&digest_.lifetimes, lifetime(block), held(size));
    }
    for (std::vector<TraceDigest::Bin>* bins : {&digest_.sizes, &digest_.lifetimes}) {
      std::erase_if(*bins, [](const TraceDigest::Bin& bin) { return bin.blocks == 0; });
    }
  }

  void find_ranges() {
    if (trace_.recording == nullptr || digest_.peak_events == 0) {
      return;
    }
    const std::uint64_t peak = trace_.events[digest_.peak_events - 1].time_us;
    for (const RecordedRange& range : ranges_of(*trace_.recording, trace_.events.back().time_us)) {
      if (range.begin_us <= peak && range.end_us >= peak && digest_.ranges_at_peak.size() < rows_) {
        digest_.ranges_at_peak.push_back(range.name);
      }
    }
  }

  const Trace& trace_;
  std::uint64_t events_a_bucket_;
  std::size_t rows_;
  TraceDigest digest_;
  std::vector<std::uint64_t> allocated_;  // event, by block
  std::vector<std::uint64_t> freed_;
};

}  // namespace

TraceDigest digest_trace(const Trace& trace, std::uint64_t events_a_bucket, std::size_t rows) {
  return Digester(trace, events_a_bucket, rows).run();
}

}  // namespace nofrag
