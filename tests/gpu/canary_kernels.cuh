// canary_kernels: the pattern that canary and replay_canary write into blocks, and look for again.
//
// Owns: nothing. Layer: tests. A word of a block is a function of the block's pattern and the word's
// index, so that a word in the wrong place, of another block or of an earlier fill shows. Units:
// words of 4 bytes. Threads: kernels; nothing here waits. Failure: any error of CUDA or nofrag ends the
// program with status 1. Cost: a fill or a check moves each byte once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <nofrag/nofrag.h>

namespace canary {

// What checks found: how many words were wrong, and where the first ones were.
struct Findings {
  static constexpr unsigned kKept = 8;
  unsigned long long wrong;
  struct {
    std::uint32_t pattern;
    std::uint32_t found;
    std::uint64_t index;
  } first[kKept];
};

inline void cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "canary: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

[[noreturn]] inline void die(const char* what) {
  const char* message = "";
  nofrag_last_error(&message);
  std::fprintf(stderr, "canary: %s: %s\n", what, message);
  std::exit(1);
}

inline void ok(nofrag_status status, const char* what) {
  if (status != NOFRAG_OK) {
    die(what);
  }
}

__host__ __device__ inline std::uint32_t word_of(std::uint32_t pattern, std::uint64_t index) {
  std::uint64_t x = index * 0x9e3779b97f4a7c15ull + pattern;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return static_cast<std::uint32_t>(x >> 32);
}

static __global__ void fill_kernel(std::uint32_t* words,
                                   std::uint64_t count,
                                   std::uint32_t pattern) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = word_of(pattern, i);
  }
}

static __global__ void check_kernel(const std::uint32_t* words,
                                    std::uint64_t count,
                                    std::uint32_t pattern,
                                    Findings* findings) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::uint32_t found = words[i];
    if (found != word_of(pattern, i)) {
      const unsigned long long at = atomicAdd(&findings->wrong, 1ull);
      if (at < Findings::kKept) {
        findings->first[at] = {pattern, found, i};
      }
    }
  }
}

static __global__ void spin_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

inline int blocks_for(std::uint64_t words) {
  const std::uint64_t blocks = (words + 255) / 256;
  return static_cast<int>(blocks < 2048 ? blocks : 2048);
}

inline void fill(cudaStream_t stream,
                 std::uint32_t* words,
                 std::uint64_t count,
                 std::uint32_t pattern) {
  fill_kernel<<<blocks_for(count), 256, 0, stream>>>(words, count, pattern);
  cuda(cudaGetLastError(), "fill");
}

inline void check(cudaStream_t stream,
                  const std::uint32_t* words,
                  std::uint64_t count,
                  std::uint32_t pattern,
                  Findings* findings) {
  check_kernel<<<blocks_for(count), 256, 0, stream>>>(words, count, pattern, findings);
  cuda(cudaGetLastError(), "check");
}

inline void spin(cudaStream_t stream, long long cycles) {
  spin_kernel<<<1, 1, 0, stream>>>(cycles);
  cuda(cudaGetLastError(), "spin");
}

inline Findings* make_findings() {
  Findings* findings = nullptr;
  cuda(cudaMalloc(&findings, sizeof *findings), "counter");
  cuda(cudaMemset(findings, 0, sizeof *findings), "counter");
  cuda(cudaDeviceSynchronize(), "counter");
  return findings;
}

// pre: the device is idle. Says on stderr where the first wrong words were.
inline unsigned long long wrong_words(const Findings* findings) {
  Findings host;
  cuda(cudaMemcpy(&host, findings, sizeof host, cudaMemcpyDeviceToHost), "counter");
  for (unsigned i = 0; i < host.wrong && i < Findings::kKept; ++i) {
    const auto& word = host.first[i];
    std::fprintf(stderr,
                 "canary: pattern %u, word %llu: %08x where %08x was written\n",
                 word.pattern,
                 static_cast<unsigned long long>(word.index),
                 word.found,
                 word_of(word.pattern, word.index));
  }
  return host.wrong;
}

}  // namespace canary
