// The sizes that the benchmarks ask for, the same everywhere so that their figures can be compared.
//
// Owns: nothing shared. Knows no allocator. Threads: every thread has its own objects, seeded by its number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nofrag::bench {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

constexpr std::size_t kSmallSize = 4 * kKiB;
constexpr std::size_t kMixedLive = 256;  // live blocks of a thread in the mixed pattern
constexpr std::size_t kHoles = 65536;
// Sizes that a job repeats: activations, gradients, workspaces.
constexpr std::array<std::size_t, 9> kLargeSizes = {1 * kMiB,
                                                    2 * kMiB,
                                                    4 * kMiB,
                                                    8 * kMiB,
                                                    16 * kMiB,
                                                    32 * kMiB,
                                                    64 * kMiB,
                                                    128 * kMiB,
                                                    256 * kMiB};

// A few instructions: what is measured around it is an allocation of 20 ns.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint64_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  std::uint64_t state_;
};

// Log-uniform between 512 B and `octaves` doublings of that: 11 end at 1 MiB. Drawn beforehand, and
// few enough for the processor's second cache.
class MixedSizes {
 public:
  explicit MixedSizes(std::uint64_t seed, unsigned octaves = 11) : random_(seed) {
    sizes_.resize(kCount);
    for (std::uint32_t& size : sizes_) {
      const auto octave = std::uint64_t{512} << (random_() % octaves);
      size = static_cast<std::uint32_t>(octave + random_() % octave);
    }
  }
  std::size_t next() { return sizes_[next_++ % kCount]; }
  std::size_t below(std::size_t bound) { return random_() % bound; }

 private:
  static constexpr std::size_t kCount = 16384;
  Random random_;
  std::vector<std::uint32_t> sizes_;
  std::size_t next_ = 0;
};

}  // namespace nofrag::bench
