// Mends: a view that was made for a giant block serves the next one too, once what other blocks use by now of its
// handles, through other addresses, is replaced where it is mapped: a fraction of the calls that a new view takes.
//
// Owns: nothing. Layer: heap. Units: Bytes; costs in mappings.
// Threads: none (the device lock).
// Failure: none; no view may serve.
// Cost: one step a mapping of every view.
// Decision: docs/decisions/0005-alias-arena.md
#pragma once

#include <optional>
#include <vector>

#include "heap/range_heap.h"

namespace nofrag {

// A request that looks for a view to be mended. Costs are counted in mappings.
struct MendRequest {
  Bytes size;
  Bytes piece;  // what one mapping brings
  Bytes idle;   // in idle handles that may be mapped once more
  double most = 0.0;
};

// A window of a view that serves once these mappings are gone and what is unbacked then is mapped.
struct Mend {
  Placement placement;
  std::vector<Mapping*> in_the_way;
  double cost = 0.0;
};

// The cheapest window that costs less than `most`, or none. It changes nothing.
std::optional<Mend> find_mend(const RangeHeap& heap, const MendRequest& request);

}  // namespace nofrag
