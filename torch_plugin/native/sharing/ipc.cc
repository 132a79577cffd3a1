// Other processes and other devices: shared tensors, peer access, copies between devices.
#include <c10/util/Exception.h>

#include "torch_plugin/native/native_allocator.h"
#include "torch_plugin/native/platform.h"

namespace nofrag::native {
namespace {

bool is_nofrags(const void* address) {
  nofrag_block_info info{};
  info.struct_size = sizeof info;
  return nofrag_find(address, &info) == NOFRAG_OK;
}

}  // namespace

torch_cuda::ShareableHandle NativeAllocator::share(void* address) {
  torch_cuda::ShareableHandle shared{};
  if (sharing_.share(address, &shared)) {
    return shared;
  }
  TORCH_CHECK(owner_of(address) == nullptr,
              "nofrag: the memory of a pool with an allocator of its own cannot be shared between "
              "processes");
  CUDAAllocator* before = previous();
  TORCH_CHECK(before != nullptr && before->initialized(), "invalid device pointer: ", address);
  return before->shareIpcHandle(address);
}

std::shared_ptr<void> NativeAllocator::open_shared(const std::string& handle) {
  if (Sharing::is_ours(handle)) {
    return sharing_.open(platform::current_device(), handle);
  }
  CUDAAllocator* before = previous();
  TORCH_CHECK(before != nullptr, "nofrag: not a handle of a shared CUDA tensor");
  return before->getIpcDevPtr(handle);
}

// PyTorch asks once a pair of devices. What nofrag maps takes part only where it is told so.
void NativeAllocator::enable_peer(int ordinal, int accessed) {
  platform::enable_peer(ordinal, accessed);
  check(nofrag_grant_access(accessed, ordinal));
}

// Mapped memory without peer access can only be copied by the peer call (docs/driver.md).
cudaError_t NativeAllocator::copy_async(void* to,
                                        int to_device,
                                        const void* from,
                                        int from_device,
                                        std::size_t size,
                                        cudaStream_t stream,
                                        bool peer_enabled) {
  const bool direct = peer_enabled || to_device == from_device;
  if (direct || (!is_nofrags(to) && !is_nofrags(from))) {
    return platform::copy_async(to, from, size, stream);
  }
  return platform::copy_peer_async(to, to_device, from, from_device, size, stream);
}

}  // namespace nofrag::native
