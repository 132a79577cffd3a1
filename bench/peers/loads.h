// Loads: what one thread does in one pattern, a pair (an allocation and a free) at a time.
//
// Owns: the blocks that a load holds between its pairs. A load is made by the thread that runs it:
// prepare, then pairs as often as time allows, then finish. Threads: one. Failure: an allocation that
// fails ends the program. Needs nothing of the GPU but the peer: no kernel runs, no byte is touched.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "patterns/ring.h"
#include "patterns/sizes.h"
#include "peers/peer.h"

namespace nofrag::bench {

using Clock = std::chrono::steady_clock;

struct Block {
  void* address = nullptr;
  std::size_t size = 0;
};

// A peer on one stream.
class Door {
 public:
  Door(Peer& peer, void* stream) : peer_(peer), stream_(stream) {}
  Block allocate(std::size_t size) {
    void* const address = peer_.allocate(size, stream_);
    if (address == nullptr) {
      stop("out of memory for " + std::to_string(size) + " bytes");
    }
    return {address, size};
  }
  void free(const Block& block) { peer_.free(block.address, block.size, stream_); }

 private:
  Peer& peer_;
  void* stream_;
};

class Load {
 public:
  Load() = default;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  virtual ~Load() = default;
  virtual void prepare() {}
  virtual void pairs(std::size_t count) = 0;
  virtual void finish() {}
};

// By name: pair-4k, mixed, large-repeat, large-cycle; null for another.
std::unique_ptr<Load> make_load(const std::string& pattern, Door door, std::uint64_t seed);

// 65,536 free holes of mixed sizes, kept apart by live blocks; pairs of sizes that fit. Making the
// holes takes minutes in an allocator that searches its free list from the start, so that is bounded:
// made() says how many there are.
class Holes final : public Load {
 public:
  Holes(Door door, std::chrono::duration<double> most) : door_(door), most_(most) {}
  void prepare() override;
  void pairs(std::size_t count) override;
  [[nodiscard]] std::size_t made() const { return made_; }

 private:
  Door door_;
  std::chrono::duration<double> most_;  // for the allocations, and again for the frees
  MixedSizes requests_{2, 10};          // up to 512 KiB: holes go to 1 MiB
  std::size_t made_ = 0;
};

// One thread allocates and hands over; the other frees until it gets a block without an address.
class Producer final : public Load {
 public:
  Producer(Door door, Ring<Block>& ring) : door_(door), ring_(ring) {}
  void pairs(std::size_t count) override;
  void finish() override { ring_.push({}); }

 private:
  Door door_;
  Ring<Block>& ring_;
};
void consume(Door door, Ring<Block>& ring);

struct Tally {
  double nanoseconds = 0;
  std::uint64_t pairs = 0;
};
// Runs pairs for as long as told, looking at the clock every 20 us or so.
Tally run_for(Load& load, std::chrono::duration<double> length);

}  // namespace nofrag::bench
