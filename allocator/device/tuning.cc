#include "device/tuning.h"

#include <algorithm>

namespace nofrag {
namespace {

Tuning policy_numbers(Policy policy) {
  switch (policy) {
    case Policy::kLean:
      return {4 * kMiB, 16 * kMiB, 1, 1, 1, 0.0, 0.0, 0.0, 0, 500, 2000, 4000, 8};
    case Policy::kFast:
      return {64 * kMiB, 256 * kMiB, 1, 1, 1, 0.05, 0.0, 0.05, 512, 0, 0, 0, 8};
    case Policy::kBalanced:
      break;
  }
  return {8 * kMiB, 32 * kMiB, 2, 2, 5, 0.01, 0.08, 0.05, 512, 100, 300, 500, 8};
}

}  // namespace

Tuning tuning_of(const Options& options, Bytes granularity) {
  Tuning tuning = policy_numbers(options.policy);
  if (!options.handle_size.is_zero()) {
    tuning.handle = options.handle_size;
    tuning.largest = 4 * options.handle_size;
    tuning.coarser = 1;
    tuning.at_first = 1;
    tuning.at_first_several = 1;
  }
  tuning.handle = round_up(tuning.handle, granularity);
  tuning.largest = std::max(tuning.handle, round_up(tuning.largest, granularity));
  if (options.reserve_slack >= 0.0) {
    tuning.slack = options.reserve_slack;
    tuning.slack_by_share = 0.0;
    tuning.small_job_share = 0;
  }
  if (options.max_cuts >= 0) {
    tuning.cuts = static_cast<std::uint64_t>(options.max_cuts);
    tuning.cuts_at_the_brim =
        std::max(tuning.cuts, options.max_cuts == 0 ? 0 : tuning.cuts_at_the_brim);
  }
  tuning.aliases = static_cast<std::uint32_t>(options.max_aliases);
  return tuning;
}

}  // namespace nofrag
