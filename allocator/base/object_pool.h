// ObjectPool<T>: fixed-size host metadata nodes, recycled in last-in first-out order.
//
// Owns: slabs of raw memory taken from mmap, never from malloc: the allocator's own bookkeeping
// must neither disturb nor depend on the host process's heap (under LD_PRELOAD that heap is not
// ours).
// Layer: base.
// Units: slabs of kSlabBytes, once there are many of a huge page; a fresh slab's pages are touched only as far as
// nodes are made.
// Invariants: live() == objects made and not destroyed.
// Threads: none; the owner's lock covers it.
// Failure: make() returns nullptr when mmap does.
// Cost: O(1), no syscall but one mmap a slab.
// Decision: docs/decisions/0003-host-metadata.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "base/checks.h"
#include "base/prefetch.h"

namespace nofrag {

// Anonymous zeroed pages; nullptr on failure. `bytes` is rounded up to the page size by the kernel.
void* map_host_pages(std::size_t bytes);
// The same for what is read all over: aligned to kHugePage, and of huge pages as far as whole ones fit and there
// are any (one entry for 2 MiB in the processor's table of addresses instead of 512).
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
void* map_huge_host_pages(std::size_t bytes);
void unmap_host_pages(void* address, std::size_t bytes);
// Gives the memory back but for the first page; the addresses stay, and read as zeros.
void discard_host_pages(void* address, std::size_t bytes);
// Bytes that are mapped so at the moment, in the whole process: what the allocator's bookkeeping costs
// (an upper bound, for pages that were never touched are not backed).
std::size_t host_page_bytes();

template <typename T, std::size_t kSlabBytes = (std::size_t{256} << 10)>
class ObjectPool {
 public:
  ObjectPool() = default;
  ObjectPool(const ObjectPool&) = delete;
  ObjectPool& operator=(const ObjectPool&) = delete;
  ~ObjectPool() {
    while (slabs_ != nullptr) {
      Slab* next = slabs_->next;
      unmap_host_pages(slabs_, slabs_->bytes);
      slabs_ = next;
    }
  }

  template <typename... Args>
  T* make(Args&&... args) {
    void* memory = free_;
    if (free_ != nullptr) {
      free_ = free_->next_free;
      prefetch_to_write(free_);  // the next one made
    } else if (fresh_left_ > 0 || grow()) {
      memory = fresh_;
      fresh_ += sizeof(Node);
      --fresh_left_;
    } else {
      return nullptr;
    }
    ++live_;
    return new (memory) T(std::forward<Args>(args)...);
  }

  void destroy(T* object) {
    object->~T();
#if NOFRAG_CHECK_LEVEL >= 1
    // Whoever still reads it is found out.
    std::memset(static_cast<void*>(object), 0xdd, sizeof(T));
#endif
    Node* node = new (static_cast<void*>(object)) Node;
    node->next_free = free_;
    free_ = node;
    NOFRAG_CHECK(live_ > 0, "object pool destroy without make");
    --live_;
  }

  [[nodiscard]] std::size_t live() const {
    return live_;
  }

 private:
  union Node {
    Node* next_free;
    alignas(T) std::byte storage[sizeof(T)];
  };
  struct Slab {
    Slab* next;
    std::size_t bytes;
  };
  static constexpr std::size_t kSmallSlabs = kHugePage / kSlabBytes;
  static constexpr std::size_t kFirst = (sizeof(Slab) + alignof(Node) - 1) / alignof(Node);

  bool grow() {
    const bool small = slab_count_ < kSmallSlabs;
    const std::size_t bytes = small ? kSlabBytes : kHugePage;
    void* memory = small ? map_host_pages(bytes) : map_huge_host_pages(bytes);
    if (memory == nullptr) {
      return false;
    }
    ++slab_count_;
    slabs_ = new (memory) Slab{slabs_, bytes};
    fresh_ = static_cast<std::byte*>(memory) + kFirst * alignof(Node);
    fresh_left_ = (bytes - kFirst * alignof(Node)) / sizeof(Node);
    return true;
  }

  Slab* slabs_ = nullptr;
  std::size_t slab_count_ = 0;
  Node* free_ = nullptr;        // destroyed ones
  std::byte* fresh_ = nullptr;  // the newest slab's part that was never used, front to back
  std::size_t fresh_left_ = 0;  // in nodes
  std::size_t live_ = 0;
};

}  // namespace nofrag
