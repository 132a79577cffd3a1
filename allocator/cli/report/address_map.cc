#include "cli/report/address_map.h"

#include <algorithm>

namespace nofrag {
namespace {

constexpr std::uint64_t kUnit = 512;
// Gaps up to this stay in the picture.
constexpr std::uint64_t kWidestGap = std::uint64_t{64} << 20;

std::uint64_t held_at(std::uint64_t size) {
  return round_up(Bytes(size), kTraceRounding).count();
}

}  // namespace

AddressMap::AddressMap(const Trace& trace,
                       const std::vector<std::uint64_t>& addresses,
                       std::uint64_t events,
                       const std::vector<std::uint64_t>& moments) {
  find_areas(trace, addresses, events);
  std::size_t next = 0;
  for (std::uint64_t i = 0; i <= events; ++i) {
    while (next < moments.size() && moments[next] <= i) {
      add_moment(trace, i);
      ++next;
    }
    if (i == events) {
      break;
    }
    const TraceEvent& event = trace.events[i];
    const Bytes size(held_at(event.size));
    live_ = event.is_free() ? live_ - size : live_ + size;
    blocks_ = event.is_free() ? blocks_ - 1 : blocks_ + 1;
    if (!size.is_zero() && addresses[event.block] != 0) {
      change(addresses[event.block], size.count(), !event.is_free());
    }
  }
}

void AddressMap::find_areas(const Trace& trace,
                            const std::vector<std::uint64_t>& addresses,
                            std::uint64_t events) {
  std::vector<Extent> extents;
  for (std::uint64_t i = 0; i < events; ++i) {
    const TraceEvent& event = trace.events[i];
    if (!event.is_free() && event.size != 0 && addresses[event.block] != 0) {
      extents.push_back({addresses[event.block], addresses[event.block] + held_at(event.size)});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin < b.begin;
  });
  std::vector<Extent> merged;
  std::uint64_t total = 0;
  for (const Extent& one : extents) {
    if (merged.empty() || one.begin > merged.back().end + kWidestGap) {
      merged.push_back(one);
    } else {
      merged.back().end = std::max(merged.back().end, one.end);
    }
  }
  for (const Extent& one : merged) {
    total += one.end - one.begin;
  }
  // Each area may waste a part of its last cell.
  const std::uint64_t cells =
      merged.size() < kMostCells / 2 ? kMostCells - merged.size() : kMostCells / 2;
  cell_bytes_ = std::max(kUnit, (total / cells / kUnit + 1) * kUnit);
  std::uint64_t next = 0;
  for (const Extent& one : merged) {
    const std::uint64_t count = (one.end - one.begin + cell_bytes_ - 1) / cell_bytes_;
    areas_.push_back({one.begin, count});
    first_cell_.push_back(next);
    next += count;
  }
  used_.resize(next);
}

void AddressMap::change(std::uint64_t address, std::uint64_t size, bool add) {
  const auto after = std::upper_bound(
      areas_.begin(), areas_.end(), address, [](std::uint64_t value, const Area& area) {
        return value < area.address;
      });
  const auto area = static_cast<std::size_t>(after - areas_.begin()) - 1;
  std::uint64_t at = address - areas_[area].address;
  const std::uint64_t end = at + size;
  while (at < end) {
    const std::uint64_t cell = at / cell_bytes_;
    const std::uint64_t part = std::min(end, (cell + 1) * cell_bytes_) - at;
    std::uint64_t& used = used_[first_cell_[area] + cell];
    used = add ? used + part : used - part;
    at += part;
  }
}

void AddressMap::add_moment(const Trace& trace, std::uint64_t events) {
  Moment moment;
  moment.events = events;
  const std::uint64_t last = events == 0 ? 0 : events - 1;
  moment.time_us = trace.events[last].time_us - trace.events.front().time_us;
  moment.live = live_;
  moment.blocks = blocks_;
  moment.levels.reserve(used_.size());
  for (const std::uint64_t used : used_) {
    const std::uint64_t level = used == 0 ? 0
                                : used >= cell_bytes_
                                    ? 255
                                    : std::min<std::uint64_t>(254, 1 + used * 254 / cell_bytes_);
    moment.levels.push_back(static_cast<char>(level));
  }
  moments_.push_back(std::move(moment));
}

}  // namespace nofrag
