// Random programs for the device allocator: instructions, configurations and how they print.
//
// Owns: nothing; values. Layer: tests. An Instruction names blocks, streams and pools by numbers
// that are taken modulo what exists when it runs, so any list of instructions is a valid program:
// parts can be cut out of a failing one and it still runs.
// Units: bytes in Instruction::size. Threads: values. Failure: none.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "config/options.h"
#include "driver/simulated/simulated_driver.h"

namespace nofrag::model {

enum class Op : unsigned char {
  kAlloc,         // size, a = stream
  kAllocInPool,   // size, a = stream, b = pool
  kFree,          // a = block
  kRecordStream,  // a = block, b = stream; the stream then runs a kernel on the block
  kLaunch,        // a = block: a kernel of its own stream
  kCheckCanary,   // a = block
  kAdvance,       // size = microseconds (kClock)
  kComplete,      // a = stream (kByHand)
  kCompleteAll,   // (kByHand)
  kTrim,          // size = keep
  kSetLimit,      // size; 0 = none
  kBeginPool,     // a = pool, b = stream: fill without a capture
  kEndPool,       // a = pool
  kBeginCapture,  // a = pool, b = stream
  kEndCapture,    // a = pool
  kReplay,        // a = pool, b = stream of the first replay
  kReleasePool,   // a = pool
  kRetireStream,  // a = stream
  kPhysical,      // size = what the device has; 0 = as at first
  kOthers,        // size = what other processes hold
  kFail,          // a = driver call, b = n-th from now, size = 0 out of memory, else driver failure
  kCheckAll,      // allocator and driver check(), every canary
  kAllocSingle,   // size, a = stream: a block in one handle
  kPin,           // a = block, b = where in it
  kUnpin,         // a = pin, in the order they were made
};
inline constexpr int kOps = 25;

struct Instruction {
  Op op = Op::kCheckAll;
  std::uint64_t size = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

struct Config {
  std::string name = "default";
  Bytes granularity = 2 * kMiB;
  Bytes memory = 256 * kMiB;
  Bytes handle_size = 8 * kMiB;  // 0 = the policy's
  double reserve_slack = 0.01;   // negative = the policy's
  Policy policy = Policy::kBalanced;
  std::int64_t max_aliases = 8;
  Bytes limit = kNoLimit;
  std::uint64_t streams = 1;
  std::uint64_t pools = 3;
  Completion completion = Completion::kClock;
  double lag_us = 500;
  bool faults = true;
  bool pressure = true;  // other processes, shrinking devices, limits
  bool captures = true;
  bool virtual_memory = true;
  bool thread_caches = true;
  bool check_streams = true;  // and so streams may be destroyed without a word
};

// The configurations that every test of this folder runs.
const std::vector<Config>& configs();

// The instructions depend on the seed and the configuration alone.
class Generator {
 public:
  Generator(std::uint64_t seed, const Config& config);
  Instruction next();

 private:
  std::uint64_t below(std::uint64_t bound);
  std::uint64_t size();

  std::mt19937_64 random_;
  Config config_;
  std::vector<double> weights_;
};

// "{Op::kAlloc, 4096, 0, 0}," to be pasted into regressions.cc.
std::string to_cpp(const Instruction& instruction);

}  // namespace nofrag::model
