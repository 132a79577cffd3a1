#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "torch_plugin/native/platform.h"

namespace nofrag::native::platform {

int current_device() {
  return c10::cuda::current_device();
}

cudaStream_t current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

cudaStream_t handle_of(c10::cuda::CUDAStream stream) {
  return stream.stream();
}

std::pair<std::size_t, std::size_t> memory_info(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {free, total};
}

void copy(void* to, const void* from, std::size_t size) {
  C10_CUDA_CHECK(cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice));
}

cudaError_t copy_async(void* to, const void* from, std::size_t size, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t copy_peer_async(void* to,
                            int to_device,
                            const void* from,
                            int from_device,
                            std::size_t size,
                            cudaStream_t stream) {
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
}

void enable_peer(int device, int accessed) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const cudaError_t result = cudaDeviceEnablePeerAccess(accessed, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // it stays the runtime's last error otherwise
    return;
  }
  C10_CUDA_CHECK(result);
}

Event record(int device, cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  Event event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  C10_CUDA_CHECK(cudaEventRecord(event, stream));
  return event;
}

bool finished(Event event) {
  const cudaError_t result = cudaEventQuery(event);
  if (result == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  C10_CUDA_CHECK(result);
  C10_CUDA_CHECK(cudaEventDestroy(event));
  return true;
}

void wait(Event event) {
  C10_CUDA_CHECK(cudaEventSynchronize(event));
}

}  // namespace nofrag::native::platform
