#include "index/run_tree.h"

#include <algorithm>

namespace nofrag {
namespace {

using Node = RunTree::Node;
using Entry = RunTree::Entry;

constexpr std::uint32_t kFan = RunTree::kFan;
constexpr std::uint32_t kSparse = 4;  // below it a node looks for a neighbour to merge with
constexpr const char* kAbsent = "free run is not in the index where its address and size say";
constexpr std::uint32_t kMergedMost = 12;  // room left, so that it does not split again at once

std::uint64_t key_of(const FreeNode& run) {
  return run.address.value();
}

Bytes longest_in(const Node& node) {
  Bytes longest;
  for (std::uint32_t i = 0; i < node.count; ++i) {
    longest = std::max(longest, node.entries[i].size);
  }
  return longest;
}

// The last child whose key is not above; keys below all go to the first child. Looks at every key: one
// guess on where to stop would cost more.
std::uint32_t child_for(const Node& node, std::uint64_t key) {
  std::uint32_t not_above = 0;
  for (std::uint32_t i = 0; i < node.count; ++i) {
    not_above += node.entries[i].key <= key ? 1U : 0U;
  }
  return not_above == 0 ? 0 : not_above - 1;
}

// An inner node's first slot with at least `size`, or node.count.
std::uint32_t first_long(const Node& node, Bytes size) {
  std::uint32_t i = 0;
  while (i < node.count && node.entries[i].size < size) {
    ++i;
  }
  return i;
}

// The leaf's run of at least `size` with the lowest address, or nullptr.
FreeNode* lowest_fit(const Node& leaf, Bytes size) {
  FreeNode* lowest = nullptr;
  std::uint64_t key = UINT64_MAX;
  for (std::uint32_t i = 0; i < leaf.count; ++i) {
    const bool better = leaf.entries[i].size >= size && leaf.entries[i].key < key;
    key = better ? leaf.entries[i].key : key;
    lowest = better ? leaf.entries[i].slot.run : lowest;
  }
  return lowest;
}

// The lines of a node are asked for together: one wait a level, not one a line.
void prefetch(const Node* node) {
  for (std::size_t line = 0; line < sizeof(Node); line += 64) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(node) + line);
  }
}

// Keeps the order.
void put(Node& node, std::uint32_t at, const Entry& entry) {
  std::copy_backward(node.entries + at, node.entries + node.count, node.entries + node.count + 1);
  node.entries[at] = entry;
  ++node.count;
}

// Keeps the order.
void cut(Node& node, std::uint32_t at) {
  std::copy(node.entries + at + 1, node.entries + node.count, node.entries + at);
  --node.count;
}

// The entries of `from` from `first` on become the last ones of `to`.
void move_entries(Node& from, std::uint32_t first, Node& to) {
  std::copy(from.entries + first, from.entries + from.count, to.entries + to.count);
  to.count += from.count - first;
  from.count = first;
}

Node* make_node(RunTree::Pool& pool) {
  Node* node = pool.make();
  NOFRAG_CHECK(node != nullptr, "no host memory for the free index");
  return node;
}

// Makes room in the full child at `at` for `key`. Runs that come in order leave full nodes behind.
void split_child(
    Node& parent, std::uint32_t at, bool leaf, std::uint64_t key, RunTree::Pool& pool) {
  Node& child = *parent.entries[at].slot.child;
  if (leaf) {
    std::sort(child.entries, child.entries + child.count, [](const Entry& a, const Entry& b) {
      return a.key < b.key;
    });
  }
  std::uint32_t kept = kFan / 2;
  if (key > child.entries[kFan - 1].key) {
    kept = kFan - 2;
  } else if (key < child.entries[0].key) {
    kept = 2;
  }
  Node* right = make_node(pool);
  move_entries(child, kept, *right);
  parent.entries[at].size = longest_in(child);
  put(parent, at + 1, {right->entries[0].key, longest_in(*right), {.child = right}});
}

void merge_child(Node& parent, std::uint32_t at, RunTree::Pool& pool) {
  const auto together = [&parent](std::uint32_t left) {
    return parent.entries[left].slot.child->count + parent.entries[left + 1].slot.child->count <=
           kMergedMost;
  };
  std::uint32_t left = at;
  if (at > 0 && together(at - 1)) {
    left = at - 1;
  } else if (at + 1 == parent.count || !together(at)) {
    return;
  }
  Node* right = parent.entries[left + 1].slot.child;
  move_entries(*right, 0, *parent.entries[left].slot.child);
  parent.entries[left].size = std::max(parent.entries[left].size, parent.entries[left + 1].size);
  pool.destroy(right);
  cut(parent, left + 1);
}

}  // namespace

Bytes RunTree::longest() const {
  if (empty()) {
    return Bytes();
  }
  return height_ == 0 ? top_.run->size : longest_in(*top_.child);
}

void RunTree::add_level(Pool& pool) {
  Node* node = make_node(pool);
  if (height_ == 0) {
    node->entries[0] = {key_of(*top_.run), top_.run->size, top_};
  } else {
    // A leaf is in no order; 0 is a lower bound as good as any.
    node->entries[0] = {0, longest_in(*top_.child), top_};
  }
  node->count = 1;
  top_.child = node;
  NOFRAG_CHECK(++height_ <= kMaxHeight, "free index out of levels");
}

// `run`, which is or will be where `at` says.
void RunTree::put_in(FreeNode* run, const FreeNode& at, Pool& pool) {
  if (empty()) {
    top_.run = run;
    return;
  }
  const std::uint64_t key = key_of(at);
  if (height_ == 0) {
    add_level(pool);
  } else if (top_.child->count == kFan) {
    add_level(pool);
    split_child(*top_.child, 0, height_ == 2, key, pool);
  }
  Node* node = top_.child;
  for (std::uint32_t level = height_ - 1; level > 0; --level) {
    std::uint32_t i = child_for(*node, key);
    prefetch(node->entries[i].slot.child);
    if (node->entries[i].slot.child->count == kFan) {
      split_child(*node, i, level == 1, key, pool);
      i += key >= node->entries[i + 1].key ? 1 : 0;
    }
    node->entries[i].key = std::min(node->entries[i].key, key);
    node->entries[i].size = std::max(node->entries[i].size, at.size);
    node = node->entries[i].slot.child;
  }
  node->entries[node->count++] = {key, at.size, {.run = run}};
}

// The way down to `run` and its slot in the leaf; `limit`: where the leaf's keys end at the latest. pre: height_ > 0.
std::uint32_t RunTree::descend(const FreeNode& run, Path* path, std::uint64_t* limit) const {
  const std::uint64_t key = key_of(run);
  *limit = UINT64_MAX;
  Node* node = top_.child;
  for (std::uint32_t level = height_ - 1; level > 0; --level) {
    const std::uint32_t slot = child_for(*node, key);
    path->nodes[level] = node;
    path->slots[level] = slot;
    *limit = slot + 1 < node->count ? node->entries[slot + 1].key : *limit;
    node = node->entries[slot].slot.child;
    prefetch(node);
  }
  path->nodes[0] = node;
  std::uint32_t at = 0;
  while (at < node->count && node->entries[at].slot.run != &run) {
    ++at;
  }
  NOFRAG_CHECK(
      at < node->count && node->entries[at].key == key && node->entries[at].size == run.size,
      kAbsent);
  return at;
}

void RunTree::move(FreeNode* run, const FreeNode& to, Pool& pool) {
  NOFRAG_CHECK(height_ > 0, kAbsent);
  const std::uint64_t new_key = key_of(to);
  std::uint64_t limit = 0;
  Path path;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled as far as it is read
  const std::uint32_t at = descend(*run, &path, &limit);
  // The next leaf's key may be a lower bound that lies below the new address.
  if (new_key >= limit) {
    take_out(*run, pool);
    put_in(run, to, pool);
    return;
  }
  path.nodes[0]->entries[at].key = new_key;
  path.nodes[0]->entries[at].size = to.size;
  for (std::uint32_t level = 1; level < height_; ++level) {
    std::uint64_t& least = path.nodes[level]->entries[path.slots[level]].key;
    least = std::min(least, new_key);
  }
  mend_longest(path, height_, run->size, to.size);
}

// After a run at the end of the path grew or shrank.
void RunTree::mend_longest(const Path& path, std::uint32_t height, Bytes before, Bytes now) {
  for (std::uint32_t level = 1; level < height; ++level) {
    Bytes& longest = path.nodes[level]->entries[path.slots[level]].size;
    const Bytes was = longest;
    if (now >= was) {
      longest = now;
    } else if (was == before) {
      longest = longest_in(*path.nodes[level - 1]);
    }
    if (longest == was) {
      return;
    }
    before = was;
    now = longest;
  }
}

void RunTree::take_out(const FreeNode& run, Pool& pool) {
  NOFRAG_CHECK(height_ > 0, kAbsent);
  std::uint64_t limit = 0;
  Path path;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled as far as it is read
  const std::uint32_t at = descend(run, &path, &limit);
  Node* const node = path.nodes[0];
  node->entries[at] = node->entries[--node->count];
  if (height_ > 1) {
    mend(path, run.size, pool);
  } else if (node->count == 0) {
    drop_levels(pool);
  }
}

// After a run of `erased` bytes left the leaf at the end of the path: longest runs and fill.
void RunTree::mend(const Path& path, Bytes erased, Pool& pool) {
  for (std::uint32_t level = 1; level < height_; ++level) {
    Node& child = *path.nodes[level - 1];
    Node& parent = *path.nodes[level];
    const std::uint32_t at = path.slots[level];
    if (child.count == 0) {
      pool.destroy(&child);
      cut(parent, at);
      continue;
    }
    bool changed = false;
    if (parent.entries[at].size == erased) {
      parent.entries[at].size = longest_in(child);
      changed = parent.entries[at].size != erased;
    }
    if (child.count < kSparse) {
      merge_child(parent, at, pool);
    } else if (!changed) {
      break;
    }
  }
  drop_levels(pool);
}

// A leaf stays until it is empty: a tree of one run and two by turns makes and drops nothing.
void RunTree::drop_levels(Pool& pool) {
  while (height_ > 0 && top_.child->count <= (height_ > 1 ? 1U : 0U)) {
    Node* node = top_.child;
    top_ = node->count == 0 ? Slot{nullptr} : node->entries[0].slot;
    height_ = node->count == 0 ? 0 : height_ - 1;
    pool.destroy(node);
  }
}

FreeNode* RunTree::first_fit(Bytes size) const {
  if (height_ == 0) {
    return empty() || top_.run->size < size ? nullptr : top_.run;
  }
  const Node* node = top_.child;
  for (std::uint32_t level = height_ - 1; level > 0; --level) {
    const std::uint32_t at = first_long(*node, size);
    if (at == node->count) {
      return nullptr;
    }
    node = node->entries[at].slot.child;
    prefetch(node);
  }
  return lowest_fit(*node, size);
}

void RunTree::check_node(const Node& node,
                         std::uint32_t level,
                         std::uint64_t from,
                         std::uint64_t to) {
  NOFRAG_CHECK(node.count > 0 && node.count <= kFan, "an empty or overfull tree node");
  if (level == 0) {
    for (std::uint32_t i = 0; i < node.count; ++i) {
      const FreeNode& run = *node.entries[i].slot.run;
      NOFRAG_CHECK(node.entries[i].key >= from && node.entries[i].key < to,
                   "a run in the wrong leaf");
      NOFRAG_CHECK(key_of(run) == node.entries[i].key && run.size == node.entries[i].size,
                   "a free run changed while it was in the index");
      const auto same = [&](const Entry& other) { return other.key == node.entries[i].key; };
      NOFRAG_CHECK(std::count_if(node.entries, node.entries + node.count, same) == 1,
                   "a free run is in the index twice");
    }
    return;
  }
  for (std::uint32_t i = 0; i < node.count; ++i) {
    const std::uint64_t next = i + 1 < node.count ? node.entries[i + 1].key : to;
    NOFRAG_CHECK(node.entries[i].key >= from && node.entries[i].key < next, "keys out of order");
    const Node& child = *node.entries[i].slot.child;
    NOFRAG_CHECK(node.entries[i].size == longest_in(child), "a subtree's longest run is not that");
    check_node(child, level - 1, node.entries[i].key, next);
  }
}

void RunTree::check() const {
  if (height_ > 0) {
    NOFRAG_CHECK(height_ == 1 || top_.child->count > 1, "a level for nothing");
    check_node(*top_.child, height_ - 1, 0, UINT64_MAX);
  }
}

}  // namespace nofrag
