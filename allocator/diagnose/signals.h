// Signals: what a job's memory did over time, as the few numbers that tell the causes apart.
//
// Owns: values, worked out from a Timeline. Layer: diagnose. Units: bytes; shares 0 to 1.
// Threads: pure function. Failure: a history too short for a number leaves it at its default.
// Cost: O(n^2) in the tracks' lengths. Definitions and thresholds: docs/oom-guide.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/timeline.h"
#include "base/units.h"
#include "diagnose/trends.h"

namespace nofrag {

// What came since live memory was last back at its trough, after it had risen from there: the growth is that of this
// time, and a rise before it has gone again. All since the base where it never was.
struct Since {
  bool returned = false;
  std::uint64_t work = 0;               // allocations
  double turnover = 0;                  // as that of Signals
  std::uint64_t cycles = 0;             // complete ones; 0 where they are a small part of the work
  std::uint64_t cycle_allocations = 0;  // of the median one
  // The first ones of a process wait for what is loaded on the way: how many the later half of them are, and how many of
  // those had a pause.
  std::uint64_t later_cycles = 0;
  std::uint64_t later_paused = 0;
};

struct Signals {
  bool history = false;      // there is one at all
  std::uint64_t cycles = 0;  // complete rises and falls of live memory
  double freed_share = 0;    // of all bytes allocated, those freed
  double base_share = 0;     // live when frees first came in numbers, over live now; 1: never did
  std::uint64_t work = 0;    // allocations since the base
  bool at_once = false;      // frees came from the very start: copies on the way of a load
  bool few_frees = false;    // fewer than a tenth of the allocations
  double turnover = 0;       // bytes allocated since the base, over what live grew since
  bool stepped = false;   // a pause split growth without frees in two: a load, and what came then
  bool goes_on = false;   // the later half of the lows rises nearly as fast as all of them
  Line floors;            // lowest live of each unit of work after the base, by its number
  Line tops;              // highest live likewise
  Line requests;          // largest request likewise
  std::size_t units = 0;  // how many units these lines have
  double requests_rise = 0;            // the largest requests' rise over the units, in bytes
  std::uint64_t requests_largest = 0;  // of the units
  double rise = 0;  // floors' rise over the units, in bytes; a strict one's since the first of all
  std::uint64_t rise_units = 0;  // how many units it took
  bool same_blocks = false;  // it rose by more than new blocks explain: the same ones are larger
  std::uint64_t base = 0;    // live at the first unit
  std::uint64_t largest_before = 0;  // largest request that was served
  std::uint64_t highest_before = 0;  // highest live in a complete unit
  Since since;
};

// `pauses`: by how many allocations had come then, in order.
[[nodiscard]] Signals signals_of(const Timeline& timeline,
                                 const std::vector<std::uint64_t>& pauses = {});

}  // namespace nofrag
