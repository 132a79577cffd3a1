// AddressPlan: addresses for blocks of a trace that has none.
//
// Owns: the addresses, by block. Best fit, lowest address among equals, so that the plan stays small. Layer:
// trace. Units: bytes from 0; each block takes its size rounded up to 512, at least 512, so that no two live
// blocks have one address. Threads: none. Failure: none. Cost: O(log free pieces) an event.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

class AddressPlan {
 public:
  explicit AddressPlan(const Trace& trace);

  [[nodiscard]] std::uint64_t address(std::uint32_t block) const { return addresses_[block]; }
  // One past the highest byte that was ever used.
  [[nodiscard]] std::uint64_t top() const { return top_; }
  static std::uint64_t held(std::uint64_t size);

 private:
  std::uint64_t take(std::uint64_t size);
  void give_back(std::uint64_t address, std::uint64_t size);

  std::vector<std::uint64_t> addresses_;
  std::map<std::uint64_t, std::uint64_t> free_;                   // size by address
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_sizes_;  // size, address
  std::uint64_t top_ = 0;
};

}  // namespace nofrag
