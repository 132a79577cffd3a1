#include "program.h"

#include <array>

namespace nofrag::model {
namespace {

constexpr std::array<const char*, kOps> kNames = {
    "kAlloc",       "kAllocInPool", "kFree",         "kRecordStream", "kLaunch",
    "kCheckCanary", "kAdvance",     "kComplete",     "kCompleteAll",  "kTrim",
    "kSetLimit",    "kBeginPool",   "kEndPool",      "kBeginCapture", "kEndCapture",
    "kReplay",      "kReleasePool", "kRetireStream", "kPhysical",     "kOthers",
    "kFail",        "kCheckAll",    "kAllocSingle",  "kPin",          "kUnpin"};

Config make(const char* name, Bytes memory, std::uint64_t streams, Completion completion) {
  Config config;
  config.name = name;
  config.memory = memory;
  config.streams = streams;
  config.completion = completion;
  return config;
}

Config with_policy(const char* name, Policy policy, Bytes memory, std::uint64_t streams) {
  Config config = make(name, memory, streams, Completion::kByHand);
  config.policy = policy;
  config.handle_size = Bytes(0);
  config.reserve_slack = -1;
  return config;
}

// Policies as they are, few addresses a handle, small handles.
void add_arenas(std::vector<Config>* all) {
  all->push_back(with_policy("lean", Policy::kLean, 128 * kMiB, 2));
  all->push_back(with_policy("balanced", Policy::kBalanced, 512 * kMiB, 2));
  all->push_back(with_policy("balanced, one stream", Policy::kBalanced, 512 * kMiB, 1));
  all->back().completion = Completion::kClock;
  all->back().faults = false;
  all->push_back(with_policy("fast", Policy::kFast, 2 * kGiB, 3));
  all->push_back(make("one address a handle", 128 * kMiB, 2, Completion::kByHand));
  all->back().max_aliases = 1;
  all->push_back(make("two addresses a handle", 128 * kMiB, 3, Completion::kByHand));
  all->back().max_aliases = 2;
  all->push_back(make("two addresses, no pressure", 256 * kMiB, 1, Completion::kClock));
  all->back().max_aliases = 2;
  all->back().handle_size = 4 * kMiB;
  all->back().faults = false;
  all->back().pressure = false;
  all->push_back(make("no thread caches", 256 * kMiB, 3, Completion::kClock));
  all->back().thread_caches = false;
  all->push_back(make("every stream retired", 256 * kMiB, 4, Completion::kByHand));
  all->back().check_streams = false;
  all->push_back(with_policy("large caches, every stream retired", Policy::kFast, 64 * kGiB, 4));
  all->back().check_streams = false;
  all->push_back(with_policy("large caches", Policy::kFast, 64 * kGiB, 4));
  all->push_back(make("smallest handles", 128 * kMiB, 2, Completion::kClock));
  all->back().handle_size = 2 * kMiB;
  all->back().lag_us = 50;
}

std::vector<Config> make_configs() {
  std::vector<Config> all;
  all.push_back(make("one stream", 256 * kMiB, 1, Completion::kClock));
  all.back().faults = false;
  all.push_back(make("one stream by hand", 128 * kMiB, 1, Completion::kByHand));
  all.push_back(make("three streams by hand", 128 * kMiB, 3, Completion::kByHand));
  all.push_back(make("eight streams", 512 * kMiB, 8, Completion::kClock));
  all.push_back(make("tiny memory", 64 * kMiB, 2, Completion::kByHand));
  all.back().handle_size = 2 * kMiB;
  all.push_back(make("large handles, no lag", 2 * kGiB, 4, Completion::kClock));
  all.back().handle_size = 64 * kMiB;
  all.back().lag_us = 0;
  all.push_back(make("granules of 4 MiB", 256 * kMiB, 3, Completion::kClock));
  all.back().granularity = 4 * kMiB;
  all.push_back(make("tight limit", 512 * kMiB, 3, Completion::kByHand));
  all.back().limit = 96 * kMiB;
  all.push_back(make("generous slack, no pressure", 256 * kMiB, 3, Completion::kByHand));
  all.back().reserve_slack = 1.0;
  all.back().pressure = false;
  all.back().faults = false;
  all.push_back(make("no virtual memory", 256 * kMiB, 3, Completion::kByHand));
  all.back().virtual_memory = false;
  add_arenas(&all);
  return all;
}

}  // namespace

const std::vector<Config>& configs() {
  static const std::vector<Config> all = make_configs();
  return all;
}

Generator::Generator(std::uint64_t seed, const Config& config)
    : random_(seed), config_(config), weights_(kOps, 0) {
  const auto set = [this](Op op, double weight) {
    weights_[static_cast<std::size_t>(op)] = weight;
  };
  // Programs differ in how full they run: the share of frees moves around that of allocations.
  set(Op::kAlloc, 100);
  set(Op::kFree, 80 + static_cast<double>(below(60)));
  set(Op::kAllocInPool, 6);
  set(Op::kAllocSingle, 4);
  set(Op::kPin, 3);
  set(Op::kUnpin, 4);
  set(Op::kRecordStream, config.streams > 1 ? 15 : 1);
  set(Op::kLaunch, 60);
  set(Op::kCheckCanary, 10);
  const bool by_hand = config.completion == Completion::kByHand;
  set(Op::kAdvance, by_hand ? 0 : 30);
  set(Op::kComplete, by_hand ? 20 : 0);
  set(Op::kCompleteAll, by_hand ? 2 : 0);
  set(Op::kTrim, 2);
  set(Op::kBeginPool, 2);
  set(Op::kEndPool, 4);
  set(Op::kReleasePool, 2);
  set(Op::kRetireStream, 1);
  set(Op::kCheckAll, 1);
  if (config.captures) {
    set(Op::kBeginCapture, 2);
    set(Op::kEndCapture, 4);
    set(Op::kReplay, 8);
  }
  if (config.pressure) {
    set(Op::kSetLimit, 2);
    set(Op::kPhysical, 1);
    set(Op::kOthers, 2);
  }
  if (config.faults) {
    set(Op::kFail, 2);
  }
}

std::uint64_t Generator::below(std::uint64_t bound) {
  return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
}

// Log-uniform up to a quarter of the memory, now and then nearly all of it.
std::uint64_t Generator::size() {
  if (below(50) == 0) {
    return 1 + below(config_.memory.count());
  }
  const std::uint64_t top = config_.memory.count() / 8;
  std::uint64_t limit = 512;
  while (limit < top && below(12) != 0) {
    limit *= 2;
  }
  return 1 + below(limit);
}

Instruction Generator::next() {
  std::discrete_distribution<int> pick(weights_.begin(), weights_.end());
  Instruction i{static_cast<Op>(pick(random_)), 0, below(1U << 20), below(1U << 20)};
  switch (i.op) {
    case Op::kAlloc:
    case Op::kAllocInPool:
    case Op::kAllocSingle:
      i.size = size();
      break;
    case Op::kAdvance:
      i.size = below(800);
      break;
    case Op::kTrim:
      i.size = below(config_.memory.count() + 1);
      break;
    case Op::kPhysical:
    case Op::kOthers:
    case Op::kSetLimit:  // 0 = as it was at first
      i.size = below(3) != 0 ? 0 : below(config_.memory.count() + 1);
      break;
    case Op::kFail:
      i.a = below(kDriverCallCount);
      i.b = 1 + below(4);
      i.size = below(2);
      break;
    default:
      break;
  }
  return i;
}

std::string to_cpp(const Instruction& instruction) {
  return std::string("{Op::") + kNames[static_cast<std::size_t>(instruction.op)] + ", " +
         std::to_string(instruction.size) + ", " + std::to_string(instruction.a) + ", " +
         std::to_string(instruction.b) + "},";
}

}  // namespace nofrag::model
