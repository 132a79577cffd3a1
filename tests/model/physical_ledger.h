// PhysicalLedger: which handle lies at which addresses, learnt from the driver calls alone.
//
// Owns: a copy of every handle and mapping that was made through it. Layer: tests. It knows nothing of
// the allocator; layout() is told the live blocks and says what each handle's bytes are used for.
// Units: Bytes; extents are half open, offsets inside a handle plain counts.
// Threads: none. Failure: a call that the driver refuses changes nothing here. Cost of layout():
// O(handles + blocks log mappings).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "forwarding_driver.h"

namespace nofrag::model {

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// What the live blocks leave of the handles.
struct Layout {
  std::string problem;  // two blocks on the same bytes, or a block with nothing behind it
  Bytes handles;        // of all handles
  Bytes idle;           // of handles without a used byte
  Bytes in_use;         // of the others
  Bytes beside;         // free bytes in used handles
  Bytes stranded;  // of those, the ones between the first and the last used byte of their handle
  Bytes composable_whole;  // idle handles that may serve
  Bytes pinned;  // of pinned handles: they count as used, all that is free there as stranded
  Bytes composable_ends;  // best free suffix of one used handle and free prefix of another
};

class PhysicalLedger final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  Result<HandleId> create(DeviceOrdinal device, Bytes size) override;
  Status release(HandleId handle) override;
  Status map(VirtAddr address, Bytes size, HandleId handle) override;
  Status unmap(VirtAddr address, Bytes size) override;

  // Handles in `exempt` count in everything but the composable_ figures.
  [[nodiscard]] Layout layout(const std::vector<Extent>& live,
                              const std::set<std::uint64_t>& exempt,
                              const std::set<std::uint64_t>& pinned = {}) const;
  // Adds the handles created or mapped since the last call to `out`.
  void take_touched(std::set<std::uint64_t>* out);
  // The handles of which any of these addresses is a part.
  void handles_of(Extent addresses, std::set<std::uint64_t>* out) const;
  // Which handle lies at each mapping of these addresses, in their order (0 = nothing).
  [[nodiscard]] std::vector<std::uint64_t> behind(Extent addresses) const;
  // At how many addresses the handle lies.
  [[nodiscard]] std::size_t mappings_of(std::uint64_t handle) const {
    return handles_.at(handle).mappings;
  }
  // At how many addresses the most often mapped handle lies.
  [[nodiscard]] std::size_t most_mappings() const;

 private:
  struct Handle {
    Bytes size;
    bool released = false;
    std::size_t mappings = 0;
  };
  struct Mapping {
    Bytes size;
    std::uint64_t handle = 0;
  };
  using Uses = std::map<std::uint64_t, std::vector<Extent>>;  // handle -> used offsets

  void forget_if_gone(std::uint64_t handle);
  bool collect(const Extent& block, Uses* uses) const;
  // The mapping that contains the address, or end().
  [[nodiscard]] std::map<std::uint64_t, Mapping>::const_iterator at(std::uint64_t address) const;

  std::map<std::uint64_t, Handle> handles_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::set<std::uint64_t> touched_;
};

}  // namespace nofrag::model
