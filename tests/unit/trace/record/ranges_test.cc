// A program's own ranges: recorded, read, paired and written again.
#include "trace/record/ranges.h"

#include <chrono>
#include <thread>

#include "recording_file.h"
#include "trace/packed_codec.h"
#include "trace/record/record_codec.h"
#include "trace/record/record_rewriter.h"
#include "trace/record/recorder.h"

namespace nofrag {
namespace {

// "name begin-end", microseconds.
std::string story_of(const Recording& recording, std::uint64_t end_us) {
  std::string text;
  for (const RecordedRange& range : ranges_of(recording, end_us)) {
    text += (text.empty() ? "" : ", ") + range.name + " " + std::to_string(range.begin_us) + "-" +
            std::to_string(range.end_us);
  }
  return text;
}

struct Moment {
  std::uint64_t us;
  std::uint64_t thread;
  std::uint64_t kind;
  std::uint64_t key;
  const char* name;
};

std::string rows_of(const std::vector<Moment>& moments) {
  std::string rows;
  for (const Moment& moment : moments) {
    append_varint(moment.us * 1000, &rows);
    append_varint(moment.thread, &rows);
    append_varint(moment.kind, &rows);
    append_varint(moment.key, &rows);
    append_text(moment.name, &rows);
  }
  return rows;
}

// A recording from 0 to 100 us.
Trace with_ranges(const std::vector<Moment>& moments) {
  RecordingFile file;
  EXPECT_TRUE(file.output().set_info({{"times_from_0", "yes"}}));
  EXPECT_TRUE(file.output().add_block(NOFRAG_TRACE_BLOCK_RANGES, rows_of(moments), moments.size()));
  file.add({an_alloc(0, 0x1000), a_free(100'000, 0x1000)});
  Trace trace;
  const auto error = read_recording(file.finish(), &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

constexpr std::uint64_t kPush = NOFRAG_TRACE_RANGE_PUSH;
constexpr std::uint64_t kPop = NOFRAG_TRACE_RANGE_POP;
constexpr std::uint64_t kStart = NOFRAG_TRACE_RANGE_START;
constexpr std::uint64_t kEnd = NOFRAG_TRACE_RANGE_END;

const std::vector<Moment> kStory = {
    {5, 1, kPop, 0, ""},  // of a range that began before the recording
    {10, 1, kPush, 0, "step"},
    {20, 1, kPush, 0, "forward"},
    {21, 2, kPush, 0, "other thread"},
    {22, 1, kPush, 7, "other domain"},
    {25, 1, kPop, 0, ""},
    {30, 1, kStart, 9, "copy"},
    {40, 2, kEnd, 9, ""},
    {45, 1, 99, 0, "of a later version"},
    {50, 1, kPop, 7, ""},
    {60, 1, kPop, 0, ""},
};
constexpr const char* kTold =
    "step 10-60, forward 20-25, other thread 21-100, other domain 22-50, copy 30-40";

TEST(Ranges, ArePairedByThreadAndDomainOrByNumber) {
  EXPECT_EQ(story_of(*with_ranges(kStory).recording, 100), kTold);
}

TEST(Ranges, ComeBackFromARewrittenFile) {
  const Trace trace = with_ranges(kStory);
  std::string bytes;
  ASSERT_TRUE(write_recording(trace, [&bytes](std::string_view more) {
    bytes.append(more);
    return true;
  }));
  Trace back;
  ASSERT_FALSE(read_recording(bytes, &back).has_value());
  EXPECT_EQ(story_of(*back.recording, 100), kTold);
}

TEST(Ranges, BrokenRowsAreRefusedWithTheirPlace) {
  const std::string rows = rows_of({{1, 1, kPush, 0, "a"}});
  for (const auto& [payload, items] :
       {std::pair(rows, std::size_t{2}),
        std::pair(rows.substr(0, rows.size() - 1), std::size_t{1}),
        std::pair(rows_of({{1, 70000, kPush, 0, "a"}}), std::size_t{1}),
        std::pair(rows_of({{1, 1, 1000, 0, "a"}}), std::size_t{1})}) {
    RecordingFile file;
    EXPECT_TRUE(file.output().add_block(NOFRAG_TRACE_BLOCK_RANGES, payload, items));
    file.add({an_alloc(1, 0x1000)});
    Trace trace;
    const auto error = read_recording(file.finish(), &trace);
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(error->offset.has_value());
    EXPECT_NE(error->found.find("broken ranges"), std::string::npos) << error->found;
  }
}

// A program may mark for long before it allocates again.
TEST(Ranges, AreWrittenWithoutAnyAllocation) {
  const std::string path = temporary_path("ranges");
  RecorderSettings settings;
  settings.path = path;
  std::string problem;
  const std::unique_ptr<Recorder> recorder = Recorder::start(std::move(settings), &problem);
  ASSERT_NE(recorder, nullptr) << problem;
  AllocatorEvent event;
  event.kind = EventKind::kAlloc;
  event.address = VirtAddr(0x1000);
  event.size = Bytes(512);
  recorder->on_event(event);
  constexpr std::size_t kRanges = 100'000;
  for (std::size_t i = 0; i < kRanges; ++i) {
    recorder->range(NOFRAG_TRACE_RANGE_PUSH, 0, "range");
    recorder->range(NOFRAG_TRACE_RANGE_POP, 0, {});
    if (i % 5'000 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
  }
  recorder->stop(NOFRAG_TRACE_STOP_ASKED);
  Trace trace;
  ASSERT_FALSE(load_trace(path, TraceFormat::kAuto, &trace).has_value());
  std::remove(path.c_str());
  EXPECT_EQ(ranges_of(*trace.recording, UINT64_MAX).size(), kRanges);
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
}

TEST(Ranges, OfManyThreadsAreRecorded) {
  const std::string path = temporary_path("ranges");
  RecorderSettings settings;
  settings.path = path;
  std::string problem;
  const std::unique_ptr<Recorder> recorder = Recorder::start(std::move(settings), &problem);
  ASSERT_NE(recorder, nullptr) << problem;
  AllocatorEvent event;
  event.kind = EventKind::kAlloc;
  event.address = VirtAddr(0x1000);
  event.size = Bytes(512);
  recorder->on_event(event);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder] {
      for (int i = 0; i < 500; ++i) {
        recorder->range(NOFRAG_TRACE_RANGE_PUSH, 0, "outer");
        recorder->range(NOFRAG_TRACE_RANGE_PUSH, 0, "inner");
        recorder->range(NOFRAG_TRACE_RANGE_POP, 0, {});
        recorder->range(NOFRAG_TRACE_RANGE_POP, 0, {});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  recorder->stop(NOFRAG_TRACE_STOP_ASKED);
  Trace trace;
  ASSERT_FALSE(load_trace(path, TraceFormat::kAuto, &trace).has_value());
  std::remove(path.c_str());
  const auto ranges = ranges_of(*trace.recording, UINT64_MAX);
  ASSERT_EQ(ranges.size(), 4000U);
  for (const RecordedRange& range : ranges) {
    EXPECT_NE(range.end_us, UINT64_MAX);
  }
  EXPECT_TRUE(trace.warnings.empty());
}

}  // namespace
}  // namespace nofrag
