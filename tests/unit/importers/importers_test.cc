#include "samples.h"

namespace nofrag {
namespace {

// The story that make_seeds.py's ring tells, with the blocks from before at the start.
constexpr const char* kRing =
    "0,a,0,2097152,0\n"
    "0,a,1,4194304,0\n"
    "0,a,2,3145728,0\n"
    "10,f,1,4194304,0\n"
    "20,a,3,1048576,21889\n"
    "30,f,3,1048576,21889\n"
    "40,a,4,4194204,0\n"
    "60,f,2,3145728,0\n";

TEST(TorchSnapshot, RingOfEachVersion) {
  for (const char* name : {"torch_2.0.pickle", "torch_2.4.pickle", "torch_2.14.pickle"}) {
    const Trace trace = import_sample(std::string("torch_snapshot_fuzz/") + name);
    EXPECT_EQ(lines_of(trace), kRing) << name;
    EXPECT_EQ(trace.format, TraceFormat::kTorch);
    EXPECT_EQ(trace.events.front().time_us, 1'700'000'000'000'010U);
    EXPECT_EQ(trace.peak_live, Bytes(9U << 20)) << name;
    EXPECT_TRUE(has_note(trace, "2 blocks were there before the recording")) << name;
    EXPECT_TRUE(has_note(trace, "1 free waited for other streams")) << name;
  }
}

TEST(TorchSnapshot, OutOfMemoryIsAMark) {
  const Trace trace = import_sample("torch_snapshot_fuzz/torch_2.4.pickle");
  ASSERT_EQ(trace.marks.size(), 1U);
  EXPECT_EQ(trace.marks[0].event, 6U);
  EXPECT_EQ(trace.marks[0].requested, 999U << 20);
  EXPECT_EQ(trace.marks[0].free_bytes, 123U << 20);
  EXPECT_EQ(trace.marks[0].reserved_bytes, 20U << 20) << "by the segments, and the events since";
}

TEST(TorchSnapshot, SitesAreTheUsersOwnFrames) {
  const Trace trace = import_sample("torch_snapshot_fuzz/torch_2.4.pickle");
  ASSERT_EQ(trace.sites.size(), trace.allocations);
  const auto site = [&](std::size_t block) { return trace.site_names[trace.sites[block]]; };
  EXPECT_EQ(site(0), "job/train.py:77 step");
  EXPECT_EQ(site(1), "(unknown)");
  EXPECT_EQ(site(2), "job/model.py:31 forward");
  EXPECT_EQ(site(3), "job/train.py:77 step");
}

TEST(TorchSnapshot, StateOnly) {
  const Trace trace = import_sample("torch_snapshot_fuzz/torch_1.13.pickle");
  EXPECT_EQ(lines_of(trace), "0,a,0,2097152,0\n0,a,1,4194204,0\n");
  EXPECT_TRUE(has_note(trace, "no recorded events"));
}

TEST(TorchSnapshot, WithoutTimesEventsAreCounted) {
  const Trace trace = import_sample("torch_snapshot_fuzz/torch_no_times.pickle");
  EXPECT_EQ(trace.events.size(), 8U);
  EXPECT_EQ(trace.events[4].time_us, 4U);
  EXPECT_TRUE(has_note(trace, "no times"));
}

TEST(TorchSnapshot, SeveralDevices) {
  const std::string name = "torch_snapshot_fuzz/torch_two_devices.pickle.gz";
  const std::vector<Trace> traces = import_good(sample_bytes(name), name);
  ASSERT_EQ(traces.size(), 2U);
  EXPECT_EQ(lines_of(traces[0]), kRing);
  EXPECT_EQ(traces[0].device, 0U);
  EXPECT_EQ(traces[1].device, 2U);
  EXPECT_EQ(lines_of(traces[1]), "0,a,0,5242880,0\n1,a,1,512,0\n");
  EXPECT_EQ(traces[1].site_names, (std::vector<std::string>{"job/train.py:77 step", "(unknown)"}));
}

TEST(Kineto, StartStateComesFromTheTotals) {
  for (const char* name : {"kineto_fuzz/kineto.json", "kineto_fuzz/kineto_fractions.json.gz"}) {
    const Trace trace = import_sample(name);
    EXPECT_EQ(lines_of(trace),
              "0,a,0,4194304,0\n"
              "0,a,1,2097152,0\n"
              "0,a,2,3145728,0\n"
              "10,a,3,2097152,0\n"
              "20,f,0,4194304,0\n"
              "30,f,2,3145728,0\n")
        << name;
    EXPECT_EQ(trace.peak_live, Bytes(11U << 20)) << "the trace's own highest total";
    EXPECT_TRUE(has_note(trace, "streams are not recorded"));
    EXPECT_TRUE(has_note(trace, "1 event of host memory"));
    EXPECT_TRUE(has_note(trace, "2097152 bytes were live before"));
    EXPECT_FALSE(has_note(trace, "counts a peak"));
  }
}

TEST(Kineto, SaysWhenItsPeakIsNotReached) {
  std::string text = sample_bytes("kineto_fuzz/kineto.json");
  const std::string total = "\"Total Allocated\": 11534336";
  const std::size_t at = text.find(total);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, total.size(), "\"Total Allocated\": 21534336");
  EXPECT_TRUE(has_note(import_good(text, "k.json").at(0), "the source counts a peak of 21534336"));
}

TEST(Timeline, RawRowsArePairedBySizeAndCategory) {
  const Trace trace = import_sample("torch_timeline_fuzz/timeline.raw.json.gz");
  EXPECT_EQ(lines_of(trace),
            "0,a,0,4194304,0\n"
            "0,a,1,2097152,0\n"
            "1,a,2,2097152,0\n"
            "3,f,1,2097152,0\n"
            "4,a,3,1536,0\n"
            "4,f,3,1536,0\n"
            "5,f,2,2097152,0\n");
  EXPECT_TRUE(has_note(trace, "by size and category"));
}

TEST(Timeline, TotalsKeepTheirCurve) {
  const Trace trace = import_sample("torch_timeline_fuzz/timeline.json");
  EXPECT_EQ(trace.peak_live, Bytes(9U << 20));
  EXPECT_EQ(trace.live_at_end, Bytes(5U << 20));
  EXPECT_TRUE(has_note(trace, "totals only"));
}

TEST(Rmm, BothLayouts) {
  for (const char* name : {"rmm_fuzz/rmm.csv", "rmm_fuzz/rmm_old.dev0.csv"}) {
    const Trace trace = import_sample(name);
    EXPECT_EQ(lines_of(trace),
              "0,a,0,512,0\n"
              "0,a,1,1000,0\n"
              "20,a,2,2097152,94354554405840\n"
              "50,f,1,1000,0\n"
              "50,a,3,1024,1\n"
              "60,f,2,2097152,94354554405840\n"
              "70,f,0,512,0\n"
              "80,f,3,1024,1\n")
        << name << ": over midnight, a late free, a block from before";
    ASSERT_EQ(trace.marks.size(), 1U);
    EXPECT_EQ(trace.marks[0].requested, 99U << 20);
    EXPECT_FALSE(trace.marks[0].free_bytes.has_value());
    EXPECT_TRUE(has_note(trace, "1 free was recorded after"));
  }
}

TEST(Nsys, DeviceMemoryOfBothSchemas) {
  const Trace old = import_sample("nsys_fuzz/nsys_old.sqlite");
  EXPECT_EQ(lines_of(old), "0,a,0,4194304,0\n3,a,1,2097152,0\n7,f,0,4194304,0\n");
  EXPECT_TRUE(has_note(old, "1 event of host"));
  EXPECT_TRUE(has_note(old, "streams are not recorded"));
  const Trace now = import_sample("nsys_fuzz/nsys.sqlite");
  EXPECT_EQ(now.streams, std::vector<std::uint64_t>{7});
  EXPECT_FALSE(has_note(now, "streams are not recorded"));
}

TEST(Nsys, AClosedFileWithAWriteAheadLog) {
  std::string bytes = sample_bytes("nsys_fuzz/nsys.sqlite");
  bytes[18] = bytes[19] = 2;
  EXPECT_EQ(import_good(bytes, "wal.sqlite").at(0).events.size(), 3U);
}

TEST(Nsys, ProcessesAreKeptApart) {
  const std::string name = "nsys_fuzz/nsys_two_processes.sqlite";
  const std::vector<Trace> traces = import_good(sample_bytes(name), name);
  ASSERT_EQ(traces.size(), 2U);
  EXPECT_EQ(traces[0].device_name, "process 4242, device 0");
  EXPECT_EQ(traces[1].device_name, "process 4243, device 0");
  EXPECT_EQ(traces[1].device, 1U);
}

TEST(Umpire, PoolsLieWhereTheyAreMadeFrom) {
  const Trace trace = import_sample("umpire_fuzz/umpire_old.replay");
  EXPECT_EQ(lines_of(trace),
            "0,a,0,4096,0\n0,a,1,1048576,0\n0,f,0,4096,0\n0,a,2,8192,0\n0,f,1,1048576,0\n");
  EXPECT_TRUE(has_note(trace, "2 events of host memory"));
}

TEST(Umpire, NewerForm) {
  const Trace trace = import_sample("umpire_fuzz/umpire.replay");
  EXPECT_EQ(lines_of(trace), "0,a,0,4096,0\n0,a,1,100,0\n0,f,0,4096,0\n");
}

TEST(Minimalloc, BothHeaders) {
  EXPECT_EQ(lines_of(import_sample("minimalloc_fuzz/minimalloc.4096.csv")),
            "0,a,0,1024,0\n3,f,0,1024,0\n3,a,1,2048,0\n5,a,2,1024,0\n9,f,1,2048,0\n9,f,2,1024,0\n");
  const Trace inclusive = import_sample("minimalloc_fuzz/telamalloc.csv");
  EXPECT_EQ(lines_of(inclusive), "0,a,0,1024,0\n3,f,0,1024,0\n3,a,1,2048,0\n9,f,1,2048,0\n");
  EXPECT_TRUE(has_note(inclusive, "gaps"));
}

TEST(Recognise, ByContentNotByName) {
  const std::pair<const char*, TraceFormat> known[] = {
      {"time_us,op,id,size,stream\r\n", TraceFormat::kCsv},
      {"\xEF\xBB\xBFtime_us,op,id,size,stream", TraceFormat::kCsv},
      {"Thread,Time,Action,Pointer,Size,Stream\n", TraceFormat::kRmm},
      {"size,id,upper,lower\n", TraceFormat::kMinimalloc},
      {"buffer,begin,end,size\r\n", TraceFormat::kMinimalloc},
      {"  {\n \"schemaVersion\": 1", TraceFormat::kKineto},
      {"[\n{\"ph\":\"X\"}", TraceFormat::kKineto},
      {"[[-1, 1, 512, 0]]", TraceFormat::kTimeline},
      {"{ \"kind\":\"replay\", \"event\": \"version\", \"payload\": {} }\n", TraceFormat::kUmpire},
      {"{\"category\":\"metadata\",\"name\":\"x\",\"tags\":{},\"timestamp\":1}\n",
       TraceFormat::kUmpire},
      {"\x80\x04\x95", TraceFormat::kTorch},
      {"SQLite format 3", TraceFormat::kNsys},
      {"", TraceFormat::kAuto},
      {"id,size\n", TraceFormat::kAuto},
      {"\x80\x09", TraceFormat::kAuto},
  };
  for (const auto& [bytes, format] : known) {
    EXPECT_EQ(recognise_trace(bytes), format) << bytes;
  }
}

}  // namespace
}  // namespace nofrag
