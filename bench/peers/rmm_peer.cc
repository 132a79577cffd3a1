// RMM's memory resources (26.x: resources are values that share their state).
#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include "peers/peer.h"

namespace nofrag::bench {
namespace {

template <typename Resource>
class Rmm final : public Peer {
 public:
  template <typename... Arguments>
  explicit Rmm(std::string settings, Arguments&&... arguments)
      : resource_(std::forward<Arguments>(arguments)...), settings_(std::move(settings)) {}

  void* allocate(std::size_t size, void* stream) override {
    try {
      return resource_.allocate(cuda::stream_ref(static_cast<cudaStream_t>(stream)),
                                size,
                                rmm::CUDA_ALLOCATION_ALIGNMENT);
    } catch (const std::exception& error) {
      stop(error.what());
    }
  }
  void free(void* block, std::size_t size, void* stream) override {
    resource_.deallocate(cuda::stream_ref(static_cast<cudaStream_t>(stream)),
                         block,
                         size,
                         rmm::CUDA_ALLOCATION_ALIGNMENT);
  }
  [[nodiscard]] std::string settings() const override {
    return "RMM " + std::to_string(RMM_VERSION_MAJOR) + "." + std::to_string(RMM_VERSION_MINOR) +
           ", " + settings_;
  }

 private:
  Resource resource_;
  std::string settings_;
};

// Both begin with half of the free memory: a pool that grows while it is measured takes its streams
// from one another instead.
std::unique_ptr<Peer> make_pool() {
  return std::make_unique<Rmm<rmm::mr::pool_memory_resource>>(
      "half of the free memory from the start",
      rmm::mr::cuda_memory_resource{},
      rmm::percent_of_free_device_memory(50));
}
std::unique_ptr<Peer> make_arena() {
  return std::make_unique<Rmm<rmm::mr::arena_memory_resource>>(
      "half of the free memory from the start",
      rmm::mr::cuda_memory_resource{},
      rmm::percent_of_free_device_memory(50));
}
std::unique_ptr<Peer> make_async() {
  return std::make_unique<Rmm<rmm::mr::cuda_async_memory_resource>>("defaults");
}

}  // namespace

std::vector<PeerKind> peer_kinds() {
  return {{"rmm-pool", make_pool}, {"rmm-arena", make_arena}, {"rmm-cuda-async", make_async}};
}

}  // namespace nofrag::bench
