// A -> B -> A keeps every event, for every pair of formats that can carry it.
#include <memory>
#include <random>

#include <nofrag/trace_format.h>

#include "samples.h"
#include "trace/exporters/exporter.h"
#include "trace/packed_format.h"
#include "trace/record/recording.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

struct Shape {
  std::uint64_t seed = 0;
  bool streams = true;
  bool all_freed = false;
  bool distinct_times = false;
  bool plain_ids = true;
};

Trace random_trace(const Shape& shape) {
  std::mt19937_64 random(shape.seed);
  TraceBuilder builder(TraceUnit::kEvent);
  std::vector<std::uint64_t> live;
  std::uint64_t time = random() % 1000;
  std::uint64_t next_id = 0;
  const std::uint64_t events = 1 + random() % 400;
  const auto stream = [&] { return shape.streams ? random() % 3 * 0x1234567 : 0; };
  const auto tick = [&] { time += shape.distinct_times ? 1 + random() % 9 : random() % 3; };
  const auto free_one = [&] {
    const std::size_t at = random() % live.size();
    EXPECT_TRUE(builder.add_free(time, live[at], 0, stream()));
    live[at] = live.back();
    live.pop_back();
  };
  for (std::uint64_t i = 0; i < events; ++i) {
    tick();
    if (!live.empty() && random() % 5 < 2) {
      free_one();
      continue;
    }
    const std::uint64_t size =
        random() % 8 == 0 ? random() % 3 : random() % (1ULL << (10 + random() % 24));
    EXPECT_TRUE(builder.add_allocation(time, next_id, size, stream()));
    live.push_back(next_id);
    next_id += shape.plain_ids ? 1 : 1 + random() % 7;
  }
  while (shape.all_freed && !live.empty()) {
    tick();
    free_one();
  }
  Trace trace = builder.finish(TraceFormat::kNofrag);
  for (std::size_t i = 0; i < trace.events.size(); i += 50) {
    trace.marks.push_back({TraceMark::Kind::kOutOfMemory, i, trace.events[i].time_us, 1 + i, 7});
  }
  if (random() % 2 == 0) {
    trace.site_names = {"job/train.py:7 step", "malloc", "(unknown) odd: name"};
    for (std::uint64_t block = 0; block < trace.allocations; ++block) {
      trace.sites.push_back(static_cast<std::uint32_t>(random() % 3));
    }
  }
  return trace;
}

std::string all_lines(const Trace& trace) {
  std::string text;
  append_csv(trace, 0, trace.events.size(), &text);
  return text;
}

std::string written(const std::function<bool(const ExportSink&)>& write) {
  std::string bytes;
  EXPECT_TRUE(write([&](std::string_view piece) {
    bytes += piece;
    return true;
  }));
  return bytes;
}

std::string to_packed(const Trace& trace) {
  return written([&](const ExportSink& sink) { return write_packed(trace, {}, sink); });
}
std::string to_torch(const std::vector<Trace>& traces) {
  return written([&](const ExportSink& sink) { return export_torch_snapshot(traces, sink); });
}
std::string to_minimalloc(const Trace& trace) {
  return written([&](const ExportSink& sink) { return export_minimalloc(trace, sink); });
}
Trace read_one(const std::string& bytes) {
  std::vector<Trace> traces = import_good(bytes, "written");
  EXPECT_EQ(traces.size(), 1U);
  return traces.empty() ? Trace() : traces[0];
}

constexpr std::uint64_t kSeeds = 60;

TEST(RoundTrip, NofragCsvAndBack) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Shape shape;
    shape.seed = seed;
    shape.plain_ids = false;
    const Trace trace = random_trace(shape);
    const std::string csv = std::string(kCsvHeader) + "\n" + all_lines(trace);
    EXPECT_EQ(all_lines(read_one(to_packed(trace))), all_lines(trace));
    EXPECT_EQ(all_lines(read_one(to_packed(read_one(csv)))), all_lines(trace));
  }
}

// Ids are numbered anew by a snapshot; times, sizes, streams, marks and sites are kept.
TEST(RoundTrip, TorchSnapshot) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Shape shape;
    shape.seed = seed;
    const Trace trace = random_trace(shape);
    const std::string pickle = to_torch({trace});
    const Trace back = read_one(pickle);
    EXPECT_EQ(all_lines(back), all_lines(trace));
    EXPECT_TRUE(back.warnings.empty()) << back.warnings[0];
    ASSERT_EQ(back.marks.size(), trace.marks.size());
    for (std::size_t i = 0; i < trace.marks.size(); ++i) {
      EXPECT_EQ(back.marks[i].event, trace.marks[i].event);
      EXPECT_EQ(back.marks[i].requested, trace.marks[i].requested);
    }
    ASSERT_EQ(back.sites.size(), trace.sites.size());
    for (std::size_t block = 0; block < trace.sites.size(); ++block) {
      EXPECT_EQ(back.site_names[back.sites[block]], trace.site_names[trace.sites[block]]);
    }
    EXPECT_EQ(to_torch({back}), pickle);
  }
}

TEST(RoundTrip, TorchSnapshotOfSeveralDevices) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Trace> traces;
    for (const std::uint64_t device : {0U, 3U, 4U}) {
      Shape shape;
      shape.seed = seed * 10 + device;
      traces.push_back(random_trace(shape));
      traces.back().device = device;
    }
    const std::vector<Trace> back = import_good(to_torch(traces), "written");
    ASSERT_EQ(back.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(back[i].device, traces[i].device);
      EXPECT_EQ(all_lines(back[i]), all_lines(traces[i]));
    }
  }
}

// One stream, all freed, times that order the events: all that a MiniMalloc instance can carry.
TEST(RoundTrip, Minimalloc) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Shape shape;
    shape.seed = seed;
    shape.streams = false;
    shape.all_freed = true;
    shape.distinct_times = true;
    shape.plain_ids = seed % 2 == 0;
    const Trace trace = random_trace(shape);
    ASSERT_TRUE(times_order_events(trace));
    EXPECT_EQ(all_lines(read_one(to_minimalloc(trace))), all_lines(trace));
  }
}

// Where times do not order the events their numbers do: order, sizes and peak are kept.
TEST(RoundTrip, MinimallocByNumber) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Shape shape;
    shape.seed = seed;
    shape.all_freed = true;
    const Trace trace = random_trace(shape);
    const Trace back = read_one(to_minimalloc(trace));
    ASSERT_EQ(back.events.size(), trace.events.size());
    EXPECT_EQ(back.peak_live, trace.peak_live);
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      EXPECT_EQ(back.events[i].size, trace.events[i].size);
      EXPECT_EQ(back.id_of(back.events[i].block), trace.id_of(trace.events[i].block));
      EXPECT_EQ(back.events[i].is_free(), trace.events[i].is_free());
    }
  }
}

// An instance goes through our formats unchanged.
TEST(RoundTrip, MinimallocThroughNofrag) {
  const std::string instance = sample_bytes("minimalloc_fuzz/minimalloc.4096.csv");
  EXPECT_EQ(to_minimalloc(read_one(to_packed(read_one(instance)))), instance);
}

TEST(Perfetto, CountsWhatIsLive) {
  TraceBuilder builder(TraceUnit::kEvent);
  ASSERT_TRUE(builder.add_allocation(5, 0, 1000, 0));
  ASSERT_TRUE(builder.add_allocation(5, 1, 512, 0));
  ASSERT_TRUE(builder.add_free(5, 0, 0, 0));
  ASSERT_TRUE(builder.add_free(9, 1, 0, 0));
  Trace trace = builder.finish(TraceFormat::kCsv);
  trace.marks.push_back({TraceMark::Kind::kOutOfMemory, 3, 7, 4096, 12});
  const std::string text =
      written([&](const ExportSink& sink) { return export_perfetto({trace}, sink); });
  for (const char* part :
       {"{\"ph\":\"C\",\"name\":\"live\",\"pid\":0,\"ts\":5,\"args\":{\"live\":1536}}",
        "{\"ph\":\"C\",\"name\":\"live\",\"pid\":0,\"ts\":5,\"args\":{\"live\":512}}",
        "{\"ph\":\"C\",\"name\":\"blocks\",\"pid\":0,\"ts\":5,\"args\":{\"blocks\":1}}",
        "{\"ph\":\"C\",\"name\":\"live\",\"pid\":0,\"ts\":9,\"args\":{\"live\":0}}",
        "{\"ph\":\"i\",\"name\":\"out of memory\",\"pid\":0,\"ts\":7,\"tid\":0,\"s\":\"p\","
        "\"args\":{\"requested\":4096,\"free\":12}}"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  }
}

TEST(Perfetto, ShowsWhatTheProgramSaid) {
  TraceBuilder builder(TraceUnit::kEvent);
  ASSERT_TRUE(builder.add_allocation(5, 0, 1000, 0));
  ASSERT_TRUE(builder.add_free(90, 0, 0, 0));
  Trace trace = builder.finish(TraceFormat::kNofrag);
  auto recording = std::make_shared<Recording>();
  recording->threads[3] = {77, "worker"};
  recording->marks.push_back({40, 1, 3, "say \"hi\"\n"});
  recording->marks.push_back(
      {41, 2, 3, "\xe2\x82\xac of \xe2\x82"});  // the last one is half a character
  recording->range_moments = {{10, 3, NOFRAG_TRACE_RANGE_PUSH, 0, "step"},
                              {20, 3, NOFRAG_TRACE_RANGE_START, 5, "copy"},
                              {30, 4, NOFRAG_TRACE_RANGE_END, 5, ""},
                              {60, 3, NOFRAG_TRACE_RANGE_POP, 0, ""}};
  trace.recording = std::move(recording);
  const std::string text =
      written([&](const ExportSink& sink) { return export_perfetto({trace}, sink); });
  for (const char* part :
       {"{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":3,\"args\":{\"name\":\"worker\"}"
        "}",
        "{\"ph\":\"i\",\"name\":\"say "
        "\\\"hi\\\"\\u000a\",\"pid\":0,\"ts\":40,\"tid\":3,\"s\":\"p\"}",
        "\"name\":\"\xe2\x82\xac of \\ufffd\\ufffd\"",
        "{\"ph\":\"X\",\"name\":\"step\",\"pid\":0,\"ts\":10,\"tid\":3,\"dur\":50}",
        "{\"ph\":\"b\",\"name\":\"copy\",\"pid\":0,\"ts\":20,\"tid\":3,\"cat\":\"range\",\"id\":1}",
        "{\"ph\":\"e\",\"name\":\"copy\",\"pid\":0,\"ts\":30,\"tid\":3,\"cat\":\"range\",\"id\":"
        "1}"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  }
}

// Every frame of a site, where the trace has them; none where its stack was not sampled.
TEST(TorchSnapshot, CarriesWholeStacks) {
  TraceBuilder builder(TraceUnit::kEvent);
  ASSERT_TRUE(builder.add_allocation(5, 0, 1000, 0));
  ASSERT_TRUE(builder.add_allocation(6, 1, 2000, 0));
  Trace trace = builder.finish(TraceFormat::kNofrag);
  trace.site_names = {"job/model.py:31 forward", "(not sampled)"};
  trace.site_frames = {{"libjob.so!load(int, int)", "/home/me/job/model.py:31 forward"}, {}};
  trace.sites = {0, 1};
  const std::string pickle = to_torch({trace});
  EXPECT_NE(pickle.find("libjob.so!load(int, int)"), std::string::npos);
  const Trace back = read_one(pickle);
  EXPECT_EQ(back.site_names[back.sites[0]], "job/model.py:31 forward");
  EXPECT_EQ(back.site_names[back.sites[1]], "(unknown)");
}

}  // namespace
}  // namespace nofrag
