// ReplayAllocator: what replay needs of an allocator, nofrag itself or a peer to compare with.
//
// Layer: cli. Blocks are named by their number in the trace (trace/trace.h); the allocator keeps
// the table from number to address. Units: bytes; sizes as requested, never zero. Invariant:
// reserved() is physical memory taken from the driver and not given back; peak_reserved() its
// highest value. Threads: none. Failure: kOutOfMemory or kLimit when the request cannot be served
// (nothing has changed then but caches); any other code is a fault and ends the replay.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"
#include "trace/record/recording.h"

namespace nofrag {

class ReplayAllocator {
 public:
  ReplayAllocator() = default;
  ReplayAllocator(const ReplayAllocator&) = delete;
  ReplayAllocator& operator=(const ReplayAllocator&) = delete;
  virtual ~ReplayAllocator() = default;

  virtual Status allocate(std::uint32_t block, Bytes size, StreamId stream) = 0;
  // `stream` is the one that used the block last; it may differ from the one of its allocation.
  virtual Status free(std::uint32_t block, StreamId stream) = 0;

  // What a recording tells beside (trace/record/recording.h); `stream` is its event's. For those that can do
  // the same.
  virtual Status note(const Recording::Note& /*note*/, StreamId /*stream*/) { return {}; }

  // Called when nothing more comes on `stream` but frees, before it is destroyed.
  virtual Status retire(StreamId /*stream*/) { return {}; }

  // Where a live block lies, for pictures; null where the allocator does not say.
  [[nodiscard]] virtual VirtAddr address(std::uint32_t /*block*/) const { return {}; }
  // Bytes freed that another stream's work may still touch; for pictures. Zero where it is not known.
  [[nodiscard]] virtual Bytes pending() const { return {}; }
  [[nodiscard]] virtual Bytes reserved() const = 0;
  [[nodiscard]] virtual Bytes peak_reserved() const = 0;
  // Bytes held in granules (or handles, for an allocator that thinks in handles) of which not one
  // byte is in use: what remapping could hand out. Walks; for out-of-memory reports.
  [[nodiscard]] virtual Bytes free_granules() const = 0;
  // After any other failure, `error`: why the allocator itself would end so on a real device. Empty: it would not, or
  // that is not known.
  [[nodiscard]] virtual std::string trouble(Error /*error*/) const { return {}; }
  // The most that its own options let it hold (limit, memory_fraction); kNoLimit where it has none.
  [[nodiscard]] virtual Bytes limit() const { return kNoLimit; }
};

struct PeerConfig {
  Driver* driver = nullptr;  // outlives the allocator
  DeviceOrdinal device;
  DeviceInfo info;
  Bytes limit = kNoLimit;                // most that reserved() may be
  std::uint32_t blocks = 0;              // how many the trace allocates
  const Recording* recording = nullptr;  // outlives the allocator; null: there is none
};

// The peers we model or drive ourselves (the nofrag adapter: nofrag_adapter.h).
std::unique_ptr<ReplayAllocator> make_torch_native_model(const PeerConfig& config);
std::unique_ptr<ReplayAllocator> make_torch_expandable_model(const PeerConfig& config);
std::unique_ptr<ReplayAllocator> make_cub_caching_model(const PeerConfig& config);
std::unique_ptr<ReplayAllocator> make_driver_async_model(const PeerConfig& config);
// cudaMalloc for every allocation and cudaFree for every free.
std::unique_ptr<ReplayAllocator> make_driver_peer(const PeerConfig& config);

}  // namespace nofrag
