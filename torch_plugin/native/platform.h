// platform: the few calls to the CUDA runtime that the native allocator makes itself. The library has
// platform_cuda.cc; tests without a GPU bring their own.
//
// Owns: nothing. Threads: any. Failure: those of PyTorch's own calls (c10::Error), but for events.
// Invariants: streams and devices are PyTorch's: the current ones are the calling thread's.
#pragma once

#include <cstddef>
#include <utility>

#include <c10/cuda/CUDAStream.h>

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

// A mark in a stream's work, for the blocks of pools whose memory is not nofrag's. They are set and asked about
// where tensors are freed, so that none of this throws: a mark that was refused, or that says nothing (a capture
// took it), is set again later.
// pre, of all four: no pool of the device is being filled. (A captured stream is refused by record all the same.)
using Event = cudaEvent_t;
enum class Progress : unsigned char { kRunning, kDone, kUnknown };
bool record(int device, cudaStream_t stream, Event* event) noexcept;
Progress progress(Event event) noexcept;
// Until it is done, if that can be waited for.
void wait(Event event) noexcept;
void discard(Event event) noexcept;

}  // namespace nofrag::native::platform
