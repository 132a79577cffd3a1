// Two blocks of nofrag side by side, written by a kernel: within the first (clean), or by one element beyond its
// end (overrun). For compute-sanitizer, with NOFRAG_CONF=nvtx:memory; record.py runs it.
//
// usage: overrun clean|overrun
#include <cstdio>
#include <cstring>

#include <nofrag/nofrag.h>

namespace {

constexpr unsigned kElements = 1U << 18;
constexpr unsigned kThreads = 256;

__global__ void fill(unsigned* block, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    block[i] = i;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool overrun = argc == 2 && std::strcmp(argv[1], "overrun") == 0;
  cudaFree(nullptr);  // NVTX's calls are allowed once the runtime is up
  const std::size_t bytes = kElements * sizeof(unsigned);
  auto* first = static_cast<unsigned*>(nofrag_malloc(bytes, 0, nullptr));
  auto* second = static_cast<unsigned*>(nofrag_malloc(bytes, 0, nullptr));
  auto* large = static_cast<unsigned*>(nofrag_malloc(100 * bytes, 0, nullptr));
  if (first == nullptr || second == nullptr || large == nullptr) {
    std::fprintf(stderr, "overrun: an allocation failed\n");
    return 2;
  }
  std::printf("first %p second %p large %p\n",
              static_cast<void*>(first),
              static_cast<void*>(second),
              static_cast<void*>(large));
  const unsigned count = overrun ? kElements + 1 : kElements;
  fill<<<(count + kThreads - 1) / kThreads, kThreads>>>(first, count);
  fill<<<kElements / kThreads, kThreads>>>(second, kElements);
  fill<<<100 * kElements / kThreads, kThreads>>>(large, 100 * kElements);
  const cudaError_t done = cudaDeviceSynchronize();
  for (void* block :
       {static_cast<void*>(first), static_cast<void*>(second), static_cast<void*>(large)}) {
    nofrag_free(block);
  }
  if (done != cudaSuccess) {
    std::fprintf(stderr, "overrun: %s\n", cudaGetErrorString(done));
    return 3;
  }
  return 0;
}
