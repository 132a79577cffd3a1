#include "preload/copies/fence.h"

#include "preload/captures.h"

namespace nofrag::preload {
namespace {

// What the default stream of `first` has been given comes before what that of `then` is given from now on.
void order(CUcontext first, CUcontext then) {
  bool good = false;
  CUcontext popped = nullptr;
  CUevent event = nullptr;
  if (real().context_push(first) == CUDA_SUCCESS) {
    good = real().event_create(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
           real().event_record(event, CU_STREAM_LEGACY) == CUDA_SUCCESS;
    real().context_pop(&popped);
  }
  if (good && real().context_push(then) == CUDA_SUCCESS) {
    good = real().stream_wait_event(CU_STREAM_LEGACY, event, 0) == CUDA_SUCCESS;
    real().context_pop(&popped);
  }
  if (event != nullptr) {
    real().event_destroy(event);  // once it has happened
  }
  // A capture does not survive the wait.
  if (!good && !any_capture() && real().context_push(first) == CUDA_SUCCESS) {
    static_cast<void>(real().context_synchronize());
    real().context_pop(&popped);
  }
}

}  // namespace

Fence::Fence(const Route& route) : route_(route) {
  if (route_.way == Route::Way::kInside) {
    order(route_.current, route_.others[0]);
    inside_ = real().context_push(route_.others[0]) == CUDA_SUCCESS;
  } else if (route_.way == Route::Way::kFenced) {
    for (const CUcontext other : route_.others) {
      if (other != nullptr) {
        order(other, route_.current);
      }
    }
  }
}

Fence::~Fence() {
  if (inside_) {
    CUcontext popped = nullptr;
    real().context_pop(&popped);
    order(route_.others[0], route_.current);
  } else if (route_.way == Route::Way::kFenced) {
    for (const CUcontext other : route_.others) {
      if (other != nullptr) {
        order(route_.current, other);
      }
    }
  }
}

}  // namespace nofrag::preload
