// ModuleTable: the program and the libraries that the loader has in memory, and which one an address belongs to.
//
// Owns: a list of what is loaded; numbers of the modules that somebody asked for. Layer: trace.
// Units: addresses; a frame's offset is its address minus where the loader put the module, which is the address
// that the module's own symbol table has for it.
// Invariants: a number means one module for ever; of an address range that was unloaded and loaded again, the second
// has another number, and a refresh in between has said that the first is gone.
// Threads: callers lock (StackSampler). Failure: module 0. Cost: a look at all modules when one has come or gone; a
// binary search an address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/stacks/loaded_modules.h"
#include "trace/stacks/native_stack.h"

namespace nofrag {

class ModuleTable {
 public:
  struct Place {
    std::uint32_t module = 0;  // 0: none; the offset is then the address
    std::uint64_t offset = 0;
  };

  // Looks at what is loaded now. Where modules with a number were that are there no longer.
  [[nodiscard]] std::vector<CodeRange> refresh();
  Place place(std::uint64_t address);
  // Is greenlet loaded (gevent, eventlet)? It keeps parts of stacks elsewhere, and what lies where they were is no
  // frame: an unwinder that goes there may read anywhere.
  [[nodiscard]] bool slices_stacks() const { return slices_stacks_; }
  // The rows (of a MODULES block) of modules that were numbered since the last call; how many.
  std::size_t take_rows(std::string* rows);

 private:
  struct Module {
    CodeRange range;
    std::uint64_t base = 0;
    std::string path;
    std::string build_id;
    std::uint32_t number = 0;
  };

  LoadedModules loaded_;
  std::vector<Module> modules_;  // by address
  std::uint32_t last_number_ = 0;
  bool slices_stacks_ = false;
  std::string rows_;
  std::size_t row_count_ = 0;
};

}  // namespace nofrag
