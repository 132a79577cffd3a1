// Traces, snapshots and what is told of memory: history in all its modes, trackers, profiler.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "native_fixture.h"

namespace nofrag::test {
namespace {

using torch_cuda::RecordContext;
using Actions = std::vector<TraceEntry::Action>;

// A stack that says where it was taken.
struct Stack : c10::GatheredContext {
  explicit Stack(int at) : place(at) {}
  int place;
};
int place_now = 0;

std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<Stack>(place_now);
}

int place_of(const std::shared_ptr<c10::GatheredContext>& context) {
  const auto* stack = dynamic_cast<const Stack*>(context.get());
  return stack != nullptr ? stack->place : -1;
}

class NativeHistoryTest : public NativeTest {
 public:
  static void record(RecordContext when,
                     std::size_t most = 1000,
                     const std::vector<std::string>& skipped = {},
                     bool clear = true) {
    allocator().recordHistory(
        true, when == RecordContext::NEVER ? nullptr : &gather, most, when, clear, skipped);
  }
  static void use(int place) {
    place_now = place;
    c10::DataPtr data = allocator().allocate(kMiB);
    place_now = place + 1;
    data.clear();
  }
  static Actions actions(const std::vector<TraceEntry>& entries) {
    Actions found;
    for (const TraceEntry& entry : entries) {
      found.push_back(entry.action_);
    }
    return found;
  }
  // The stack of the last entry of this kind; -2: none.
  static int place(const std::vector<TraceEntry>& entries, TraceEntry::Action action) {
    int found = -2;
    for (const TraceEntry& entry : entries) {
      found = entry.action_ == action ? place_of(entry.context_) : found;
    }
    return found;
  }
};

TEST_F(NativeHistoryTest, IsOffUntilAskedFor) {
  EXPECT_FALSE(allocator().isHistoryEnabled());
  use(1);
  EXPECT_TRUE(trace().empty());
  record(RecordContext::NEVER);
  EXPECT_TRUE(allocator().isHistoryEnabled());
  EXPECT_NE(message_of(
                [] { allocator().recordHistory(true, nullptr, 10, RecordContext::ALL, true, {}); }),
            "");
}

TEST_F(NativeHistoryTest, EventsComeInTheirOrder) {
  record(RecordContext::NEVER);
  use(1);
  EXPECT_EQ(actions(trace()),
            (Actions{TraceEntry::SEGMENT_ALLOC,
                     TraceEntry::ALLOC,
                     TraceEntry::FREE_REQUESTED,
                     TraceEntry::FREE_COMPLETED}));
  allocator().emptyCache({0, 0});
  const std::vector<TraceEntry> all = trace();
  EXPECT_EQ(all.back().action_, TraceEntry::SEGMENT_FREE);
  EXPECT_EQ(all.back().addr_, all.front().addr_);
  EXPECT_EQ(all.back().size_, all.front().size_);
  EXPECT_EQ(all[4].action_, TraceEntry::SNAPSHOT);  // of the first look
  EXPECT_EQ(all[1].size_, kMiB);
  EXPECT_EQ(all[1].addr_, all[2].addr_);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.time_.t_ < b.time_.t_;
  }));
}

struct Mode {
  RecordContext when;
  int alloc;
  int free;
  int segment_free;
  int block;
};

TEST_F(NativeHistoryTest, EachModeKeepsTheStacksItPromises) {
  // -1: an entry without a stack.
  const Mode modes[] = {{RecordContext::NEVER, -1, -1, -1, -1},
                        {RecordContext::STATE, -1, -1, -1, 5},
                        {RecordContext::ALLOC, 1, 1, -1, 5},
                        {RecordContext::ALL, 1, 2, 9, 5}};
  for (const Mode& mode : modes) {
    SCOPED_TRACE(static_cast<int>(mode.when));
    allocator().emptyCache({0, 0});
    record(mode.when);
    use(1);
    place_now = 9;
    allocator().emptyCache({0, 0});
    const std::vector<TraceEntry> entries = trace();
    EXPECT_EQ(place(entries, TraceEntry::ALLOC), mode.alloc);
    EXPECT_EQ(place(entries, TraceEntry::FREE_REQUESTED), mode.free);
    EXPECT_EQ(place(entries, TraceEntry::FREE_COMPLETED), mode.free);
    EXPECT_EQ(place(entries, TraceEntry::SEGMENT_FREE), mode.segment_free);
    place_now = 5;
    const c10::DataPtr held = allocator().allocate(kMiB);
    for (const SegmentInfo& segment : segments()) {
      for (const auto& block : segment.blocks) {
        EXPECT_EQ(place_of(block.context_when_allocated), block.allocated ? mode.block : -1);
      }
      EXPECT_EQ(place_of(segment.context_when_allocated), mode.block);
    }
  }
}

TEST_F(NativeHistoryTest, TheRingKeepsTheLastEntries) {
  record(RecordContext::NEVER, 6);
  for (int i = 0; i < 20; ++i) {
    use(i);
  }
  allocator().raw_delete(allocator().raw_alloc(3 * kMiB));
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(entries.size(), 6U);
  EXPECT_EQ(entries.back().action_, TraceEntry::FREE_COMPLETED);
  EXPECT_EQ(entries.back().size_, 3 * kMiB);
}

TEST_F(NativeHistoryTest, OldEntriesStayIfTheyAreNotToBeCleared) {
  record(RecordContext::NEVER);
  use(1);
  const std::size_t before = trace().size();
  record(RecordContext::NEVER, 500, {}, false);
  EXPECT_EQ(trace().size(), before + 1);  // and a look at it
  record(RecordContext::NEVER, 500, {}, true);
  EXPECT_TRUE(trace().empty());
  record(RecordContext::NEVER, 2, {}, false);
  use(1);
  EXPECT_EQ(trace().size(), 2U);
}

TEST_F(NativeHistoryTest, ActionsMayBeSkipped) {
  record(RecordContext::NEVER, 100, {"alloc", "segment_alloc", "snapshot"});
  use(1);
  EXPECT_EQ(actions(trace()), (Actions{TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}));
  EXPECT_NE(message_of([] { record(RecordContext::NEVER, 100, {"aloc"}); }).find("aloc"),
            std::string::npos);
}

TEST_F(NativeHistoryTest, EntriesCarryWhatTheThreadSaidOfItself) {
  record(RecordContext::NEVER);
  std::string compiled = "frame 7";
  allocator().pushCompileContext(compiled);
  allocator().setUserMetadata("phase one");
  EXPECT_EQ(allocator().getUserMetadata(), "phase one");
  void* const block = allocator().raw_alloc(kMiB);
  allocator().popCompileContext();
  allocator().setUserMetadata("");
  allocator().raw_delete(block);
  const std::vector<TraceEntry> entries = trace();
  const auto alloc = std::find_if(entries.begin(), entries.end(), [](const TraceEntry& e) {
    return e.action_ == TraceEntry::ALLOC;
  });
  ASSERT_NE(alloc, entries.end());
  EXPECT_EQ(alloc->compile_context_, "frame 7");
  EXPECT_EQ(alloc->user_metadata_, "phase one");
  EXPECT_EQ(entries.back().compile_context_, "N/A");
  EXPECT_EQ(entries.back().user_metadata_, "");
  allocator().popCompileContext();  // one too many is no fault
}

TEST_F(NativeHistoryTest, AnnotationsAreKeptBesideTheTrace) {
  allocator().recordAnnotation({{"name", "before anybody asked"}});
  record(RecordContext::NEVER, 2);
  for (const char* name : {"a", "b", "c"}) {
    allocator().recordAnnotation({{"name", name}, {"stage", "start"}});
  }
  const auto kept = allocator().snapshot({0, 0}, true).external_annotations;
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[0].metadata_.at("name"), "b");
  EXPECT_EQ(kept[1].metadata_.at("name"), "c");
}

TEST_F(NativeHistoryTest, SnapshotsMayLeaveTracesOut) {
  record(RecordContext::NEVER);
  use(1);
  EXPECT_TRUE(allocator().snapshot({0, 0}, false).device_traces.empty());
  EXPECT_EQ(allocator().snapshot({0, 0}, true).device_traces.size(), 1U);
  c10::CachingAllocator::setAllocatorSettings("garbage_collection_threshold:0.5");
  const auto settings = allocator().snapshot({0, 0}, true).config_metadata;
  EXPECT_EQ(settings.last_allocator_settings, "garbage_collection_threshold:0.5");
  EXPECT_EQ(settings.garbage_collection_threshold, 0.5);
  c10::CachingAllocator::setAllocatorSettings("");
}

TEST_F(NativeHistoryTest, TrackersHearEveryMappingOfMemoryByItsAddress) {
  struct Heard {
    std::map<std::size_t, std::size_t> mapped;
    int allocs = 0;
  };
  static Heard heard;  // trackers cannot be taken off again
  allocator().attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == TraceEntry::SEGMENT_ALLOC || entry.action_ == TraceEntry::SEGMENT_MAP) {
      EXPECT_TRUE(heard.mapped.emplace(entry.addr_, entry.size_).second) << "mapped twice";
    } else if (entry.action_ == TraceEntry::SEGMENT_FREE ||
               entry.action_ == TraceEntry::SEGMENT_UNMAP) {
      EXPECT_EQ(heard.mapped.erase(entry.addr_), 1U) << "unmapped without being mapped";
    }
    heard.allocs += entry.action_ == TraceEntry::ALLOC ? 1 : 0;
  });
  std::vector<c10::DataPtr> held;
  for (std::size_t i = 0; i < 40; ++i) {
    held.push_back(allocator().allocate((1 + i % 7) * 5 * kMiB));
    if (i % 3 == 2) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i % held.size()));
    }
  }
  for (const c10::DataPtr& data : held) {
    const auto address = reinterpret_cast<std::size_t>(data.get());
    const auto after = heard.mapped.upper_bound(address);
    ASSERT_NE(after, heard.mapped.begin());
    const auto& [begin, size] = *std::prev(after);
    EXPECT_LT(address, begin + size) << "a block at an address that nobody heard of";
  }
  EXPECT_EQ(heard.allocs, 40);
  held.clear();
  allocator().emptyCache({0, 0});
  EXPECT_TRUE(heard.mapped.empty());
}

// As libraries do that register memory: they allocate and free some of their own, and ask.
TEST_F(NativeHistoryTest, ATrackerMayCallTheAllocator) {
  std::vector<std::pair<TraceEntry::Action, std::size_t>> heard;
  bool nested = false;
  tracker_of_test() = [&](const TraceEntry& entry) {
    const bool block =
        entry.action_ == TraceEntry::ALLOC || entry.action_ == TraceEntry::FREE_COMPLETED;
    if (block) {
      heard.emplace_back(entry.action_, entry.size_);
    }
    if (!std::exchange(nested, true)) {
      allocator().raw_delete(allocator().raw_alloc(64 * kMiB));
      EXPECT_NE(segments().size(), 0U);
      nofrag_device_stats numbers{};
      numbers.struct_size = sizeof numbers;
      EXPECT_EQ(nofrag_get_stats(0, &numbers), NOFRAG_OK);
      allocator().emptyCache({0, 0});
    }
  };
  void* const block = allocator().raw_alloc(kMiB);
  const std::vector<std::pair<TraceEntry::Action, std::size_t>> expected{
      {TraceEntry::ALLOC, kMiB},
      {TraceEntry::ALLOC, 64 * kMiB},
      {TraceEntry::FREE_COMPLETED, 64 * kMiB}};
  EXPECT_EQ(heard, expected) << "all of it, in order, when the call returns";
  allocator().raw_delete(block);
  EXPECT_EQ(heard.size(), 4U);
  tracker_of_test() = nullptr;
}

TEST_F(NativeHistoryTest, ATrackerThatThrowsUndoesNothing) {
  tracker_of_test() = [](const TraceEntry&) { TORCH_CHECK(false, "from the tracker"); };
  c10::DataPtr data;
  EXPECT_NO_THROW(data = allocator().allocate(kMiB));
  EXPECT_NE(data.get(), nullptr);
  data.clear();  // in a destructor it would end the process
  EXPECT_THROW(allocator().allocate(200 * kGiB), c10::OutOfMemoryError);
  tracker_of_test() = nullptr;
}

// Whoever is given memory may rely on what trackers do with it.
TEST_F(NativeHistoryTest, TrackersKnowABlockWhenItsThreadDoes) {
  std::mutex mutex;
  std::set<std::size_t> live;
  std::atomic<int> inside{0};
  std::atomic<int> wrong{0};
  tracker_of_test() = [&](const TraceEntry& entry) {
    wrong += inside++ == 0 ? 0 : 1;                              // one at a time
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // others come meanwhile
    {
      const std::lock_guard lock(mutex);
      if (entry.action_ == TraceEntry::ALLOC) {
        wrong += live.insert(entry.addr_).second ? 0 : 1;
      } else if (entry.action_ == TraceEntry::FREE_COMPLETED) {
        wrong += live.erase(entry.addr_) == 1 ? 0 : 1;
      }
    }
    --inside;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < 100; ++i) {
        void* const block = allocator().raw_alloc((1 + i % 5) * kMiB);
        {
          const std::lock_guard lock(mutex);
          wrong += static_cast<int>(1 - live.count(reinterpret_cast<std::size_t>(block)));
        }
        allocator().raw_delete(block);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_TRUE(live.empty());
  tracker_of_test() = nullptr;
}

// Others go on meanwhile, without waiting for trackers (calls that are not PyTorch's). The thread that tells comes back
// all the same.
TEST_F(NativeHistoryTest, WhoTellsTrackersDoesNotTellForOthersWithoutEnd) {
  constexpr int kMost = 50;
  int heard = 0;
  tracker_of_test() = [&heard](const TraceEntry&) {
    if (++heard < kMost) {
      std::thread([] {
        EXPECT_EQ(nofrag_free(nofrag_malloc(64 * kMiB, 0, nullptr)), NOFRAG_OK);
        EXPECT_EQ(nofrag_trim(0, 0, nullptr), NOFRAG_OK);
      }).join();
    }
  };
  void* const block = allocator().raw_alloc(3 * kMiB);
  EXPECT_LE(heard, 4) << "its own, and what was there before";
  const int before = heard;
  allocator().raw_delete(block);  // tells the rest
  EXPECT_GT(heard, before + 1);
  tracker_of_test() = nullptr;
  allocator().emptyCache({0, 0});
}

// What torch.profiler with profile_memory sees.
struct Profile : c10::MemoryReportingInfoBase {
  struct Report {
    void* address;
    std::int64_t change;
    std::size_t allocated;
    std::size_t reserved;
  };
  std::vector<Report> reports;
  std::int64_t refused = 0;
  void reportMemoryUsage(void* address,
                         std::int64_t change,
                         std::size_t allocated,
                         std::size_t reserved,
                         c10::Device /*device*/) override {
    reports.push_back({address, change, allocated, reserved});
  }
  void reportOutOfMemory(std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    refused = size;
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
};

TEST_F(NativeHistoryTest, TheProfilerSeesAllocationsFreesAndRefusals) {
  const auto profile = std::make_shared<Profile>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profile);
    c10::DataPtr data = allocator().allocate(5 * kMiB);
    data.clear();
    EXPECT_THROW(allocator().allocate(200 * kGiB), c10::OutOfMemoryError);
  }
  ASSERT_EQ(profile->reports.size(), 2U);
  EXPECT_EQ(profile->reports[0].change, static_cast<std::int64_t>(5 * kMiB));
  EXPECT_EQ(profile->reports[1].change, -static_cast<std::int64_t>(5 * kMiB));
  EXPECT_EQ(profile->reports[0].address, profile->reports[1].address);
  EXPECT_EQ(profile->reports[0].allocated, 5 * kMiB);
  EXPECT_GE(profile->reports[0].reserved, 5 * kMiB);
  EXPECT_EQ(profile->reports[1].allocated, 0U);
  EXPECT_EQ(profile->refused, static_cast<std::int64_t>(200 * kGiB));
}

}  // namespace
}  // namespace nofrag::test
