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

namespace {

// The runtime keeps the last failure for whoever asks next, who would take it for his own. (A device that has
// failed for good says so again.)
void forget_failure() noexcept {
  (void)cudaGetLastError();
}

// An event recorded on a captured stream becomes part of the graph, and whoever asks about it ends the capture.
// Of the legacy stream the question fails while any blocking stream is captured, and harms nothing.
bool may_be_captured(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    forget_failure();
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

bool record(int device, cudaStream_t stream, Event* event) noexcept {
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    if (may_be_captured(stream)) {
      return false;
    }
    if (cudaEventCreateWithFlags(event, cudaEventDisableTiming) != cudaSuccess) {
      forget_failure();
      return false;
    }
    if (cudaEventRecord(*event, stream) != cudaSuccess) {
      forget_failure();
      discard(*event);
      return false;
    }
    return true;
  } catch (const std::exception&) {
    return false;  // the device could not be made the current one
  }
}

Progress progress(Event event) noexcept {
  const cudaError_t result = cudaEventQuery(event);
  if (result == cudaSuccess) {
    return Progress::kDone;
  }
  forget_failure();
  return result == cudaErrorNotReady ? Progress::kRunning : Progress::kUnknown;
}

void wait(Event event) noexcept {
  if (cudaEventSynchronize(event) != cudaSuccess) {
    forget_failure();
  }
}

void discard(Event event) noexcept {
  if (cudaEventDestroy(event) != cudaSuccess) {
    forget_failure();
  }
}

}  // namespace nofrag::native::platform
