// Fence: keeps the default streams of the GPUs that a copy concerns in order while it lives.
//
// By an event in each other one before, and one in the copy's own behind it. For Route::Way::kInside it has the memory's
// context current meanwhile. Owns: nothing; the events go by themselves. Layer: preload. Threads: each its own; no lock of
// ours is held. Failure: where an event cannot be had the work is waited for. Cost: 5 to 10 us for each other context;
// nothing for the other ways.
#pragma once

#include "preload/copies/reach.h"

namespace nofrag::preload {

class Fence {
 public:
  explicit Fence(const Route& route);
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  ~Fence();

 private:
  const Route route_;
  bool inside_ = false;
};

}  // namespace nofrag::preload
