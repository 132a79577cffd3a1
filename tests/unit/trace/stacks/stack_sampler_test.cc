// Which allocations have their stack taken, and what a stack is known by.
#include "trace/stacks/stack_sampler.h"

#include <dlfcn.h>

#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <nofrag/trace_format.h>

#include "trace/stacks/stack_rows.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kNever = UINT64_MAX;

struct Definitions {
  std::map<std::uint32_t, Recording::Module> modules;
  std::map<std::uint32_t, Recording::Stack> stacks;
  std::uint64_t lost = 0;

  void take(StackSampler& sampler) {
    const StackSampler::Rows rows = sampler.take_rows();
    std::string why;
    EXPECT_TRUE(
        decode_modules(rows.modules, static_cast<std::uint32_t>(rows.module_count), &modules, &why))
        << why;
    EXPECT_TRUE(decode_stacks(
        rows.stacks, static_cast<std::uint32_t>(rows.stack_count), modules, &stacks, &why))
        << why;
    lost = rows.lost;
  }
  // Is there a frame in a module whose path ends so?
  [[nodiscard]] bool is_through(std::uint32_t site, std::string_view module) const {
    for (const Recording::Stack::Native& frame : stacks.at(site).native) {
      if (frame.module != 0 && modules.at(frame.module).path.ends_with(module)) {
        return true;
      }
    }
    return false;
  }
};

[[gnu::noinline]] std::uint32_t one_place(StackSampler& sampler, StackSampler::Thread& thread) {
  const std::uint32_t site = sampler.site_of(thread, 100);
  __asm__ volatile("");
  return site;
}
[[gnu::noinline]] std::uint32_t other_place(StackSampler& sampler, StackSampler::Thread& thread) {
  const std::uint32_t site = sampler.site_of(thread, 100);
  __asm__ volatile("");
  return site;
}
// So many more frames of its own.
[[gnu::noinline]] std::uint32_t at_depth(StackSampler& sampler,
                                         StackSampler::Thread& thread,
                                         int depth) {
  const std::uint32_t site =
      depth == 0 ? sampler.site_of(thread, 100) : at_depth(sampler, thread, depth - 1);
  __asm__ volatile("");
  return site;
}

TEST(StackSampler, APlaceHasOneNumberAndAnotherPlaceAnother) {
  StackSampler sampler({1, kNever});
  StackSampler::Thread thread(1);
  std::set<std::uint32_t> sites;
  for (int i = 0; i < 100; ++i) {
    sites.insert(one_place(sampler, thread));
  }
  EXPECT_EQ(sites.size(), 1U);
  EXPECT_FALSE(sites.contains(0));
  EXPECT_FALSE(sites.contains(other_place(sampler, thread)));
  Definitions definitions;
  definitions.take(sampler);
  EXPECT_EQ(definitions.stacks.size(), 2U);
  EXPECT_FALSE(definitions.stacks.at(1).native.empty());
  definitions.take(sampler);
  EXPECT_EQ(definitions.stacks.size(), 2U) << "each is defined once";
}

TEST(StackSampler, OneInNOnAverageAndEveryLargeOne) {
  constexpr int kAllocations = 100'000;
  StackSampler sampler({100, 1 << 20});
  StackSampler::Thread thread(7);
  int small = 0;
  int large = 0;
  std::set<int> places;  // in a loop of 100
  for (int i = 0; i < kAllocations; ++i) {
    if (sampler.site_of(thread, 512) != 0) {
      ++small;
      places.insert(i % 100);
    }
    if (i % 1000 == 0) {
      large += sampler.site_of(thread, 1 << 20) != 0 ? 1 : 0;
    }
  }
  EXPECT_NEAR(small, kAllocations / 100, kAllocations / 1000);
  EXPECT_EQ(large, kAllocations / 1000);
  EXPECT_EQ(places.size(), 100U) << "a loop of N allocations hides none of its places";
}

TEST(StackSampler, DepthIsBoundedAndSaid) {
  StackSampler sampler({1, kNever});
  StackSampler::Thread thread(1);
  Definitions definitions;
  const std::uint32_t deep = at_depth(sampler, thread, 1000);
  definitions.take(sampler);
  EXPECT_EQ(definitions.stacks.at(deep).native.size(), StackSampler::kMostNative);
  EXPECT_NE(definitions.stacks.at(deep).flags & NOFRAG_TRACE_STACK_NATIVE_CUT, 0U);
}

TEST(StackSampler, ThreadsAgreeOnNumbers) {
  StackSampler sampler({1, kNever});
  constexpr std::size_t kThreads = 8;
  constexpr int kDepths = 24;
  std::vector<std::vector<std::uint32_t>> seen(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&sampler, &seen, t] {
      StackSampler::Thread thread(t);
      for (int round = 0; round < 50; ++round) {
        for (int depth = 0; depth < kDepths; ++depth) {
          const std::uint32_t site = at_depth(sampler, thread, depth);
          if (round == 0) {
            seen[t].push_back(site);
          } else {
            EXPECT_EQ(seen[t][static_cast<std::size_t>(depth)], site);
          }
        }
      }
    });
  }
  Definitions definitions;
  for (int i = 0; i < 100; ++i) {  // the writer, meanwhile
    definitions.take(sampler);
    sampler.look_for_python();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  definitions.take(sampler);
  for (const auto& sites : seen) {
    EXPECT_EQ(sites, seen.front());
    for (const std::uint32_t site : sites) {
      EXPECT_TRUE(definitions.stacks.contains(site));
    }
  }
}

TEST(StackTable, IsBounded) {
  constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15;
  StackTable table;
  for (std::uint64_t i = 1; i <= StackTable::kMostStacks; ++i) {
    ASSERT_EQ(table.add(i * kSpread), i);
  }
  EXPECT_EQ(table.add(1), 0U);
  EXPECT_EQ(table.find(1), 0U);
  EXPECT_EQ(table.find(77 * kSpread), 77U) << "what is there stays";
}

// ---- libraries that come and go

struct Call {
  StackSampler* sampler;
  StackSampler::Thread* thread;
  std::uint32_t site = 0;
};
void take_site(void* argument) {
  auto* const call = static_cast<Call*>(argument);
  call->site = call->sampler->site_of(*call->thread, 100);
}

std::uint32_t site_through(const char* library,
                           StackSampler& sampler,
                           StackSampler::Thread& thread) {
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << ::dlerror();
  using Entry = void (*)(void (*)(void*), void*);
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, "call_back"));
  Call call{&sampler, &thread};
  entry(&take_site, &call);
  ::dlclose(handle);
  return call.site;
}

// The second may be loaded where the first was: the same addresses, and other code.
TEST(StackSampler, AClosedLibraryIsNotTakenForTheNextOne) {
  StackSampler sampler({1, kNever});
  StackSampler::Thread thread(1);
  Definitions definitions;
  std::vector<std::uint32_t> sites;
  for (int i = 0; i < 8; ++i) {  // from one place, so that nothing else tells the stacks apart
    sites.push_back(
        site_through(i % 2 == 0 ? STACK_PLUGIN_FIRST : STACK_PLUGIN_SECOND, sampler, thread));
  }
  definitions.take(sampler);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    EXPECT_EQ(definitions.is_through(sites[i], STACK_PLUGIN_FIRST_NAME), i % 2 == 0) << i;
    EXPECT_EQ(definitions.is_through(sites[i], STACK_PLUGIN_SECOND_NAME), i % 2 == 1) << i;
  }
}

// A job that opens and closes a library now and then must not fill the table with what it had before.
TEST(StackSampler, StacksThroughWhatStaysKeepTheirNumbers) {
  constexpr std::size_t kTimes = 8;
  StackSampler sampler({1, kNever});
  StackSampler::Thread thread(1);
  std::set<std::uint32_t> staying;
  std::set<std::uint32_t> going;
  for (std::size_t i = 0; i < kTimes; ++i) {
    staying.insert(one_place(sampler, thread));
    going.insert(site_through(STACK_PLUGIN_FIRST, sampler, thread));
  }
  EXPECT_EQ(staying.size(), 1U);
  EXPECT_EQ(going.size(), kTimes) << "nobody knows that it was the same library each time";
}

TEST(UnloadedCode, OnlyWhatWasThereIsRenewed) {
  UnloadedCode unloaded;
  EXPECT_EQ(unloaded.generation_of(150), 0U);
  unloaded.add({100, 200});
  const std::uint64_t first = unloaded.generation_of(150);
  EXPECT_NE(first, 0U);
  EXPECT_EQ(unloaded.generation_of(99), 0U);
  EXPECT_EQ(unloaded.generation_of(200), 0U);
  unloaded.add({180, 300});  // what lay over a part of it
  EXPECT_EQ(unloaded.generation_of(150), first);
  EXPECT_NE(unloaded.generation_of(190), first);
  EXPECT_NE(unloaded.generation_of(250), 0U);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t before = unloaded.generation_of(190);
    unloaded.add({100, 200});
    EXPECT_NE(unloaded.generation_of(190), before);
  }
  EXPECT_EQ(unloaded.generation_of(99), 0U) << "the same range takes no more room";
}

TEST(UnloadedCode, WithMoreRangesThanHaveRoomEverythingIsRenewed) {
  UnloadedCode unloaded;
  const auto range = [](std::uint64_t i) { return CodeRange{i * 10, i * 10 + 10}; };
  for (std::uint64_t i = 0; i < UnloadedCode::kMostRanges; ++i) {
    unloaded.add(range(i));
  }
  const std::uint64_t elsewhere = UnloadedCode::kMostRanges * 10 + 5;
  EXPECT_EQ(unloaded.generation_of(elsewhere), 0U);
  std::set<std::uint64_t> seen{0};
  for (std::uint64_t i = 0; i < 5; ++i) {
    unloaded.add(range(UnloadedCode::kMostRanges + i));
    EXPECT_TRUE(seen.insert(unloaded.generation_of(elsewhere)).second);
    EXPECT_EQ(unloaded.generation_of(5), unloaded.generation_of(elsewhere));
  }
  unloaded.add(range(0));
  EXPECT_TRUE(seen.insert(unloaded.generation_of(5)).second);
}

// greenlet keeps parts of stacks elsewhere: whoever unwinds there reads what is no frame.
TEST(StackSampler, NoNativeStackIsReadWhereGreenletIsLoaded) {
  const std::string library = testing::TempDir() + "_greenlet.so";
  std::filesystem::copy_file(
      STACK_PLUGIN_FIRST, library, std::filesystem::copy_options::overwrite_existing);
  StackSampler sampler({1, kNever});
  StackSampler::Thread thread(1);
  EXPECT_NE(sampler.site_of(thread, 1), 0U);
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(sampler.site_of(thread, 1), 0U) << "there is no Python here, and nothing else to tell";
  ::dlclose(handle);
  EXPECT_NE(sampler.site_of(thread, 1), 0U);
}

TEST(ModuleTable, CodeOfNoModuleKeepsItsAddress) {
  ModuleTable table;
  EXPECT_TRUE(table.refresh().empty()) << "nothing had a number";
  const ModuleTable::Place nowhere = table.place(64);
  EXPECT_EQ(nowhere.module, 0U);
  EXPECT_EQ(nowhere.offset, 64U);
  const ModuleTable::Place here = table.place(reinterpret_cast<std::uint64_t>(&take_site));
  EXPECT_NE(here.module, 0U);
  std::string rows;
  EXPECT_EQ(table.take_rows(&rows), 1U);
  EXPECT_EQ(table.take_rows(&rows), 0U);
}

}  // namespace
}  // namespace nofrag
