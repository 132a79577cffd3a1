#include "cli/replay/capacity.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/errors.h"
#include "config/parser.h"

namespace nofrag {
namespace {

constexpr double kMostTimes = 1e6;
constexpr std::uint64_t kStepsPerPeak = 1000;
constexpr std::uint64_t kProbesBelow = 8;

[[noreturn]] void refuse(std::string_view text) {
  // Where it is clear what was meant: 80GB, 1,5GiB.
  if (!meant_size(text).empty()) {
    throw UsageError("--capacity: " + no_size(text));
  }
  throw UsageError("--capacity '" + std::string(text) +
                   "': expected bytes (24469569536B, 24GiB, 500MiB) or a multiple of the trace's "
                   "peak live memory (1.02x)");
}

// Capacities by their place on the grid.
class Grid {
 public:
  explicit Grid(const CapacitySearch& search)
      : start_(round_up(std::max(search.peak_live, search.granule), search.granule)),
        step_(std::max(search.granule,
                       round_up(Bytes(search.peak_live / Bytes(kStepsPerPeak)), search.granule))),
        most_(search.most) {}

  [[nodiscard]] Bytes capacity(std::uint64_t place) const { return start_ + step_ * place; }
  [[nodiscard]] std::uint64_t place_of(Bytes capacity) const {
    return capacity <= start_ ? 0 : (capacity - start_ + step_ - Bytes(1)) / step_;
  }
  [[nodiscard]] bool within(std::uint64_t place) const { return capacity(place) <= most_; }

 private:
  Bytes start_;
  Bytes step_;
  Bytes most_;
};

Bytes checked(Bytes capacity) {
  if (capacity > Capacity::kMost) {
    throw UsageError("--capacity: " + std::to_string(capacity.count()) +
                     " bytes; the largest device that can be simulated has 16 TiB");
  }
  return capacity;
}

}  // namespace

Capacity Capacity::parse(std::string_view text) {
  Capacity capacity;
  if (!text.empty() && (text.back() == 'x' || text.back() == 'X')) {
    const char* const end = text.data() + text.size() - 1;
    const auto [stop, code] = std::from_chars(text.data(), end, capacity.times_live_);
    if (code != std::errc() || stop != end || !std::isfinite(capacity.times_live_) ||
        capacity.times_live_ <= 0 || capacity.times_live_ > kMostTimes) {
      refuse(text);
    }
    return capacity;
  }
  Bytes bytes;
  if (!parse_bytes(text, &bytes) || bytes.is_zero()) {
    refuse(text);
  }
  // Less than any device has: a unit was forgotten.
  if (bytes < kMiB && text.back() >= '0' && text.back() <= '9') {
    const std::string number(text);
    throw UsageError("--capacity '" + number + "' is " + number + " bytes: write a unit (" +
                     number + "GiB), or " + number +
                     "x for so many times the trace's peak live memory");
  }
  capacity.bytes_ = bytes;
  return capacity;
}

Bytes Capacity::resolve(Bytes peak_live, Bytes granule) const {
  if (bytes_) {
    return checked(*bytes_);
  }
  // 1.02 has no exact binary form: less than a thousandth of a byte too much is not a byte more.
  const long double wanted = std::ceil(times_live_ * static_cast<long double>(peak_live.count()) -
                                       static_cast<long double>(0.001));
  constexpr long double kLargest = 9.0e18L;
  return checked(round_up(Bytes(static_cast<std::uint64_t>(std::min(wanted, kLargest))), granule));
}

std::optional<Bytes> find_min_capacity(const CapacitySearch& search,
                                       const std::function<bool(Bytes)>& completes) {
  const Grid grid(search);
  // From above: a place that completes, starting where a free run peaked.
  std::uint64_t enough = grid.place_of(search.known_enough);
  while (!grid.within(enough) || !completes(grid.capacity(enough))) {
    if (!grid.within(enough)) {
      return std::nullopt;
    }
    enough = enough * 2 + kStepsPerPeak / 20;
  }
  // From below: every place under `failed_below` fails, or is taken to.
  std::uint64_t failed_below = 0;
  while (failed_below < enough) {
    const std::uint64_t middle = failed_below + (enough - failed_below) / 2;
    if (completes(grid.capacity(middle))) {
      enough = middle;
    } else {
      failed_below = middle + 1;
    }
  }
  for (std::uint64_t down = 1; down <= kProbesBelow && down <= enough;) {
    if (completes(grid.capacity(enough - down))) {
      enough -= down;
      down = 1;
    } else {
      ++down;
    }
  }
  return grid.capacity(enough);
}

}  // namespace nofrag
