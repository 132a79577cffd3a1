// What the loader has in memory, and that nothing is allocated while its lock is held.
#include "trace/stacks/loaded_modules.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trace/stacks/module_table.h"

namespace {

// The calling thread is in a callback of dl_iterate_phdr's, which holds the loader's lock.
thread_local bool in_callback = false;
int callbacks = 0;
int allocations_in_callbacks = 0;

void* allocate(std::size_t size) {
  allocations_in_callbacks += in_callback ? 1 : 0;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

using Callback = int (*)(dl_phdr_info*, std::size_t, void*);
struct Wrapped {
  Callback callback;
  void* argument;
};
int call_wrapped(dl_phdr_info* info, std::size_t size, void* argument) {
  const auto& wrapped = *static_cast<Wrapped*>(argument);
  ++callbacks;
  in_callback = true;
  const int result = wrapped.callback(info, size, wrapped.argument);
  in_callback = false;
  return result;
}

}  // namespace

// The linker puts the first of these in the place of dl_iterate_phdr, and makes the second of dl_iterate_phdr itself.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
int __real_dl_iterate_phdr(Callback callback, void* argument);
int __wrap_dl_iterate_phdr(Callback callback, void* argument) {
  Wrapped wrapped{callback, argument};
  return __real_dl_iterate_phdr(&call_wrapped, &wrapped);
}
// NOLINTEND(bugprone-reserved-identifier)
}

void* operator new(std::size_t size) {
  return allocate(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace nofrag {
namespace {

namespace fs = std::filesystem;

TEST(LoadedModules, NothingIsAllocatedWhileTheLoadersLockIsHeld) {
  ModuleTable table;
  static_cast<void>(table.refresh());
  static_cast<void>(loader_changes());
  static_cast<void>(library_around(reinterpret_cast<std::uint64_t>(&::dlopen)));
  EXPECT_GT(callbacks, 2);
  EXPECT_EQ(allocations_in_callbacks, 0);
}

TEST(LoadedModules, EachIsToldOfHoweverManyCome) {
  constexpr int kMany = 60;
  LoadedModules loaded;
  const std::size_t before = loaded.read().size();
  EXPECT_GT(before, 2U) << "the program, the C library, the loader";
  EXPECT_EQ(loaded.read().front().path, "") << "the program";
  const fs::path folder =
      fs::path(testing::TempDir()) / ("loaded_modules_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  std::set<std::string> copies;
  std::vector<void*> handles;
  for (int i = 0; i < kMany; ++i) {
    const fs::path copy = folder / (std::string(100, 'x') + std::to_string(i) + ".so");
    fs::copy_file(STACK_PLUGIN_FIRST, copy);
    copies.insert(copy.string());
    handles.push_back(::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL));
    ASSERT_NE(handles.back(), nullptr) << ::dlerror();
  }
  std::set<std::string_view> ids;
  const std::vector<LoadedModules::Module>& now = loaded.read();
  EXPECT_EQ(now.size(), before + kMany);
  for (const LoadedModules::Module& module : now) {
    EXPECT_LT(module.range.begin, module.range.end);
    if (copies.erase(std::string(module.path)) == 1) {
      ids.insert(module.build_id);
      EXPECT_EQ(module.base, module.range.begin);
    }
  }
  EXPECT_TRUE(copies.empty()) << *copies.begin();
  EXPECT_EQ(ids.size(), 1U) << "copies of one file";
  EXPECT_FALSE(ids.begin()->empty());
  for (void* const handle : handles) {
    ::dlclose(handle);
  }
  EXPECT_EQ(loaded.read().size(), before);
  fs::remove_all(folder);
  EXPECT_EQ(allocations_in_callbacks, 0);
}

TEST(LoadedModules, CodeIsFoundInItsLibrary) {
  void* const library = ::dlopen(STACK_PLUGIN_FIRST, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto address = reinterpret_cast<std::uint64_t>(::dlsym(library, "call_back"));
  EXPECT_TRUE(library_around(address).holds(address));
  ::dlclose(library);
  EXPECT_EQ(library_around(reinterpret_cast<std::uint64_t>(&call_wrapped)), CodeRange{})
      << "the program itself is none";
  EXPECT_EQ(library_around(64), CodeRange{});
}

}  // namespace
}  // namespace nofrag
