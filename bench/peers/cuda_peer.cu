// What comes with CUDA: cudaMallocAsync on the device's default pool, and CUB's caching allocator.
#include <cuda_runtime_api.h>

#include <cub/util_allocator.cuh>

#include "peers/peer.h"

namespace nofrag::bench {
namespace {

// The pool keeps what it has: with the default threshold of 0 it gives it back at every
// synchronisation, and there is none here anyway.
class MallocAsync final : public Peer {
 public:
  MallocAsync() {
    cudaMemPool_t pool = nullptr;
    std::uint64_t threshold = UINT64_MAX;
    if (cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess ||
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) != cudaSuccess) {
      stop("the device has no memory pool");
    }
  }
  void* allocate(std::size_t size, void* stream) override {
    void* block = nullptr;
    const cudaError_t status = cudaMallocAsync(&block, size, static_cast<cudaStream_t>(stream));
    return status == cudaSuccess ? block : nullptr;
  }
  void free(void* block, std::size_t /*size*/, void* stream) override {
    if (cudaFreeAsync(block, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
      stop("cudaFreeAsync failed");
    }
  }
  [[nodiscard]] std::string settings() const override {
    return "default pool, release threshold UINT64_MAX";
  }
};

// Its defaults cache 6 MB and nothing above 2 MB; here it may keep everything, in powers of two, so
// that no pattern ends in cudaMalloc.
class Cub final : public Peer {
 public:
  void* allocate(std::size_t size, void* stream) override {
    void* block = nullptr;
    const cudaError_t status =
        cache_.DeviceAllocate(&block, size, static_cast<cudaStream_t>(stream));
    return status == cudaSuccess ? block : nullptr;
  }
  void free(void* block, std::size_t /*size*/, void* /*stream*/) override {
    if (cache_.DeviceFree(block) != cudaSuccess) {
      stop("CachingDeviceAllocator::DeviceFree failed");
    }
  }
  [[nodiscard]] std::string settings() const override {
    return "bins of powers of two, 512 B to 256 MiB; cache without limit";
  }

 private:
  // bin growth, smallest and largest bin (exponents), bytes kept, no clean-up at exit
  cub::CachingDeviceAllocator cache_{2, 9, 28, cub::CachingDeviceAllocator::INVALID_SIZE, true};
};

}  // namespace

std::vector<PeerKind> peer_kinds() {
  return {{"cuda-malloc-async", [] { return std::unique_ptr<Peer>(new MallocAsync); }},
          {"cub-caching", [] { return std::unique_ptr<Peer>(new Cub); }}};
}

}  // namespace nofrag::bench
