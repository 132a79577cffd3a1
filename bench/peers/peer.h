// Peer: one allocator as the benchmark sees it, and the device it runs on.
//
// Each family of allocators (nofrag, PyTorch, CUDA, CUB, RMM) has a file that implements Peer and
// peer_kinds(); the program is built once a family, so that a family whose headers or libraries are
// missing costs nobody else anything, and each runs with its own CUDA runtime only.
// Threads: allocate and free from any, at once. Failure: allocate returns null; what else goes wrong
// ends the program (stop). A virtual call is part of every figure; the peer "none" shows how much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nofrag::bench {

class Peer {
 public:
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;

  // `stream` is a cudaStream_t.
  virtual void* allocate(std::size_t size, void* stream) = 0;
  // `size` and `stream` are those of the allocation, whatever thread frees.
  virtual void free(void* block, std::size_t size, void* stream) = 0;
  // A few words on how it was set up, for the results.
  [[nodiscard]] virtual std::string settings() const { return {}; }
};

struct PeerKind {
  const char* name;
  std::unique_ptr<Peer> (*make)();
};

// Those of the family that this program was built with.
std::vector<PeerKind> peer_kinds();

// ---- The device. One that is real, or none at all: then streams are only numbers (no_device.cc).

// Opens it; false, with a reason, if there is none.
bool open_device(std::string* why);
// For the calling thread.
void use_device();
std::vector<void*> make_streams(std::size_t count);
// What all processes hold of it.
std::uint64_t device_bytes_in_use();

[[noreturn]] void stop(const std::string& why);

}  // namespace nofrag::bench
