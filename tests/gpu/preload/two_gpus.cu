// Two GPUs in a program that does not know nofrag: memory of both from one thread, copies between them, kernels that read
// and write the other's memory, before and after peer access was switched on, and frees while the other device is current.
// Prints a line a fact; with and without the preload they must be the same. 77 with fewer than two GPUs.
//
// usage: two_gpus [peers]     peers: without the copies between devices that are not peers yet
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kWords = (std::size_t{24} << 20) / 4;

__global__ void fill(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
  }
}

__global__ void count_wrong(const std::uint32_t* words,
                            std::size_t count,
                            std::uint32_t seed,
                            unsigned* wrong) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (words[i] != static_cast<std::uint32_t>(i) * 2654435761u + seed) {
      atomicAdd(wrong, 1U);
    }
  }
}

void say(const char* what, long long value) {
  std::printf("%s: %lld\n", what, value);
}

std::uint32_t* words_on(int device, std::uint32_t seed) {
  cudaSetDevice(device);
  std::uint32_t* words = nullptr;
  if (cudaMalloc(&words, kWords * 4) != cudaSuccess) {
    say("allocation failed on device", device);
    return nullptr;
  }
  fill<<<256, 256>>>(words, kWords, seed);
  return words;
}

// Read by a kernel of `device`, wherever they are.
long long wrong_words(int device, const std::uint32_t* words, std::uint32_t seed) {
  cudaSetDevice(device);
  unsigned* wrong = nullptr;
  if (const cudaError_t refused = cudaMallocManaged(&wrong, 4); refused != cudaSuccess) {
    return -static_cast<long long>(refused);
  }
  *wrong = 0;
  count_wrong<<<256, 256>>>(words, kWords, seed, wrong);
  const cudaError_t done = cudaDeviceSynchronize();
  const long long count = done == cudaSuccess ? *wrong : -static_cast<long long>(done);
  cudaFree(wrong);
  return count;
}

void attributes(const char* what, const void* words) {
  cudaPointerAttributes found{};
  say(what, cudaPointerGetAttributes(&found, words));
  say("  type", found.type);
  say("  device", found.device);
}

void copies() {
  std::uint32_t* one = words_on(0, 1);
  std::uint32_t* two = words_on(1, 2);
  attributes("of the first", one);
  attributes("of the second", two);
  cudaSetDevice(0);
  cudaDeviceSynchronize();
  say("copy to the second", cudaMemcpyPeer(two, 1, one, 0, kWords * 4));
  say("wrong there", wrong_words(1, two, 1));
  say("copy by unified addresses", cudaMemcpy(one, two, kWords * 4, cudaMemcpyDefault));
  say("wrong here", wrong_words(0, one, 1));
  say("free of the other device's", cudaFree(two));  // the first is current
  cudaSetDevice(1);
  say("free of the first's", cudaFree(one));
}

void peers(std::vector<std::uint32_t*>& before) {
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    say("peer access on", cudaDeviceEnablePeerAccess(1 - device, 0));
    say("twice", cudaDeviceEnablePeerAccess(1 - device, 0));
    cudaGetLastError();
  }
  for (int device = 0; device < 2; ++device) {
    say("allocated before, read by the other",
        wrong_words(1 - device, before[device], 10 + device));
  }
  for (std::uint32_t round = 0; round < 12; ++round) {
    std::uint32_t* theirs = words_on(static_cast<int>(round % 2), 100 + round);
    cudaDeviceSynchronize();
    say("allocated after, read by the other",
        wrong_words(1 - static_cast<int>(round % 2), theirs, 100 + round));
    cudaSetDevice(1 - static_cast<int>(round % 2));
    fill<<<256, 256>>>(theirs, kWords, 500 + round);  // written by the other
    cudaDeviceSynchronize();
    say("written by the other", wrong_words(static_cast<int>(round % 2), theirs, 500 + round));
    say("freed", cudaFree(theirs));
  }
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    say("peer access off", cudaDeviceDisablePeerAccess(1 - device));
    say("still right", wrong_words(device, before[device], 10 + device));
    say("freed", cudaFree(before[device]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  int able = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("needs two GPUs\n");
    return 77;
  }
  if (argc < 2 || std::strcmp(argv[1], "peers") != 0) {
    copies();
  }
  cudaDeviceCanAccessPeer(&able, 0, 1);
  say("peers", able);
  if (able != 0) {
    std::vector<std::uint32_t*> before{words_on(0, 10), words_on(1, 11)};
    cudaSetDevice(0);
    cudaDeviceSynchronize();
    cudaSetDevice(1);
    cudaDeviceSynchronize();
    peers(before);
  }
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    say("reset", cudaDeviceReset());
  }
  return 0;
}
