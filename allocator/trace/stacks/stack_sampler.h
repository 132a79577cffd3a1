// StackSampler: which allocations a recording keeps the call stack of, and the number of that stack.
//
// Every allocation of at least so many bytes, and of the others one in N of each thread on average: at random
// distances, so that a loop whose length divides N shows all its call sites.
// Owns: the table of stacks; rows that define new ones, until the recorder's writer takes them.
// Layer: trace. Units: bytes as requested.
// Invariants: a number is defined in the rows before any event with it can be in the recorder's hands; a stack is
// named by modules that were loaded when it was taken, and keeps its number while those stay, whatever else comes and
// goes. Memory is bounded: what finds no room is counted.
// Threads: site_of by any, inside the allocator's locks too; it waits for no lock that is held while memory is
// allocated, and for none of Python's. take_rows and look_for_python by the writer.
// Failure: site 0. Cost: site_of a few instructions for an allocation whose turn it is not; else about 0.3 us a native
// frame and 0.1 us a frame of Python's, and once a stack a look at each of its modules.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "trace/stacks/module_table.h"
#include "trace/stacks/python_stack.h"
#include "trace/stacks/stack_table.h"
#include "trace/stacks/unloaded_code.h"

namespace nofrag {

struct StackSettings {
  std::uint32_t every = 0;                            // 0: no stacks
  std::uint64_t from_bytes = std::uint64_t{1} << 20;  // always from this size on
};

class StackSampler {
 public:
  static constexpr std::size_t kMostNative = 32;
  static constexpr std::size_t kMostPython = 32;

  // What a thread keeps between its allocations.
  struct Thread {
    explicit Thread(std::uint64_t seed) : random(seed * 2 + 1) {}
    std::uint64_t random;
    std::uint64_t left = 1;  // allocations until its next turn
    bool inside = false;
    std::array<std::uint64_t, kMostNative> native{};
    std::string python;
  };

  explicit StackSampler(StackSettings settings);

  // 0: the allocation's stack is not kept.
  [[nodiscard]] std::uint32_t site_of(Thread& thread, std::uint64_t size) {
    if (size < settings_.from_bytes && --thread.left != 0) [[likely]] {
      return 0;
    }
    return capture(thread, size);
  }

  struct Rows {
    std::string modules;
    std::size_t module_count = 0;
    std::string stacks;
    std::size_t stack_count = 0;
    std::uint64_t lost = 0;  // in all: allocations whose stack found no room
  };
  Rows take_rows();
  // An interpreter may have come since.
  void look_for_python();

 private:
  std::uint32_t capture(Thread& thread, std::uint64_t size);
  std::uint32_t add(
      Thread& thread, std::uint64_t hash, std::size_t native, std::size_t python, unsigned flags);
  void follow_loader();
  void refresh(LoaderChanges now);

  const StackSettings settings_;
  const CodeRange own_code_;
  PythonStack python_;
  StackTable table_;
  std::atomic<std::uint64_t> lost_{0};
  // Sync: written under mutex_, `unloaded_` last.
  UnloadedCode unloaded_code_;
  std::atomic<std::uint64_t> unloaded_{0};
  std::atomic<std::uint64_t> loaded_{0};
  std::atomic<bool> sliced_{false};  // no native stack can be read

  std::mutex mutex_;
  ModuleTable modules_;        // Sync: mutex_
  LoaderChanges seen_;         // Sync: mutex_
  std::string rows_;           // Sync: mutex_
  std::size_t row_count_ = 0;  // Sync: mutex_

  std::uint64_t looked_at_ = 0;  // the writer's: how much was loaded when it looked for Python
};

}  // namespace nofrag
