// ObjectPool<T>: fixed-size host metadata nodes, recycled in last-in first-out order.
//
// Owns: slabs of raw memory taken from mmap, never from malloc: the allocator's own bookkeeping
// must neither disturb nor depend on the host process's heap (under LD_PRELOAD that heap is not
// ours).
// Layer: base.
// Units: slabs of 256 KiB.
// Invariants: live() == objects made and not destroyed.
// Threads: none; the owner's lock covers it.
// Failure: make() returns nullptr when mmap does.
// Cost: O(1), no syscall but one mmap a slab.
// Decision: docs/decisions/0003-host-metadata.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/checks.h"

namespace nofrag {

// Anonymous zeroed pages; nullptr on failure. `bytes` is rounded up to the page size by the kernel.
void* map_host_pages(std::size_t bytes);
void unmap_host_pages(void* address, std::size_t bytes);

template <typename T>
class ObjectPool {
 public:
  ObjectPool() = default;
  ObjectPool(const ObjectPool&) = delete;
  ObjectPool& operator=(const ObjectPool&) = delete;
  ~ObjectPool() {
    while (slabs_ != nullptr) {
      Slab* next = slabs_->next;
      unmap_host_pages(slabs_, kSlabBytes);
      slabs_ = next;
    }
  }

  template <typename... Args>
  T* make(Args&&... args) {
    if (free_ == nullptr && !grow()) {
      return nullptr;
    }
    Node* node = free_;
    free_ = node->next_free;
    ++live_;
    return new (node->storage) T(std::forward<Args>(args)...);
  }

  void destroy(T* object) {
    object->~T();
    Node* node = new (static_cast<void*>(object)) Node;
    node->next_free = free_;
    free_ = node;
    NOFRAG_CHECK(live_ > 0, "object pool destroy without make");
    --live_;
  }

  [[nodiscard]] std::size_t live() const { return live_; }

 private:
  union Node {
    Node* next_free;
    alignas(T) std::byte storage[sizeof(T)];
  };
  struct Slab {
    Slab* next;
  };
  static constexpr std::size_t kSlabBytes = std::size_t{256} << 10;
  static constexpr std::size_t kFirst = (sizeof(Slab) + alignof(Node) - 1) / alignof(Node);

  bool grow() {
    void* memory = map_host_pages(kSlabBytes);
    if (memory == nullptr) {
      return false;
    }
    slabs_ = new (memory) Slab{slabs_};
    auto* bytes = static_cast<std::byte*>(memory) + kFirst * alignof(Node);
    const std::size_t count = (kSlabBytes - kFirst * alignof(Node)) / sizeof(Node);
    // Lowest address first, so that a fresh slab is used front to back.
    for (std::size_t i = count; i-- > 0;) {
      Node* node = new (static_cast<void*>(bytes + i * sizeof(Node))) Node;
      node->next_free = free_;
      free_ = node;
    }
    return true;
  }

  Slab* slabs_ = nullptr;
  Node* free_ = nullptr;
  std::size_t live_ = 0;
};

}  // namespace nofrag
