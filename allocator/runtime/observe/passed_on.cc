#include "runtime/observe/passed_on.h"

#include <algorithm>
#include <atomic>

namespace nofrag {
namespace {

constexpr std::size_t kMostDevices = 64;

struct Row {
  std::array<std::atomic<std::int64_t>, kPassedOnKinds> now;
  std::atomic<std::int64_t> total;
  std::atomic<std::int64_t> peak;
  std::atomic<std::uint64_t> uncounted;
  std::atomic<bool> any;
};
std::array<Row, kMostDevices> rows;

Row* row_of(int device) {
  const auto index = static_cast<std::size_t>(device);
  return device >= 0 && index < kMostDevices ? &rows[index] : nullptr;
}

Bytes bytes(const std::atomic<std::int64_t>& count) {
  const std::int64_t now = count.load(std::memory_order_relaxed);
  return Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(now, 0)));
}

}  // namespace

void note_passed_on(int device, PassedOnKind kind, std::int64_t difference) {
  Row* const row = row_of(device);
  if (row == nullptr) {
    return;
  }
  row->any.store(true, std::memory_order_relaxed);
  row->now[static_cast<std::size_t>(kind)].fetch_add(difference, std::memory_order_relaxed);
  if (kind == PassedOnKind::kManaged) {
    return;
  }
  const std::int64_t total =
      row->total.fetch_add(difference, std::memory_order_relaxed) + difference;
  std::int64_t seen = row->peak.load(std::memory_order_relaxed);
  while (seen < total && !row->peak.compare_exchange_weak(seen, total, std::memory_order_relaxed)) {
  }
}

void note_uncounted(int device) {
  if (Row* const row = row_of(device); row != nullptr) {
    row->any.store(true, std::memory_order_relaxed);
    row->uncounted.fetch_add(1, std::memory_order_relaxed);
  }
}

std::vector<PassedOn> passed_on() {
  std::vector<PassedOn> found;
  for (std::size_t i = 0; i < kMostDevices; ++i) {
    const Row& row = rows[i];
    if (!row.any.load(std::memory_order_relaxed)) {
      continue;
    }
    PassedOn one;
    one.device = static_cast<int>(i);
    for (std::size_t kind = 0; kind < kPassedOnKinds; ++kind) {
      one.now[kind] = bytes(row.now[kind]);
    }
    one.total = bytes(row.total);
    one.peak = bytes(row.peak);
    one.uncounted = row.uncounted.load(std::memory_order_relaxed);
    found.push_back(one);
  }
  return found;
}

}  // namespace nofrag
