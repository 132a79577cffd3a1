// nofrag, through the C interface and through the hooks that PyTorch calls.
#include <nofrag/nofrag.h>

#include "peers/peer.h"

// torch_plugin/hooks.h
extern "C" void* nofrag_torch_alloc(std::size_t size, int device, void* stream);
extern "C" void nofrag_torch_free(void* block, std::size_t size, int device, void* stream) noexcept;

namespace nofrag::bench {
namespace {

class CApi final : public Peer {
 public:
  void* allocate(std::size_t size, void* stream) override { return nofrag_malloc(size, 0, stream); }
  void free(void* block, std::size_t /*size*/, void* /*stream*/) override {
    if (nofrag_free(block) != NOFRAG_OK) {
      stop("nofrag_free failed");
    }
  }
  [[nodiscard]] std::string settings() const override {
    return std::string("nofrag ") + nofrag_version();
  }
};

class TorchHooks final : public Peer {
 public:
  void* allocate(std::size_t size, void* stream) override {
    return nofrag_torch_alloc(size, 0, stream);
  }
  void free(void* block, std::size_t size, void* stream) override {
    nofrag_torch_free(block, size, 0, stream);
  }
  [[nodiscard]] std::string settings() const override {
    return std::string("nofrag ") + nofrag_version() + ", hooks of CUDAPluggableAllocator";
  }
};

// Allocates nothing: what the benchmark itself costs.
class None final : public Peer {
 public:
  void* allocate(std::size_t /*size*/, void* stream) override { return stream; }
  void free(void* /*block*/, std::size_t /*size*/, void* /*stream*/) override {}
  [[nodiscard]] std::string settings() const override { return "the benchmark's own cost"; }
};

template <typename P>
std::unique_ptr<Peer> make() {
  return std::make_unique<P>();
}

}  // namespace

std::vector<PeerKind> peer_kinds() {
  return {{"nofrag", make<CApi>}, {"nofrag-torch-hooks", make<TorchHooks>}, {"none", make<None>}};
}

}  // namespace nofrag::bench
