// platform: the few calls to the CUDA runtime that the native allocator makes itself. The library has
// platform_cuda.cc; tests without a GPU bring their own.
//
// Owns: nothing. Threads: any. Failure: those of PyTorch's own calls (c10::Error).
// Invariants: streams and devices are PyTorch's: the current ones are the calling thread's.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <utility>

namespace nofrag::native::platform {

int current_device();
cudaStream_t current_stream(int device);
cudaStream_t handle_of(c10::cuda::CUDAStream stream);
// Free and total bytes of the device, by the driver.
std::pair<std::size_t, std::size_t> memory_info(int device);

void copy(void* to, const void* from, std::size_t size);
cudaError_t copy_async(void* to, const void* from, std::size_t size, cudaStream_t stream);
cudaError_t copy_peer_async(void* to,
                            int to_device,
                            const void* from,
                            int from_device,
                            std::size_t size,
                            cudaStream_t stream);
// Kernels of `device` may use memory of `accessed` that is not mapped by hand.
void enable_peer(int device, int accessed);

// A mark in a stream's work, for the blocks of pools whose memory is not nofrag's.
using Event = cudaEvent_t;
Event record(int device, cudaStream_t stream);
// True if the work before it is done; then it is gone.
bool finished(Event event);
void wait(Event event);

}  // namespace nofrag::native::platform
