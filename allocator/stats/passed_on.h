// PassedOn: device memory that the program took from the driver past nofrag, by how it was taken.
//
// Owns: values. Layer: stats. Units: bytes, as the program asked for them. Managed memory is no part of the total: it
// lies on the device only as far as it was touched there. Threads: values. Failure: none.
// Cost: none. Who counts: runtime/observe/passed_on.h; what is counted: docs/preload.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace nofrag {

enum class PassedOnKind : unsigned char { kCreated, kPools, kArrays, kAllocated, kManaged };
inline constexpr std::size_t kPassedOnKinds = 5;
// As in statistics and metrics, in the order of the kinds.
inline constexpr std::array<const char*, kPassedOnKinds> kPassedOnNames = {
    "created", "pools", "arrays", "allocated", "managed"};

struct PassedOn {
  int device = 0;
  std::array<Bytes, kPassedOnKinds> now;
  Bytes total;                  // without managed memory
  Bytes peak;                   // of the total
  std::uint64_t uncounted = 0;  // calls that took memory whose size is not known
};

}  // namespace nofrag
