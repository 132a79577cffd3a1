// Sharing: tensors of this process for others, and of others for this one.
//
// A block lies in one or more physical allocations of nofrag's. Its handle names them; who opens it asks the
// process that made it for a file descriptor of each (descriptor_server.h), and maps them one after the other.
// Descriptors are made at the first sharing of an allocation and closed when nofrag gives it back. Names are
// never used twice, so that what a receiver keeps open can be recognised by the handle alone.
// Owns: the descriptors, the server, weak references to what is open.
// Units: bytes. Invariants: a handle is only made of a live block; the sender keeps the block alive while
// others use it (PyTorch's reference counts do).
// What is let go is unmapped at once, or, where that cannot be now (a capture must not be waited into), when
// something is opened, let go or emptied next.
// Threads: any. forget() may be called under nofrag's lock. Failure: c10::Error; letting go throws nothing.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_plugin/native/abi/types.h"
#include "torch_plugin/native/sharing/descriptor_server.h"

namespace nofrag::native {

class Sharing {
 public:
  // False if nofrag has no live block there.
  bool share(void* address, torch_cuda::ShareableHandle* shared);
  // Is it a handle that share() made, in whatever process?
  [[nodiscard]] static bool is_ours(const std::string& handle);
  std::shared_ptr<void> open(int device, const std::string& handle);
  // The allocation went back to the driver.
  void forget(std::uint64_t allocation);
  // Unmaps what could not be unmapped when it was let go.
  void close_what_waits() noexcept;

 private:
  struct Exported {
    std::uint64_t name = 0;
    std::size_t size = 0;
  };

  struct Mapped {
    int device;
    void* address;
  };

  Exported export_once(void* address, std::uint64_t allocation, std::size_t size);
  void let_go(std::list<Mapped>& mapped) noexcept;

  std::mutex exports_mutex_;
  std::unordered_map<std::uint64_t, Exported> exports_;  // Sync: exports_mutex_
  DescriptorServer* server_ = nullptr;                   // for good;  Sync: exports_mutex_
  std::mutex open_mutex_;
  std::map<std::pair<int, std::string>, std::weak_ptr<void>> open_;  // Sync: open_mutex_
  std::mutex closing_mutex_;   // held for no call of nofrag, and may be taken under open_mutex_
  std::list<Mapped> closing_;  // Sync: closing_mutex_
};

}  // namespace nofrag::native
