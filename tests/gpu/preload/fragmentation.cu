// Random sizes on plain cudaMalloc and cudaFree with the memory nearly full: does every request that fits by the
// count succeed? Two counts: `units`, 1 to 512 MiB, 95 % full, each size counted as the driver rounds it, to 2 MiB
// (a layout that wastes nothing exists); `bytes`, 2 to 16 MiB, 90 % full by what was asked for, where the driver's
// rounding alone takes more than there is. First takes all memory but the budget (through the driver's
// virtual-memory calls, which the preload passes on), so that both runs have the same left.
//
// usage: fragmentation BUDGET_MIB STEPS SEED [units|bytes]
// Prints RESULT {json}: steps done before the first refusal.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

__global__ void fill(unsigned* words, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = seed + static_cast<unsigned>(i);
  }
}

__global__ void verify(const unsigned* words,
                       std::size_t count,
                       unsigned seed,
                       unsigned long long* wrong) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (words[i] != seed + static_cast<unsigned>(i)) {
      atomicAdd(wrong, 1ULL);
    }
  }
}

// Holds everything but `keep` bytes. False if that is not to be had.
bool hold_the_rest(std::size_t keep) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < keep) {
    return false;
  }
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuMemCreate", &entry, 12000, cudaEnableDefault, &found) !=
      cudaSuccess) {
    return false;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  const std::size_t size = (free - keep) >> 21 << 21;
  return reinterpret_cast<decltype(&cuMemCreate)>(entry)(&handle, size, &properties, 0) ==
         CUDA_SUCCESS;
}

struct Block {
  unsigned* words = nullptr;
  std::size_t bytes = 0;
  unsigned seed = 0;
};

}  // namespace

int main(int count, char** words) {
  const std::size_t budget = std::strtoull(count > 1 ? words[1] : "8192", nullptr, 10) << 20;
  const long steps = std::atol(count > 2 ? words[2] : "3000");
  std::mt19937 random(static_cast<unsigned>(std::atoi(count > 3 ? words[3] : "1")));
  unsigned long long* wrong = nullptr;
  // The kernels are loaded before memory is short.
  if (cudaMalloc(&wrong, sizeof *wrong) != cudaSuccess ||
      cudaMemset(wrong, 0, sizeof *wrong) != cudaSuccess) {
    return 3;
  }
  verify<<<1, 32>>>(nullptr, 0, 0, wrong);
  fill<<<1, 32>>>(nullptr, 0, 0);
  if (cudaDeviceSynchronize() != cudaSuccess || !hold_the_rest(budget)) {
    std::fprintf(
        stderr, "the ballast is not to be had: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 3;
  }
  const bool by_bytes = count > 4 && std::strcmp(words[4], "bytes") == 0;
  const std::size_t full = budget / 100 * (by_bytes ? 90 : 95);
  const std::size_t unit = by_bytes ? 512 : std::size_t{2} << 20;
  const double smallest = by_bytes ? 21.0 : 20.0;  // powers of two
  const double largest = by_bytes ? 24.0 : 29.0;
  std::vector<Block> blocks;
  std::size_t live = 0;
  long step = 0;
  bool refused = false;
  std::size_t asked = 0;
  const auto give = [&](std::size_t index) {
    Block& block = blocks[index];
    verify<<<256, 256>>>(block.words, block.bytes / 4, block.seed, wrong);
    cudaFree(block.words);
    live -= (block.bytes + unit - 1) / unit * unit;
    block = blocks.back();
    blocks.pop_back();
  };
  for (; step < steps && !refused; ++step) {
    const double exponent = std::uniform_real_distribution<double>(smallest, largest)(random);
    asked = static_cast<std::size_t>(std::exp2(exponent)) / 512 * 512;
    const std::size_t counted = (asked + unit - 1) / unit * unit;
    while (live + counted > full) {
      give(random() % blocks.size());
    }
    Block block{nullptr, asked, static_cast<unsigned>(random())};
    if (cudaMalloc(&block.words, asked) != cudaSuccess) {
      refused = true;
      cudaGetLastError();
      break;
    }
    fill<<<256, 256>>>(block.words, asked / 4, block.seed);
    live += counted;
    blocks.push_back(block);
  }
  const std::size_t live_at_end = live;
  while (!blocks.empty()) {
    give(0);
  }
  unsigned long long found = 1;
  const cudaError_t last = cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost);
  std::printf(
      "RESULT {\"steps\": %ld, \"refused\": %s, \"asked_mib\": %zu, \"live_mib\": %zu, \"wrong\": "
      "%llu, "
      "\"error\": %d}\n",
      step,
      refused ? "true" : "false",
      asked >> 20,
      live_at_end >> 20,
      found,
      static_cast<int>(last));
  return 0;
}
