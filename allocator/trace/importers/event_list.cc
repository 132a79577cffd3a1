#include "trace/importers/event_list.h"

#include <algorithm>
#include <utility>

#include "trace/importers/importer.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 60;
constexpr std::uint64_t kLatestTime = std::uint64_t{1} << 53;
constexpr std::size_t kMostDevices = 4096;
// A free that was written late comes soon, or never.
constexpr std::size_t kLateness = 4096;

}  // namespace

// Gives each event of one device its block.
class EventList::DeviceBuild {
 public:
  DeviceBuild(Device& device, const Rules& rules, std::uint64_t live_before)
      : device_(device), rules_(rules), rest_(live_before) {}

  bool run(TraceFormat format, Trace* trace, std::vector<std::uint32_t>* sites, Problem* problem) {
    resolve();
    if (!emit(problem)) {
      return false;
    }
    *trace = builder_.finish(format);
    trace->device = device_.number;
    for (const TraceMark& mark : device_.marks) {
      trace->marks.push_back(mark);
      trace->marks.back().event = started_at_[mark.event];
    }
    *sites = std::move(sites_);
    add_notes(trace);
    return true;
  }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  struct Block {
    std::uint64_t size = 0;
    std::uint64_t stream = 0;
    std::uint32_t site = kNoSite;
  };
  struct Late {
    std::uint32_t block;
    std::size_t seen_at;
  };

  std::uint32_t new_block(const Event& event) {
    blocks_.push_back({event.size, event.stream, event.site});
    return static_cast<std::uint32_t>(blocks_.size() - 1);
  }

  // Says of every item which block it is about; blocks from before the recording are found by their frees.
  void resolve() {
    for (const Event& event : device_.existing) {
      const std::uint32_t block = new_block(event);
      existing_.push_back(block);
      live_[event.address] = block;
    }
    block_of_.assign(device_.items.size(), kNobody);
    ends_before_.assign(device_.items.size(), kNobody);
    for (std::size_t i = 0; i < device_.items.size(); ++i) {
      const Item& item = device_.items[i];
      if (item.is_free) {
        resolve_free(i, item.event);
      } else {
        resolve_allocation(i, item.event);
      }
    }
    missing_frees_ += late_.size();
    std::uint64_t known = 0;
    for (const std::uint32_t block : existing_) {
      known += blocks_[block].size;
    }
    if (rest_ > known) {
      rest_ -= known;
      Event event;
      event.size = rest_;
      existing_.push_back(new_block(event));
    } else {
      rest_ = 0;
    }
  }

  void resolve_allocation(std::size_t i, const Event& event) {
    const std::uint32_t block = new_block(event);
    block_of_[i] = block;
    const auto [at, is_new] = live_.try_emplace(event.address, block);
    if (is_new) {
      return;
    }
    ends_before_[i] = at->second;
    if (rules_.late_frees) {
      late_.insert_or_assign(event.address, Late{at->second, i});
    } else {
      ++missing_frees_;
    }
    at->second = block;
  }

  void resolve_free(std::size_t i, const Event& event) {
    if (rules_.late_frees) {
      const auto late = late_.find(event.address);
      if (late != late_.end()) {
        const bool same =
            event.size == kUnknownSize || blocks_[late->second.block].size == event.size;
        const bool in_time = i - late->second.seen_at <= kLateness;
        missing_frees_ += same && in_time ? 0 : 1;
        late_.erase(late);
        if (same && in_time) {
          ++late_frees_;
          return;
        }
      }
    }
    const auto at = live_.find(event.address);
    if (at != live_.end()) {
      block_of_[i] = at->second;
      live_.erase(at);
      return;
    }
    if (event.size == kUnknownSize) {
      ++unknown_frees_;
      return;
    }
    block_of_[i] = new_block(event);
    existing_.push_back(block_of_[i]);
  }

  std::uint64_t at_least_now(std::uint64_t time_us) {
    backwards_ += time_us < now_ ? 1 : 0;
    now_ = std::max(now_, time_us);
    return now_;
  }

  bool emit(Problem* problem) {
    number_of_.assign(blocks_.size(), kNobody);
    if (!device_.items.empty()) {
      now_ = device_.items.front().event.time_us;
    }
    for (const std::uint32_t block : existing_) {
      if (!allocate(block)) {
        return failed(0, problem);
      }
    }
    for (std::size_t i = 0; i < device_.items.size(); ++i) {
      const Event& event = device_.items[i].event;
      started_at_.push_back(builder_.event_count());
      at_least_now(event.time_us);
      // Its own free does not say more: the stream of its allocation.
      if (ends_before_[i] != kNobody && !free(ends_before_[i], blocks_[ends_before_[i]].stream)) {
        return failed(event.place, problem);
      }
      if (block_of_[i] == kNobody) {
        continue;
      }
      if (!(device_.items[i].is_free ? free(block_of_[i], event.stream) : allocate(block_of_[i]))) {
        return failed(event.place, problem);
      }
    }
    started_at_.push_back(builder_.event_count());
    return true;
  }

  bool allocate(std::uint32_t block) {
    number_of_[block] = static_cast<std::uint32_t>(builder_.block_count());
    sites_.push_back(blocks_[block].site);
    return builder_.add_allocation(
        now_, number_of_[block], blocks_[block].size, blocks_[block].stream);
  }
  bool free(std::uint32_t block, std::uint64_t stream) {
    return builder_.add_free_of_block(now_, number_of_[block], stream);
  }
  bool failed(std::uint64_t place, Problem* problem) const {
    *problem = {builder_.problem().found, builder_.problem().expected, place};
    return false;
  }

  void add_notes(Trace* trace) const {
    const std::size_t found = existing_.size() - (rest_ > 0 ? 1 : 0);
    if (found > 0) {
      trace->warnings.push_back(
          counted(found, "block was", "blocks were") +
          " there before the recording: placed at its start, in no known order");
    }
    if (rest_ > 0) {
      trace->warnings.push_back(
          std::to_string(rest_) +
          " bytes were live before the recording and are not freed in it: one "
          "block at its start");
    }
    if (missing_frees_ > 0) {
      trace->warnings.push_back(
          counted(missing_frees_, "free is", "frees are") +
          " missing (an address was allocated again): placed right before that allocation");
    }
    if (late_frees_ > 0) {
      trace->warnings.push_back(
          counted(late_frees_, "free was", "frees were") +
          " recorded after the allocation that reused the address: put before it");
    }
    if (unknown_frees_ > 0) {
      trace->warnings.push_back(
          counted(unknown_frees_, "free names an address", "frees name addresses") +
          " of which neither allocation nor size is known: left out");
    }
    if (backwards_ > 0) {
      trace->warnings.push_back(counted(backwards_, "time goes", "times go") +
                                " back: raised to the one before, the order is the recorder's");
    }
  }

  Device& device_;
  const Rules& rules_;
  std::uint64_t rest_;
  TraceBuilder builder_{TraceUnit::kEvent};
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> existing_;
  std::vector<std::uint32_t> block_of_;     // by item
  std::vector<std::uint32_t> ends_before_;  // by item: a block whose free is missing
  std::vector<std::uint32_t> number_of_;    // by block, in the trace
  std::vector<std::uint64_t> started_at_;   // by item, the trace's event
  std::vector<std::uint32_t> sites_;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;
  std::unordered_map<std::uint64_t, Late> late_;
  std::uint64_t now_ = 0;
  std::uint64_t missing_frees_ = 0;
  std::uint64_t late_frees_ = 0;
  std::uint64_t unknown_frees_ = 0;
  std::uint64_t backwards_ = 0;
};

bool EventList::refuse(std::string found, std::string expected, std::uint64_t place) {
  problem_ = {std::move(found), std::move(expected), place};
  return false;
}

bool EventList::check(const Event& event) {
  if (event.device == kNoDevice) {
    return refuse("more than " + std::to_string(kMostDevices) + " devices",
                  "events that name devices by number",
                  event.place);
  }
  if (event.size != kUnknownSize && event.size > kLargestSize) {
    return refuse(
        "size " + std::to_string(event.size), "a size of at most 2^60 bytes", event.place);
  }
  if (event.time_us > kLatestTime) {
    return refuse("time " + std::to_string(event.time_us) + " us",
                  "a time of at most 2^53 microseconds",
                  event.place);
  }
  return true;
}

bool EventList::add_allocation(const Event& event) {
  if (!check(event)) {
    return false;
  }
  devices_[event.device].items.push_back({event, false});
  return true;
}

bool EventList::add_free(const Event& event) {
  if (!check(event)) {
    return false;
  }
  devices_[event.device].items.push_back({event, true});
  return true;
}

bool EventList::add_existing(const Event& event) {
  if (!check(event)) {
    return false;
  }
  devices_[event.device].existing.push_back(event);
  return true;
}

void EventList::add_mark(std::uint32_t device, TraceMark mark) {
  if (device == kNoDevice) {
    return;
  }
  mark.event = devices_[device].items.size();
  devices_[device].marks.push_back(mark);
}

void EventList::set_reserved(std::uint32_t device, std::size_t mark, std::uint64_t bytes) {
  devices_[device].marks[mark].reserved_bytes = bytes;
}

std::uint32_t EventList::site(std::string_view name) {
  const auto [at, is_new] =
      site_numbers_.try_emplace(std::string(name), static_cast<std::uint32_t>(site_names_.size()));
  if (is_new) {
    site_names_.emplace_back(name);
  }
  return at->second;
}

std::uint32_t EventList::device(std::uint64_t number, std::uint64_t process) {
  // The last one first: nearly every event is of its predecessor's device.
  for (std::size_t i = devices_.size(); i-- > 0;) {
    if (devices_[i].number == number && devices_[i].process == process) {
      return static_cast<std::uint32_t>(i);
    }
  }
  if (devices_.size() == kMostDevices) {
    return kNoDevice;
  }
  Device device;
  device.number = number;
  device.process = process;
  devices_.push_back(std::move(device));
  return static_cast<std::uint32_t>(devices_.size() - 1);
}

bool EventList::empty() const {
  return std::all_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.items.empty() && device.existing.empty();
  });
}

// Only the names that blocks of this trace have.
void EventList::give_sites(const std::vector<std::uint32_t>& sites, Trace* trace) const {
  if (site_names_.empty()) {
    return;
  }
  std::vector<std::uint32_t> number(site_names_.size(), kNoSite);
  std::uint32_t unknown = kNoSite;
  const auto add = [&](std::uint32_t* slot, const std::string& name) {
    if (*slot == kNoSite) {
      *slot = static_cast<std::uint32_t>(trace->site_names.size());
      trace->site_names.push_back(name);
    }
    return *slot;
  };
  for (const std::uint32_t site : sites) {
    trace->sites.push_back(site == kNoSite ? add(&unknown, "(unknown)")
                                           : add(&number[site], site_names_[site]));
  }
}

bool EventList::build(TraceFormat format, const Rules& rules, std::vector<Trace>* traces) {
  std::vector<std::uint32_t> order(devices_.size());
  bool several_processes = false;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    several_processes = several_processes || devices_[i].process != devices_[0].process;
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(devices_[a].number, devices_[a].process) <
           std::pair(devices_[b].number, devices_[b].process);
  });
  std::vector<Trace> built;
  for (const std::uint32_t i : order) {
    Device& device = devices_[i];
    if (device.items.empty() && device.existing.empty()) {
      continue;
    }
    const auto before = rules.live_before.find(i);
    std::vector<std::uint32_t> sites;
    Trace trace;
    if (!DeviceBuild(device, rules, before == rules.live_before.end() ? 0 : before->second)
             .run(format, &trace, &sites, &problem_)) {
      return false;
    }
    if (several_processes) {
      trace.device_name =
          "process " + std::to_string(device.process) + ", device " + std::to_string(device.number);
      trace.device = built.size();
    }
    give_sites(sites, &trace);
    trace.warnings.insert(trace.warnings.begin(), notes_.begin(), notes_.end());
    device = {};
    if (!trace.events.empty()) {
      built.push_back(std::move(trace));
    }
  }
  if (built.empty()) {
    return refuse("frees of unknown blocks and nothing else", "at least one allocation", 0);
  }
  *traces = std::move(built);
  return true;
}

}  // namespace nofrag
