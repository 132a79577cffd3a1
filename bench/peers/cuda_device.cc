// The real device: number 0, through the CUDA runtime.
#include <cuda_runtime_api.h>

#include "peers/peer.h"

namespace nofrag::bench {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    stop(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

}  // namespace

bool open_device(std::string* why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    *why = status != cudaSuccess ? cudaGetErrorString(status) : "no CUDA device";
    return false;
  }
  use_device();
  check(cudaFree(nullptr), "cudaFree");  // the context is there from here on
  return true;
}

void use_device() {
  check(cudaSetDevice(0), "cudaSetDevice");
}

std::vector<void*> make_streams(std::size_t count) {
  std::vector<void*> streams;
  while (streams.size() < count) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams.push_back(stream);
  }
  return streams;
}

std::uint64_t device_bytes_in_use() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

}  // namespace nofrag::bench
