// EventList: what an importer read, and the traces made of it.
//
// Owns: the events of all devices of one source, in its order. Foreign recordings name blocks by address,
// begin in the middle of a job and may lack events: build() finds out which free ends which block, puts
// blocks that were there before the recording at its start, and says in Trace::warnings what was missing and
// what stands in its place. Nothing is filled in that a note does not name. Layer: trace. Units: bytes,
// microseconds on the recorder's clock. Threads: none. Failure: add and build return false and fill
// problem(). Cost: 64 bytes an event, two hash lookups.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

class EventList {
 public:
  static constexpr std::uint64_t kUnknownSize = UINT64_MAX;
  static constexpr std::uint32_t kNoSite = UINT32_MAX;
  static constexpr std::uint32_t kNoDevice = UINT32_MAX;

  struct Event {
    std::uint64_t time_us = 0;
    std::uint64_t address = 0;
    std::uint64_t size = kUnknownSize;  // of a free: kUnknownSize where the source does not say
    std::uint64_t stream = 0;
    std::uint64_t place = 0;  // line, byte or row, for messages
    std::uint32_t device = 0;
    std::uint32_t site = kNoSite;
  };
  // What the source is like.
  struct Rules {
    // An address may be seen allocated again before the free that made that possible (several threads
    // write one log): such a free, when it comes, belongs to the block before.
    bool late_frees = false;
    // The source counts what is live; then what its frees and allocations leave out is one block from
    // the start of the recording.
    std::map<std::uint32_t, std::uint64_t> live_before;  // by device
  };

  [[nodiscard]] bool add_allocation(const Event& event);
  [[nodiscard]] bool add_free(const Event& event);
  // A block that was live before the first event. Its time and place are not used.
  [[nodiscard]] bool add_existing(const Event& event);
  void add_mark(std::uint32_t device, TraceMark mark);
  // Of the mark with this number on its device: what the allocator held then.
  void set_reserved(std::uint32_t device, std::size_t mark, std::uint64_t bytes);
  // The number of a call site, for Event::site.
  std::uint32_t site(std::string_view name);
  // The number of a device that its source names by number, or by process and number. kNoDevice where
  // there are too many; events of it are refused.
  std::uint32_t device(std::uint64_t number, std::uint64_t process = 0);

  void note(std::string text) { notes_.push_back(std::move(text)); }
  [[nodiscard]] bool empty() const;

  // One trace a device, in the order of their numbers; those without an event are left out. Devices of
  // several processes are numbered anew, and named. The list is used up.
  [[nodiscard]] bool build(TraceFormat format, const Rules& rules, std::vector<Trace>* traces);

  struct Problem {
    std::string found;
    std::string expected;
    std::uint64_t place = 0;
  };
  [[nodiscard]] const Problem& problem() const { return problem_; }

 private:
  struct Item {
    Event event;
    bool is_free = false;
  };
  struct Device {
    std::uint64_t number = 0;
    std::uint64_t process = 0;
    std::vector<Event> existing;
    std::vector<Item> items;
    std::vector<TraceMark> marks;  // event = number of items before
  };
  class DeviceBuild;

  bool check(const Event& event);
  bool refuse(std::string found, std::string expected, std::uint64_t place);
  void give_sites(const std::vector<std::uint32_t>& sites, Trace* trace) const;

  std::vector<Device> devices_;
  std::vector<std::string> site_names_;
  std::unordered_map<std::string, std::uint32_t> site_numbers_;
  std::vector<std::string> notes_;
  Problem problem_;
};

}  // namespace nofrag
