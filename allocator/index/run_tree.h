// RunTree: free runs in address order; finds the first one that is long enough.
//
// Owns: its nodes, which come from a pool that the user passes to every change; not the runs.
// Layer: index (base only).
// Units: bytes.
// A B+-tree whose inner entries carry the longest run below them, so that "the lowest address of at
// least S bytes" is one descent. Addresses and sizes are kept in the tree: no search reads a run but
// the one that it returns. Inner nodes are in order; a leaf is a bag of at most kFan runs, so that most
// changes are one write. A single run needs no node.
// Invariants: inner keys ascend; an inner entry's key is a lower bound of its child's keys and its size
// the greatest below it; no node is empty (check()).
// Threads: none; the owner's lock. Failure: aborts without host memory for a node.
// Cost: O(log n), and that is the worst case; a level is one round of cache misses.
// Decision: docs/decisions/0004-free-index.md
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/object_pool.h"
#include "base/units.h"

namespace nofrag {

struct FreeNode {
  VirtAddr address;
  Bytes size;
};

class RunTree {
 public:
  // Six cache lines a node.
  static constexpr std::uint32_t kFan = 15;

  struct Node;
  union Slot {
    Node* child;
    FreeNode* run;
  };
  struct Entry {
    std::uint64_t key = 0;  // address
    Bytes size;
    Slot slot{nullptr};
  };
  struct alignas(64) Node {
    std::uint32_t count = 0;
    // In a union, so that a node that is made touches one line and not all six. NOLINTNEXTLINE(modernize-use-equals-default)
    Node() {}
    union {
      Entry entries[kFan];  // `count` of them
    };
  };
  using Pool = ObjectPool<Node, (std::size_t{64} << 10)>;

  // Most trees of a free index have one run or none.
  // pre: `run` is not in the tree.
  void insert(FreeNode* run, Pool& pool) {
    if (empty()) {
      top_.run = run;
    } else {
      put_in(run, *run, pool);
    }
  }
  // pre: `run` is in the tree, its address and size unchanged since.
  void erase(const FreeNode* run, Pool& pool) {
    if (height_ == 0 && top_.run == run) {
      top_.run = nullptr;
    } else {
      take_out(*run, pool);
    }
  }
  // The run will be where `to` says: the caller gives it that address and size afterwards.
  // pre: as erase(); between its old address and the new one lies no other run.
  void change(FreeNode* run, const FreeNode& to, Pool& pool) {
    if (height_ != 0 || top_.run != run) {
      move(run, to, pool);
    }
  }

  [[nodiscard]] bool empty() const { return top_.run == nullptr; }
  // Of the runs of at least `size` the one with the lowest address, or nullptr.
  [[nodiscard, gnu::hot]] FreeNode* first_fit(Bytes size) const;
  // The size of the longest run; 0 = the tree is empty.
  [[nodiscard]] Bytes longest() const;

  // visit(run), leaf by leaf in address order, until it says false; true if it never did.
  template <typename Visitor>
  bool all_of(Visitor&& visit) const {
    return empty() || all_below(top_, height_, visit);
  }
  // Aborts on a broken invariant.
  void check() const;

 private:
  // Nodes are more than a quarter full on average, so this is out of reach.
  static constexpr std::uint32_t kMaxHeight = 20;
  // The way from the top (height_ - 1) down to a leaf (0): which slot of which node.
  struct Path {
    Node* nodes[kMaxHeight];
    std::uint32_t slots[kMaxHeight];
  };

  template <typename Visitor>
  static bool all_below(Slot slot, std::uint32_t levels, Visitor&& visit) {
    if (levels == 0) {
      return visit(slot.run);
    }
    for (std::uint32_t i = 0; i < slot.child->count; ++i) {
      if (!all_below(slot.child->entries[i].slot, levels - 1, visit)) {
        return false;
      }
    }
    return true;
  }
  static void check_node(const Node& node,
                         std::uint32_t level,
                         std::uint64_t from,
                         std::uint64_t to);

  void add_level(Pool& pool);
  [[gnu::hot]] std::uint32_t descend(const FreeNode& run, Path* path, std::uint64_t* limit) const;
  [[gnu::hot]] void put_in(FreeNode* run, const FreeNode& at, Pool& pool);
  [[gnu::hot]] void take_out(const FreeNode& run, Pool& pool);
  [[gnu::hot]] void move(FreeNode* run, const FreeNode& to, Pool& pool);
  [[gnu::hot]] void mend(const Path& path, Bytes erased, Pool& pool);
  [[gnu::hot]] static void mend_longest(const Path& path,
                                        std::uint32_t height,
                                        Bytes before,
                                        Bytes now);
  void drop_levels(Pool& pool);

  Slot top_{nullptr};
  std::uint32_t height_ = 0;  // levels of nodes; 0 = top_ is the only run, or null
};

}  // namespace nofrag
