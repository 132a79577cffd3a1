// Recording: torch.cuda.memory._record_memory_history and what belongs to it.
#include <c10/util/Exception.h>

#include "torch_plugin/native/abi/abi.h"
#include "torch_plugin/native/native_allocator.h"
#include "torch_plugin/native/platform.h"

namespace nofrag::native {
namespace {

thread_local int calls_under_way = 0;

}  // namespace

void NativeAllocator::Call::enter() {
  ++calls_under_way;
}

// (A call that began before there was a tracker is not counted.)
void NativeAllocator::Call::leave() const {
  calls_under_way -= counted_ ? 1 : 0;
  if (calls_under_way > 0 || allocator_.forked_.load(std::memory_order_relaxed)) {
    return;
  }
  for (const auto& slot : allocator_.devices_) {
    if (DeviceState* state = slot.load(std::memory_order_acquire)) {
      state->tell_trackers();
    }
  }
}

void NativeAllocator::record_history(const HistorySettings& settings) {
  history_.set(settings);
  const std::lock_guard lock(mutex_);
  settings_ = settings;  // for devices that are used later
  for (const auto& slot : devices_) {
    if (DeviceState* state = slot.load(std::memory_order_acquire)) {
      state->set_history(settings);
    }
  }
}

void NativeAllocator::annotate(const Annotations& metadata) {
  if (history_.recording()) {
    history_.annotate(static_cast<c10::DeviceIndex>(platform::current_device()), metadata);
  }
}

void NativeAllocator::push_compile_context(const std::string& text) {
  History::push_compile_context(text);
}
void NativeAllocator::pop_compile_context() {
  History::pop_compile_context();
}
void NativeAllocator::set_user_metadata(const std::string& text) {
  History::set_user_metadata(text);
}
std::string NativeAllocator::user_metadata() {
  return History::user_metadata();
}

Context NativeAllocator::context_of(const void* address) {
  Context context;
  for (const auto& slot : devices_) {
    DeviceState* state = slot.load(std::memory_order_acquire);
    if (state != nullptr &&
        state->with_block(address, [&](const Block& block) { context = block.context; })) {
      break;
    }
  }
  return context;
}

void NativeAllocator::annotate_block(const void* address, const std::string& text) {
  DeviceState* state = owner_of(address);
  TORCH_CHECK(state != nullptr, "no live allocation starts at ", address);
  const Call call(*this);
  TraceEvent event = annotation_event(state->ordinal(), address);
  state->with_block(address, [&](const Block& block) {
    event.size = block.requested;
    event.stream = block.stream;
    event.pool = block.pool;
  });
  const std::string outer = History::user_metadata();
  History::set_user_metadata(text);
  state->record(std::move(event));
  History::set_user_metadata(outer);
}

void NativeAllocator::add_oom_observer(torch_cuda::OutOfMemoryObserver observer) {
  history_.add_observer(std::move(observer));
}

void NativeAllocator::add_tracker(torch_cuda::AllocatorTraceTracker tracker) {
  history_.add_tracker(std::move(tracker));
}

}  // namespace nofrag::native
