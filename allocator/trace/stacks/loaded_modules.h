// LoadedModules: the program and the libraries that the loader has in memory, read while its lock is held.
//
// Owns: storage that is made before the lock is taken, and kept for the next reading. Layer: trace. Units: addresses.
// Invariants: nothing is allocated while the loader's lock is held: whoever allocates may wait for a lock that another
// thread holds while it waits for the loader's. Names and build ids are copied under the lock, as a module may be
// unloaded, and its name freed, right behind it.
// Threads: callers lock; library_around and loader_changes by any. The loader's lock that dl_iterate_phdr takes is not
// the one under which dlopen runs constructors: it can be waited for anywhere.
// Failure: no host memory ends as std::bad_alloc, outside the lock. Cost: a look at each module; twice where more has
// come than there was room for.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/stacks/native_stack.h"

namespace nofrag {

// How often the loader has loaded and unloaded something.
struct LoaderChanges {
  std::uint64_t loaded = 0;
  std::uint64_t unloaded = 0;
  bool operator==(const LoaderChanges&) const = default;
};
LoaderChanges loader_changes();

// Where the code is that `address` is in: of a library. Empty for the program itself.
CodeRange library_around(std::uint64_t address);

class LoadedModules {
 public:
  LoadedModules() = default;
  LoadedModules(const LoadedModules&) = delete;
  LoadedModules& operator=(const LoadedModules&) = delete;

  // Valid until the next read().
  struct Module {
    CodeRange range;
    std::uint64_t base = 0;
    std::string_view path;  // as the loader has it: empty for the program
    std::string_view build_id;
  };

  // What is loaded now, in the loader's order.
  const std::vector<Module>& read();

 private:
  struct Raw {
    CodeRange range;
    std::uint64_t base = 0;
    std::size_t path_size = 0;
    std::size_t build_id_size = 0;
  };

  static int note_module(dl_phdr_info* info, std::size_t size, void* self);
  void note(const dl_phdr_info& info);
  [[nodiscard]] bool has_room() const {
    return found_ <= raw_.size() && bytes_found_ <= bytes_.size();
  }
  void copy(std::string_view text);

  // Found, whether there was room or not.
  std::size_t found_ = 0;
  std::size_t bytes_found_ = 0;
  std::vector<Raw> raw_;
  std::string bytes_;  // paths and build ids, one behind the other
  std::vector<Module> modules_;
};

}  // namespace nofrag
