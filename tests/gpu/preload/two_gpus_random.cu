// A random program over two GPUs, all of it in default streams and nothing synchronized but what CUDA does by itself:
// blocks are allocated, mixed by kernels, copied between and within devices and to and from the host with either device
// current, and freed. Prints checksums; with and without the preload they must be the same. 77 with fewer than two GPUs.
//
// usage: two_gpus_random SEED STEPS [peers]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr std::size_t kMost = std::size_t{6} << 20;  // words of a block

struct Block {
  std::uint32_t* words;
  std::size_t count;
  int device;
  bool pooled;  // of cudaMallocAsync
};

std::mt19937_64 generator;
std::vector<Block> blocks;
std::uint32_t* pinned;
std::uint32_t* pageable;
std::uint64_t checksum = 0;
int failures = 0;

std::size_t below(std::size_t bound) {
  return static_cast<std::size_t>(generator() % bound);
}

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) {
    std::printf("%s: %d\n", what, static_cast<int>(result));
    cudaGetLastError();
    ++failures;
  }
}

__global__ void mix(std::uint32_t* words, std::size_t count, std::uint32_t seed, bool fresh) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = (fresh ? 0 : words[i]) * 2654435761u + static_cast<std::uint32_t>(i) * 40503u + seed;
  }
}

// Slow on purpose: a few threads for all of it.
__global__ void slow_mix(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    words[i] = words[i] * 1664525u + seed;
  }
}

void add(const std::uint32_t* words, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    checksum = (checksum ^ words[i]) * 1099511628211u;
  }
}

Block& any_block() {
  return blocks[below(blocks.size())];
}

void allocate() {
  Block block{nullptr, std::size_t{256} << below(15), static_cast<int>(below(2)), below(4) == 0};
  block.count = std::min(kMost, block.count + below(block.count));
  cudaSetDevice(block.device);
  check(block.pooled ? cudaMallocAsync(&block.words, block.count * 4, nullptr)
                     : cudaMalloc(&block.words, block.count * 4),
        "allocation");
  mix<<<64, 256>>>(block.words, block.count, static_cast<std::uint32_t>(generator()), true);
  blocks.push_back(block);
}

void release() {
  const std::size_t which = below(blocks.size());
  const Block block = blocks[which];
  blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
  // What is freed in stream order is freed where it was allocated.
  cudaSetDevice(block.pooled ? block.device : static_cast<int>(below(2)));
  check(block.pooled ? cudaFreeAsync(block.words, nullptr) : cudaFree(block.words), "free");
}

void work() {
  Block& block = any_block();
  cudaSetDevice(block.device);
  if (below(3) == 0) {
    slow_mix<<<1, 128>>>(block.words,
                         std::min<std::size_t>(block.count, 200000),
                         static_cast<std::uint32_t>(generator()));
  } else {
    mix<<<64, 256>>>(block.words, block.count, static_cast<std::uint32_t>(generator()), false);
  }
}

void copy() {
  const Block& from = any_block();
  const Block& to = any_block();
  if (from.words == to.words || (from.device != to.device && (from.pooled || to.pooled))) {
    return;  // pool memory is for its own device, which must be current
  }
  const std::size_t count = 1 + below(std::min(from.count, to.count));
  const std::uint32_t* source = from.words + below(from.count - count + 1);
  std::uint32_t* target = to.words + below(to.count - count + 1);
  cudaSetDevice(from.pooled || to.pooled ? from.device : static_cast<int>(below(2)));
  switch (below(5)) {
    case 0:
      check(cudaMemcpy(target, source, count * 4, cudaMemcpyDeviceToDevice), "copy");
      break;
    case 1:
      check(cudaMemcpy(target, source, count * 4, cudaMemcpyDefault), "copy");
      break;
    case 2:
      check(cudaMemcpyAsync(target, source, count * 4, cudaMemcpyDeviceToDevice, nullptr), "copy");
      break;
    case 3:
      check(cudaMemcpyPeerAsync(target, to.device, source, from.device, count * 4, nullptr),
            "copy");
      break;
    default:
      check(cudaMemcpy2DAsync(target,
                              256,
                              source,
                              256,
                              256,
                              std::max<std::size_t>(1, count / 64) * (count >= 64 ? 1 : 0),
                              cudaMemcpyDeviceToDevice,
                              nullptr),
            "copy");
  }
}

void to_host() {
  const Block& block = any_block();
  std::uint32_t* const host = below(2) == 0 ? pinned : pageable;
  cudaSetDevice(block.pooled ? block.device : static_cast<int>(below(2)));
  const std::size_t count = 1 + below(std::min<std::size_t>(block.count, 100000));
  check(cudaMemcpy(host,
                   block.words + below(block.count - count + 1),
                   count * 4,
                   below(2) == 0 ? cudaMemcpyDeviceToHost : cudaMemcpyDefault),
        "to the host");
  add(host, count);
}

void from_host() {
  const Block& block = any_block();
  std::uint32_t* const host = below(2) == 0 ? pinned : pageable;
  cudaSetDevice(block.pooled ? block.device : static_cast<int>(below(2)));
  const std::size_t count = 1 + below(std::min<std::size_t>(block.count, 100000));
  for (std::size_t i = 0; i < count; ++i) {
    host[i] = static_cast<std::uint32_t>(i * 7919 + checksum);
  }
  check(cudaMemcpy(
            block.words + below(block.count - count + 1), host, count * 4, cudaMemcpyHostToDevice),
        "from the host");
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("needs two GPUs\n");
    return 77;
  }
  if (argc < 3) {
    std::fprintf(stderr, "usage: two_gpus_random SEED STEPS [peers]\n");
    return 2;
  }
  generator.seed(std::strtoull(argv[1], nullptr, 10));
  const std::size_t steps = std::strtoull(argv[2], nullptr, 10);
  for (int device = 0; device < 2 && argc > 3; ++device) {
    cudaSetDevice(device);
    check(cudaDeviceEnablePeerAccess(1 - device, 0), "peer access");
  }
  check(cudaMallocHost(&pinned, kMost * 4), "pinned memory");
  pageable = static_cast<std::uint32_t*>(std::malloc(kMost * 4));
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t dice = below(100);
    if (blocks.size() < 4 || (dice < 15 && blocks.size() < 60)) {
      allocate();
    } else if (dice < 28) {
      release();
    } else if (dice < 55) {
      work();
    } else if (dice < 85) {
      copy();
    } else if (dice < 93) {
      to_host();
    } else {
      from_host();
    }
    if (step % 500 == 499) {
      std::printf("step %zu: %zu blocks, checksum %016llx\n",
                  step + 1,
                  blocks.size(),
                  static_cast<unsigned long long>(checksum));
    }
  }
  for (const Block& block : blocks) {
    cudaSetDevice(block.device);
    check(cudaMemcpy(pageable, block.words, block.count * 4, cudaMemcpyDeviceToHost),
          "to the host");
    add(pageable, block.count);
  }
  std::printf(
      "checksum %016llx, %d failures\n", static_cast<unsigned long long>(checksum), failures);
  return failures == 0 ? 0 : 1;
}
