// Allocating and freeing: from PyTorch's call to nofrag's and back.
#include "torch_plugin/native/native_allocator.h"

#include <pthread.h>

#include <algorithm>
#include <bit>

#include <c10/core/impl/GPUTrace.h>
#include <c10/util/env.h>

#include "torch_plugin/native/abi/abi.h"
#include "torch_plugin/native/platform.h"
#include "torch_plugin/native/stream_name.h"

namespace nofrag::native {
namespace {

constexpr std::size_t kUnit = 512;
constexpr std::size_t kLargestSmall = std::size_t{1} << 20;
constexpr std::size_t kTooLarge = std::size_t{1} << 60;
constexpr std::size_t kWholeSegment = std::size_t{2} << 20;

std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// As PyTorch rounds: to 512 bytes or, if the settings ask for it, to a step between powers of two.
std::size_t rounded_size(std::size_t size) {
  const std::size_t whole = round_up(size, kUnit);
  const std::size_t divisions = rounding_divisions(size);
  if (divisions <= 1 || size <= kUnit * divisions || std::has_single_bit(size)) {
    return whole;
  }
  const std::size_t step = std::bit_floor(size) / std::bit_floor(divisions);
  return step < kUnit ? whole : round_up(size, step);
}

void free_block(void* block) {
  NativeAllocator::instance().free(block);
}

c10::Device device_of(int ordinal) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace

Core& core() {
  return NativeAllocator::instance();
}

void throw_last_error() {
  const char* reason = nullptr;
  nofrag_last_error(&reason);
  TORCH_CHECK(false, "nofrag: ", reason);
}

void check(nofrag_status status) {
  if (status != NOFRAG_OK) {
    throw_last_error();
  }
}

NativeAllocator& NativeAllocator::instance() {
  static NativeAllocator* const allocator = new NativeAllocator;
  return *allocator;
}

NativeAllocator::NativeAllocator() {
  const auto uncached = c10::utils::get_env("PYTORCH_NO_CUDA_MEMORY_CACHING");
  uncached_by_environment_ = uncached.has_value();
  // Tensors go to other processes by default. If nofrag is in use already, sharing says what is missing.
  nofrag_prefer_exportable();
  check(nofrag_set_memory_listener(&NativeAllocator::on_memory_event, this));
  check(nofrag_add_pressure_callback(&NativeAllocator::run_free_memory_callbacks, this));
  ::pthread_atfork(nullptr, nullptr, &NativeAllocator::on_fork);
}

// A child of a process that has not used the GPU may use it: there is nothing of the parent's in it.
void NativeAllocator::on_fork() {
  NativeAllocator& self = instance();
  const bool used = std::any_of(self.devices_.begin(), self.devices_.end(), [](const auto& slot) {
    return slot.load(std::memory_order_relaxed) != nullptr;
  });
  if (used) {
    self.forked_.store(true, std::memory_order_relaxed);
  }
}

void NativeAllocator::set_previous(CUDAAllocator* previous) {
  previous_.store(previous, std::memory_order_release);
}

void NativeAllocator::start(int device_count) {
  TORCH_CHECK(device_count >= 0 && device_count <= kMostDevices,
              "nofrag serves up to ",
              kMostDevices,
              " devices, and PyTorch sees ",
              device_count);
  if (CUDAAllocator* before = previous()) {
    before->init(device_count);  // it may be asked for what it gave out, and for uncached memory
  }
  const double fraction = initial_fraction();
  for (int ordinal = 0; ordinal < device_count; ++ordinal) {
    make_state(ordinal);
    if (fraction < 1.0) {
      set_fraction(fraction, ordinal);
    }
  }
  if (device_count > device_count_.load(std::memory_order_acquire)) {
    device_count_.store(device_count, std::memory_order_release);
  }
}

DeviceState& NativeAllocator::make_state(int ordinal) {
  const std::lock_guard lock(mutex_);
  auto& slot = devices_[static_cast<std::size_t>(ordinal)];
  if (slot.load(std::memory_order_acquire) == nullptr) {
    auto* state = new DeviceState(ordinal, history_);  // for good
    state->set_history(settings_);
    slot.store(state, std::memory_order_release);
  }
  return *slot.load(std::memory_order_acquire);
}

DeviceState& NativeAllocator::device(int ordinal) {
  TORCH_CHECK(ordinal >= 0 && ordinal < kMostDevices, "Invalid device argument ", ordinal);
  if (DeviceState* used = used_device(ordinal)) [[likely]] {
    return *used;
  }
  return make_state(ordinal);
}

DeviceState* NativeAllocator::owner_of(const void* address) const {
  for (const auto& slot : devices_) {
    DeviceState* state = slot.load(std::memory_order_acquire);
    if (state != nullptr && state->holds(address)) {
      return state;
    }
  }
  return nullptr;
}

// nofrag tells of devices that PyTorch has not asked for yet, too: others use its C interface.
void NativeAllocator::on_memory_event(const nofrag_memory_event* event, void* user) {
  auto* self = static_cast<NativeAllocator*>(user);
  if (event->kind == NOFRAG_MEMORY_RELEASED) {
    self->sharing_.forget(event->allocation);
  }
  DeviceState* const state = self->used_device(event->device);
  (state != nullptr ? *state : self->make_state(event->device)).on_memory_event(*event);
}

bool NativeAllocator::caching() const {
  return caching_.load(std::memory_order_relaxed);
}

// Without caching every tensor is an allocation of the driver's: what the allocator before does.
void NativeAllocator::set_caching(bool wanted) {
  caching_.store(wanted, std::memory_order_relaxed);
  if (CUDAAllocator* before = previous()) {
    before->enable(wanted);
  }
}

c10::DeleterFnPtr NativeAllocator::deleter() const {
  if ((uncached_by_environment_ || !caching()) && previous() != nullptr) {
    return previous()->raw_deleter();
  }
  return &free_block;
}

c10::DataPtr NativeAllocator::allocate_data(std::size_t size) {
  if ((uncached_by_environment_ || !caching()) && previous() != nullptr) {
    return previous()->allocate(size);
  }
  const int ordinal = platform::current_device();
  void* const block =
      size == 0 ? nullptr : allocate_block(ordinal, size, platform::current_stream(ordinal));
  return {block, block, &free_block, device_of(ordinal)};
}

void* NativeAllocator::allocate(std::size_t size) {
  if (size == 0) {
    return nullptr;
  }
  const int ordinal = platform::current_device();
  return allocate_block(ordinal, size, platform::current_stream(ordinal));
}

void* NativeAllocator::allocate_on(std::size_t size, cudaStream_t stream) {
  return size == 0 ? nullptr : allocate_block(platform::current_device(), size, stream);
}

void* NativeAllocator::allocate_block(int ordinal, std::size_t size, cudaStream_t stream) {
  TORCH_CHECK_WITH(OutOfMemoryError,
                   size < kTooLarge,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const Call call(*this);
  DeviceState& state = device(ordinal);
  Block block;
  block.size = rounded_size(size);
  block.requested = size;
  block.served = block.size == round_up(size, kUnit) ? size : block.size;
  block.stream = stream;
  block.context = history_.gather(RecordContext::STATE);
  const Destination where = pools_.route(ordinal, stream);
  block.pool = where.pool;
  {
    const ContextOfCall context(block.context);
    block.address = serve(state, block, where);
  }
  if (block.address == nullptr) [[unlikely]] {
    fail(state, block, block.context);
  }
  block.small = block.size <= kLargestSmall;
  void* const address = block.address;
  const auto counted = static_cast<std::int64_t>(block.size);
  const Totals totals = state.note_allocated(std::move(block));
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(address));
  }
  report(address, counted, totals, ordinal);
  return address;
}

void* NativeAllocator::serve(DeviceState& state, Block& block, const Destination& where) {
  const int ordinal = state.ordinal();
  const nofrag_pool pool{where.pool.first, where.pool.second};
  if (where.custom != nullptr) {
    std::size_t given = 0;
    void* const address = where.custom->allocate(block.size, block.stream, &given);
    block.size = address != nullptr ? given : block.size;
    block.custom = where.custom;
    return address;
  }
  if (where.no_split) {
    // Physical memory of its own, from its first byte to its last.
    block.size = block.served = round_up(block.size, kWholeSegment);
    return where.is_default()
               ? nofrag_malloc_single(block.served, ordinal, block.stream)
               : nofrag_pool_malloc_single(block.served, ordinal, block.stream, pool);
  }
  if (!where.is_default()) {
    return nofrag_pool_malloc(block.served, ordinal, block.stream, pool);
  }
  void* address = nofrag_malloc(block.served, ordinal, block.stream);
  if (!state.lending.load(std::memory_order_relaxed)) [[likely]] {
    return address;
  }
  if (address == nullptr) {
    return serve_from_lenders(state, block);
  }
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  check(nofrag_find(address, &info));
  block.pool = {info.pool_first,
                info.pool_second};  // another one than asked for, if memory was short
  return address;
}

void* NativeAllocator::serve_from_lenders(DeviceState& state, Block& block) {
  for (const Destination& lender : pools_.lenders(state.ordinal())) {
    std::size_t given = 0;
    if (void* address = lender.custom->reuse(block.size, block.stream, &given)) {
      block.size = given;
      block.pool = lender.pool;
      block.custom = lender.custom;
      return address;
    }
  }
  return nullptr;
}

void NativeAllocator::free(void* block) {
  if (block == nullptr || forked_.load(std::memory_order_relaxed)) {
    return;
  }
  const Call call(*this);
  const Context context = history_.gather(RecordContext::ALL);
  for (const auto& slot : devices_) {
    DeviceState* state = slot.load(std::memory_order_acquire);
    if (state != nullptr && release(*state, block, context)) {
      return;
    }
  }
  CUDAAllocator* before = previous();
  TORCH_CHECK(before != nullptr && before->initialized(), "invalid device pointer: ", block);
  before->raw_delete(block);
}

bool NativeAllocator::release(DeviceState& state, void* address, const Context& context) {
  DeviceState::Freed freed;
  if (!state.note_freed(address, context, &freed)) {
    return false;
  }
  const Block& block = freed.block;
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(address));
  }
  report(address, -static_cast<std::int64_t>(block.size), freed.totals, state.ordinal());
  if (block.custom != nullptr) {
    if (block.custom->free(block) && block.shared_streams) {
      state.settle_free(block);
    }
    return true;
  }
  const ContextOfCall in_call(context);
  const nofrag_status status = nofrag_free(address);
  TORCH_CHECK(status == NOFRAG_OK || status == NOFRAG_FORKED,
              "nofrag lost track of the block at ",
              address,
              ": ",
              nofrag_status_name(status));
  if (block.shared_streams) {
    state.settle_free(block);
  }
  return true;
}

void NativeAllocator::report(void* address,
                             std::int64_t change,
                             const Totals& totals,
                             int ordinal) const {
  c10::reportMemoryUsageToProfiler(
      address, change, totals.allocated, totals.reserved, device_of(ordinal));
}

void NativeAllocator::record_stream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  void* const address = data.get();
  if (address == nullptr) {
    return;
  }
  // Memory that others own (a tensor of another process, of another library) is theirs to look after.
  if (data.get_deleter() != &free_block) {
    CUDAAllocator* before = previous();
    if (before != nullptr && data.get_deleter() == before->raw_deleter()) {
      before->recordStream(data, stream);
    }
    return;
  }
  const cudaStream_t user = platform::handle_of(stream);
  DeviceState* state = owner_of(address);
  TORCH_CHECK(state != nullptr, "No allocated block can be found at ", address);
  std::shared_ptr<CustomPool> custom;
  // One handle, one stream, but for the per-thread default stream's: the block may be another thread's.
  bool foreign = is_per_thread(user);
  state->with_block(address, [&](Block& block) {
    foreign = foreign || user != block.stream;
    block.shared_streams = block.shared_streams || foreign;
    custom = block.custom;
  });
  if (!foreign) {
    return;
  }
  if (custom != nullptr) {
    custom->record_stream(address, user);
  } else {
    check(nofrag_record_stream(address, user));
  }
}

void NativeAllocator::copy(void* to, const void* from, std::size_t size) const {
  platform::copy(to, from, size);
}

}  // namespace nofrag::native
