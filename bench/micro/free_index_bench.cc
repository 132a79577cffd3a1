// What one operation of the free index costs, by the number of runs in it and by pattern.
//
// Every benchmark reports nanoseconds for one take-and-put-back: find, remove, insert. Sets of up to
// a million runs, mixed sizes or all of one size, put back in an order that suits the index and in
// orders that do not. The nodes are as far apart as blocks are in a heap.
#include "index/free_index.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

namespace {

using nofrag::Bytes;
using nofrag::FreeIndex;
using nofrag::FreeNode;
using nofrag::VirtAddr;

enum Sizes : int { kMixed, kOne, kLarge };

// As large as the heap's blocks, so that neighbours share no cache line.
struct Node : FreeNode {
  char rest[144];
};

std::uint64_t log_uniform(std::mt19937_64& random, int low_bit, int high_bit) {
  const auto bit = low_bit + static_cast<int>(random() % static_cast<unsigned>(high_bit - low_bit));
  return (std::uint64_t{1} << bit) + (random() & ((std::uint64_t{1} << bit) - 1));
}

Bytes size_of(Sizes sizes, std::mt19937_64& random) {
  switch (sizes) {
    case kMixed:
      return FreeIndex::kUnit * log_uniform(random, 0, 11);
    case kOne:
      return 64 * nofrag::kKiB;
    case kLarge:
      return FreeIndex::kUnit * log_uniform(random, 16, 21);
  }
  return FreeIndex::kUnit;
}

class Runs {
 public:
  Runs(std::size_t count, Sizes sizes) : nodes_(count) {
    std::uint64_t address = std::uint64_t{1} << 40;
    for (Node& node : nodes_) {
      node.size = size_of(sizes, random_);
      node.address = VirtAddr(address);
      address += 2 * node.size.count();
    }
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) {
      index_.insert(&nodes_[i]);
    }
  }
  FreeIndex& index() { return index_; }
  std::vector<Node>& nodes() { return nodes_; }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_{1};
  std::vector<Node> nodes_;
  FreeIndex index_;
};

// A request of a random size is served and given back: the warm case.
void serve_and_return(benchmark::State& state) {
  const auto sizes = static_cast<Sizes>(state.range(1));
  Runs runs(static_cast<std::size_t>(state.range(0)), sizes);
  std::vector<Bytes> requests(4096);
  for (Bytes& request : requests) {
    request = size_of(sizes, runs.random());
  }
  std::size_t next = 0;
  for (auto _ : state) {
    FreeNode* node = runs.index().find(requests[next++ % requests.size()]);
    if (node != nullptr) {
      runs.index().remove(node);
      runs.index().insert(node);
    }
  }
}

// Runs chosen at random leave and come back: what merging with neighbours does.
void remove_anywhere(benchmark::State& state) {
  Runs runs(static_cast<std::size_t>(state.range(0)), static_cast<Sizes>(state.range(1)));
  for (auto _ : state) {
    Node& node = runs.nodes()[runs.random()() % runs.nodes().size()];
    runs.index().remove(&node);
    runs.index().insert(&node);
  }
}

// A thousand requests are served, then their runs come back: first in first out, last in first
// out, or at random.
enum Order : int { kFifo, kLifo, kShuffled };
void waves(benchmark::State& state) {
  const auto sizes = static_cast<Sizes>(state.range(1));
  const auto order = static_cast<Order>(state.range(2));
  Runs runs(static_cast<std::size_t>(state.range(0)), sizes);
  std::vector<FreeNode*> taken;
  for (auto _ : state) {
    taken.clear();
    for (int i = 0; i < 1000; ++i) {
      FreeNode* node = runs.index().find(size_of(sizes, runs.random()));
      if (node != nullptr) {
        runs.index().remove(node);
        taken.push_back(node);
      }
    }
    if (order == kLifo) {
      std::reverse(taken.begin(), taken.end());
    } else if (order == kShuffled) {
      std::shuffle(taken.begin(), taken.end(), runs.random());
    }
    for (FreeNode* node : taken) {
      runs.index().insert(node);
    }
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}

// Requests that only the last run of a crowded bin holds, or none.
void own_bin_too_short(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<Node> nodes(count);
  FreeIndex index;
  for (std::size_t i = 0; i < count; ++i) {
    nodes[i].address = VirtAddr((std::uint64_t{1} << 40) + i * (4 * nofrag::kMiB).count());
    nodes[i].size = FreeIndex::kUnit * 1024;
    index.insert(&nodes[i]);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(index.find(FreeIndex::kUnit * 1025));
  }
}

void by_count_and_sizes(benchmark::internal::Benchmark* b) {
  for (const int sizes : {kMixed, kOne, kLarge}) {
    for (const int count : {1, 1024, 65536, 1000000}) {
      b->Args({count, sizes});
    }
  }
}
void by_count_sizes_and_order(benchmark::internal::Benchmark* b) {
  for (const int sizes : {kMixed, kOne}) {
    for (const int order : {kFifo, kLifo, kShuffled}) {
      for (const int count : {1024, 65536, 1000000}) {
        b->Args({count, sizes, order});
      }
    }
  }
}

BENCHMARK(serve_and_return)->Apply(by_count_and_sizes);
BENCHMARK(remove_anywhere)->Apply(by_count_and_sizes);
BENCHMARK(waves)->Apply(by_count_sizes_and_order);
BENCHMARK(own_bin_too_short)->Arg(1024)->Arg(65536)->Arg(1000000);

}  // namespace

BENCHMARK_MAIN();
