// Tuning: the numbers that a policy stands for, and what the single options change in them.
//
// Layer: device. Units: Bytes; shares are fractions.
// Source of the numbers: the policy study (bench/policy/study.py; docs/decisions/0005-alias-arena.md).
// Threads: constant. Failure: none.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "config/options.h"

namespace nofrag {

struct Tuning {
  Bytes handle;   // what new memory comes in, while there is plenty
  Bytes largest;  // the same under large requests
  // How many times larger both are while several streams share the memory and less than a quarter is taken: what
  // streams pass on to each other is mapped more often, and each handle costs.
  std::uint64_t coarser = 1;
  // How many times larger what large requests are made of is at first: of one stream while less than an eighth
  // is taken, of several while less than a quarter is.
  std::uint64_t at_first = 1;
  std::uint64_t at_first_several = 1;
  // How far reserved memory may grow above the peak of allocated memory before free memory is composed.
  double slack = 0.0;
  // The same of one stream, of what there is that is taken: so much times that share, up to `most_slack`. What is
  // composed early lies badly later, which matters the more the nearer a job comes to the end of what there is.
  double slack_by_share = 0.0;
  double most_slack = 0.0;
  // A small job may hold more beside it, the smaller it is: up to this share of the device (0: no more).
  std::uint64_t small_job_share = 0;
  std::uint64_t cuts = 0;              // how many idle handles may be cut under blocks (cut.cc) ...
  std::uint64_t cuts_at_the_brim = 0;  // ... and when next to nothing is left
  std::uint64_t exact_handles = 0;     // how many small handles may be made before memory is tight
  std::uint32_t aliases = 1;           // at how many addresses a handle may be mapped
};

Tuning tuning_of(const Options& options, Bytes granularity);

}  // namespace nofrag
