// SimulatedMemory: the physical memory, address space, mappings and contents of simulated devices.
//
// Owns: every handle, mapping, reservation and malloc of one SimulatedDriver. It refuses what the
// real driver refuses and knows nothing of time, costs, streams or faults.
// Layer: driver. Units: Bytes; offsets inside a handle are plain byte counts. Address space:
// reservations come from [kVirtualBegin, kVirtualEnd), mallocs from the range below; addresses are
// handed out upwards and recycled only after the end was reached, so that a stale address is
// noticed. Invariants: in_use(device) = sum of its handles that live (unreleased or mapped) + its
// mallocs; every mapping lies in one reservation, overlaps no other and belongs to a living handle
// whose `mappings` counts it; check() walks them.
// Threads: none; the driver's lock. Failure: strong. Cost: O(log n) a call.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "driver/driver.h"
#include "driver/simulated/tag_map.h"

namespace nofrag {

struct SimulatedLeaks;

// Where some bytes of an address range really are.
struct PhysicalPiece {
  std::uint64_t handle = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Address ranges given out next-fit from one span.
class SimulatedAddressSpace {
 public:
  SimulatedAddressSpace(std::uint64_t begin, std::uint64_t end);
  std::optional<std::uint64_t> take(std::uint64_t size, std::uint64_t alignment);
  void give_back(std::uint64_t begin, std::uint64_t size);

 private:
  std::map<std::uint64_t, std::uint64_t> gaps_;  // begin -> end
  std::uint64_t cursor_;
};

// Address ranges for plain allocations, placed as the real driver places them (measured on an H100,
// docs/driver.md): the lowest free range of what was opened so far, else a new range opened *below*
// all earlier ones, in steps of 32 MiB. Peers that prefer low addresses feel the difference.
class SimulatedMallocSpace {
 public:
  SimulatedMallocSpace(std::uint64_t begin, std::uint64_t end) : begin_(begin), floor_(end) {}
  std::optional<std::uint64_t> take(std::uint64_t size, std::uint64_t alignment);
  void give_back(std::uint64_t begin, std::uint64_t size);

 private:
  std::uint64_t begin_;
  std::uint64_t floor_;                          // lowest address opened
  std::map<std::uint64_t, std::uint64_t> gaps_;  // begin -> end, at or above the floor
};

class SimulatedMemory {
 public:
  static constexpr std::uint64_t kMallocBegin = std::uint64_t{1} << 33;
  static constexpr std::uint64_t kVirtualBegin = std::uint64_t{1} << 45;
  static constexpr std::uint64_t kVirtualEnd = std::uint64_t{1} << 47;

  struct Mapping {
    Bytes size;
    std::uint64_t handle = 0;
    std::uint64_t access = 0;  // one bit a device
    int owner = 0;             // device of the handle
  };

  void add_device(Bytes physical, Bytes granularity);
  void set_physical(int device, Bytes size) { at(device).physical = size; }
  void set_others(int device, Bytes size) { at(device).others = size; }
  [[nodiscard]] Bytes physical(int device) const { return at(device).physical; }
  [[nodiscard]] Bytes in_use(int device) const { return at(device).in_use; }
  [[nodiscard]] Bytes free(int device) const;

  Result<HandleId> create(int device, Bytes size);
  Status release(HandleId id);
  // One more reference to a handle that lives, which needs a release of its own.
  Status retain(HandleId id);
  Result<VirtAddr> reserve(Bytes size, Bytes alignment);
  Status free_range(VirtAddr address, Bytes size);
  Status map(VirtAddr address, Bytes size, HandleId id);
  Status set_access(VirtAddr address, Bytes size, int device);
  Status unmap(VirtAddr address, Bytes size);
  Result<VirtAddr> malloc(int device, Bytes size);
  Status free(int device, VirtAddr address);

  // 0 if there is no such handle.
  [[nodiscard]] Bytes handle_size(HandleId id) const;
  [[nodiscard]] int handle_device(HandleId id) const;
  // As asked for in malloc; 0 if there is none at this address.
  [[nodiscard]] Bytes malloc_size(VirtAddr address) const;

  // Is the range covered exactly by whole mappings?
  [[nodiscard]] bool covered_exactly(VirtAddr address, Bytes size) const;
  // pre: covered_exactly. Calls visit(const Mapping&) in address order.
  template <typename Visit>
  void for_each_mapping(VirtAddr address, Bytes size, Visit visit) const {
    for (auto it = mappings_.find(address.value());
         it != mappings_.end() && it->first < (address + size).value();
         ++it) {
      visit(it->second);
    }
  }

  // The bytes behind a range (mapped or malloced); false if some are not mapped, or not accessible
  // to `device`.
  bool resolve(VirtAddr address, Bytes size, int device, std::vector<PhysicalPiece>* out) const;
  // pre: piece came from resolve and nothing was unmapped since.
  void fill(const PhysicalPiece& piece, std::uint64_t tag);
  // The one tag of all bytes of the piece, or none if they differ.
  [[nodiscard]] std::optional<std::uint64_t> tag_of(const PhysicalPiece& piece) const;

  void count_leaks(SimulatedLeaks* out) const;
  void check() const;

 private:
  struct Device {
    Bytes physical;
    Bytes others;
    Bytes in_use;
    Bytes granularity;
  };
  struct Handle {
    int device = 0;
    bool released = false;
    std::uint32_t imports = 0;  // further references, each to be released
    bool plain = false;  // backs a malloc
    std::uint32_t mappings = 0;
    Bytes size;
    TagMap contents;
  };

  [[nodiscard]] Device& at(int device) { return devices_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] const Device& at(int device) const {
    return devices_[static_cast<std::size_t>(device)];
  }
  bool take_physical(int device, Bytes size);
  void drop_if_unused(std::unordered_map<std::uint64_t, Handle>::iterator handle);
  [[nodiscard]] bool in_one_reservation(VirtAddr address, Bytes size) const;
  [[nodiscard]] bool overlaps_mapping(VirtAddr address, Bytes size) const;

  std::vector<Device> devices_;
  Bytes granularity_;  // the coarsest of all devices, for reservations
  std::unordered_map<std::uint64_t, Handle> handles_;
  std::map<std::uint64_t, Mapping> mappings_;  // by address; mallocs have one each
  std::map<std::uint64_t, Bytes> reservations_;
  std::unordered_map<std::uint64_t, Bytes> mallocs_;  // address -> size asked for
  SimulatedAddressSpace virtual_space_{kVirtualBegin, kVirtualEnd};
  SimulatedMallocSpace malloc_space_{kMallocBegin, kVirtualBegin};
  std::uint64_t next_handle_ = 1;
};

}  // namespace nofrag
