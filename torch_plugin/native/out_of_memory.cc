// The end of the ladder: what PyTorch's own callbacks can free, and the error if that is not enough.
#include <string>

#include <c10/util/Exception.h>

#include "torch_plugin/native/abi/abi.h"
#include "torch_plugin/native/native_allocator.h"

namespace nofrag::native {
namespace {

using c10::CachingDeviceAllocator::format_size;

std::size_t allocated_in_pools(DeviceState& state) {
  std::size_t sum = 0;
  state.for_each_live([&sum](const Block& block) {
    sum += block.pool != PoolId{0, 0} ? block.size : 0;
  });
  return sum;
}

// It begins as PyTorch's own message does, which tools take apart, and ends with nofrag's report.
std::string failure_message(DeviceState& state,
                            const Block& block,
                            const nofrag_oom_report& report) {
  const DeviceStats stats = state.stats();
  const auto allocated = static_cast<std::size_t>(stats.allocated_bytes[0].current);
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes[0].current);
  const std::size_t in_pools = allocated_in_pools(state);
  std::string text = "CUDA out of memory. Tried to allocate " + format_size(block.size) + ". GPU " +
                     std::to_string(state.ordinal()) + " has a total capacity of " +
                     format_size(report.driver_total_bytes) + " of which " +
                     format_size(report.driver_free_bytes) + " is free. ";
  if (report.limit_bytes != UINT64_MAX) {
    text += format_size(report.limit_bytes) + " allowed; ";
  }
  text += "Of the allocated memory " + format_size(allocated) + " is allocated by PyTorch, ";
  if (in_pools > 0) {
    text += "with " + format_size(in_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text += "and " + format_size(reserved - std::min(reserved, allocated)) +
          " is reserved by PyTorch but unallocated.";
  return text;
}

}  // namespace

// The last thing before an allocation fails: PyTorch's own holders of memory (tensors that other processes
// have let go of) are asked to free what they can. Without a lock: what they free may wait for others, who may be
// asking too. So they may run in several threads at once, where PyTorch's lock has one at a time.
int NativeAllocator::run_free_memory_callbacks(int /*device*/,
                                               std::uint64_t /*needed*/,
                                               void* /*user*/) {
  bool freed = false;
  try {
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed = c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute() || freed;
    }
  } catch (const std::exception& problem) {
    // The allocation fails with its own reason if nothing was freed.
    TORCH_WARN("a FreeMemoryCallback failed: ", problem.what());
  }
  return freed ? 1 : 0;
}

void NativeAllocator::fail(DeviceState& state, const Block& block, Context context) {
  const char* reason = nullptr;
  const nofrag_status status = nofrag_last_error(&reason);
  const std::string said = reason;
  const bool custom = block.custom != nullptr;
  if (!custom && status != NOFRAG_OUT_OF_MEMORY && status != NOFRAG_LIMIT) {
    TORCH_CHECK(false, "nofrag: ", said);
  }
  nofrag_oom_report report{};
  report.struct_size = sizeof report;
  check(nofrag_get_oom_report(state.ordinal(), &report));
  std::string text = failure_message(state, block, report);
  text += custom ? "\nThe allocator of the pool gave no memory." : "\nnofrag: " + said;
  state.note_oom(block.requested, block.stream, report.driver_free_bytes, std::move(context));
  const DeviceStats stats = state.stats();
  c10::reportOutOfMemoryToProfiler(
      static_cast<std::int64_t>(block.requested),
      static_cast<std::size_t>(stats.allocated_bytes[0].current),
      static_cast<std::size_t>(stats.reserved_bytes[0].current),
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(state.ordinal())));
  const std::size_t limit = report.limit_bytes != UINT64_MAX
                                ? static_cast<std::size_t>(report.limit_bytes)
                                : static_cast<std::size_t>(report.driver_total_bytes);
  history_.tell_observers(state.ordinal(), block.size, limit, report.driver_free_bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

}  // namespace nofrag::native
