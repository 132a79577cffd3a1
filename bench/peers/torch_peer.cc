// PyTorch's own allocator, as its C++ code calls it. Native or expandable segments: PyTorch decides by
// PYTORCH_CUDA_ALLOC_CONF when the library is loaded, so whoever starts the program sets that, and here
// the segments are looked at to make sure.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include "peers/peer.h"

namespace nofrag::bench {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

class Torch final : public Peer {
 public:
  explicit Torch(bool expandable) {
    caching::init(1);
    void* const block = allocate(1 << 20, nullptr);
    const auto snapshot = caching::get()->snapshot();
    if (block == nullptr || snapshot.segments.empty()) {
      stop("PyTorch's allocator does not work");
    }
    if (snapshot.segments.front().is_expandable != expandable) {
      stop("PyTorch did not take the configuration in PYTORCH_CUDA_ALLOC_CONF");
    }
    free(block, 1 << 20, nullptr);
    settings_ =
        "backend " + caching::get()->name() + (expandable ? ", expandable segments" : ", defaults");
  }
  void* allocate(std::size_t size, void* stream) override {
    try {
      return caching::raw_alloc_with_stream(size, static_cast<cudaStream_t>(stream));
    } catch (const c10::Error& error) {
      stop(error.what_without_backtrace());
    }
  }
  void free(void* block, std::size_t /*size*/, void* /*stream*/) override {
    caching::raw_delete(block);
  }
  [[nodiscard]] std::string settings() const override { return settings_; }

 private:
  std::string settings_;
};

}  // namespace

std::vector<PeerKind> peer_kinds() {
  return {{"torch-native", [] { return std::unique_ptr<Peer>(new Torch(false)); }},
          {"torch-expandable", [] { return std::unique_ptr<Peer>(new Torch(true)); }}};
}

}  // namespace nofrag::bench
