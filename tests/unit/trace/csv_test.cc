#include <gtest/gtest.h>

#include "text_of.h"
#include "trace/csv_format.h"
#include "trace/load_trace.h"

namespace nofrag {
namespace {

std::optional<TraceError> read(const std::string& text, Trace* trace) {
  return load_trace_from_memory(text, "t.csv", TraceFormat::kAuto, trace);
}

Trace read_good(const std::string& text) {
  Trace trace;
  const std::optional<TraceError> error = read(text, &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

TEST(Csv, ReadsEventsAndTotals) {
  const Trace trace = read_good(std::string(kHeaderLine) +
                                "5,a,100,1000,0\n"
                                "7,a,7,512,3\n"
                                "7,f,100,1000,3\n"
                                "1005,a,8,1,0\n");
  ASSERT_EQ(trace.events.size(), 4U);
  EXPECT_EQ(trace.allocations, 3U);
  EXPECT_EQ(trace.frees, 1U);
  EXPECT_EQ(trace.duration_us(), 1000U);
  EXPECT_EQ(trace.peak_live, Bytes(1024 + 512));
  EXPECT_EQ(trace.live_at_end, Bytes(512 + 512));
  EXPECT_EQ(trace.streams, (std::vector<std::uint64_t>{0, 3}));
  EXPECT_EQ(trace.ids, (std::vector<std::uint64_t>{100, 7, 8}));
  EXPECT_TRUE(trace.events[2].is_free());
  EXPECT_EQ(trace.events[2].block, 0U);
  EXPECT_EQ(trace.events[2].stream(), 1U);
  EXPECT_EQ(trace.events[2].size, 1000U);
}

TEST(Csv, PlainIdsAreNotStored) {
  EXPECT_TRUE(read_good(std::string(kHeaderLine) + "0,a,0,1,0\n0,a,1,1,0\n").ids.empty());
}

TEST(Csv, EmptyAllocationsCountNothing) {
  const Trace trace = read_good(std::string(kHeaderLine) + "0,a,0,0,0\n1,a,1,1,0\n2,f,0,0,0\n");
  EXPECT_EQ(trace.peak_live, Bytes(512));
}

TEST(Csv, AFreeNeedNotKnowItsSize) {
  const Trace trace = read_good(std::string(kHeaderLine) + "0,a,0,700,0\n1,f,0,0,0\n");
  EXPECT_EQ(trace.events[1].size, 700U);
  EXPECT_EQ(trace.live_at_end, Bytes(0));
}

TEST(Csv, AcceptsCrLfByteOrderMarkMissingLastNewlineAndBlankEnd) {
  EXPECT_EQ(read_good("\xEF\xBB\xBFtime_us,op,id,size,stream\r\n1,a,1,2,0\r\n2,f,1,2,0").frees, 1U);
  EXPECT_EQ(read_good(std::string(kHeaderLine) + "1,a,1,2,0\n\n\r\n").allocations, 1U);
}

TEST(Csv, LargestNumbersAreRead) {
  const Trace trace = read_good(std::string(kHeaderLine) +
                                "9007199254740992,a,18446744073709551615,1152921504606846976,"
                                "18446744073709551615\n");
  EXPECT_EQ(trace.id_of(0), UINT64_MAX);
  EXPECT_EQ(trace.streams[0], UINT64_MAX);
}

TEST(Csv, RoundTripsThroughText) {
  const std::string body = "5,a,100,1000,0\n7,a,7,0,3\n7,f,100,1000,3\n1005,a,8,1,0\n";
  const Trace trace = read_good(kHeaderLine + body);
  std::string text;
  append_csv(trace, 0, trace.events.size(), &text);
  EXPECT_EQ(text, body);
}

struct BadCsv {
  const char* name;
  std::string body;  // after the header, unless whole is set
  std::uint64_t line;
  const char* found;
  const char* expected;
  bool whole = false;
};

TEST(CsvHeader, WhatItLacksIsNamed) {
  const std::string header = "the header 'time_us,op,id,size,stream'";
  const std::pair<const char*, std::string> cases[] = {
      {"time,op,id,size,stream", ": there is no column 'time_us' (the nearest is 'time')"},
      {"time_us,op,id,bytes,stream\n1,a,2,3,0",
       ": there is no column 'size' (the nearest is 'bytes')"},
      {"timestamp,operation,ptr,size,stream",
       ": there is no column 'time_us' (the nearest is 'timestamp'), there is no column 'op' (the "
       "nearest is 'operation'), there is no column 'id' (the nearest is 'ptr')"},
      {"time_us,op,id,sze,stream", ": there is no column 'size' (the nearest is 'sze')"},
      {"time_us,op,id,size", ": there is no column 'stream'"},
      {"time_us,op,id,size,stream,device", ": there is one too many, 'device'"},
      {"time_us;op;id;size;stream", ": the columns are parted by commas"},
      {"op,id,size,stream,time_us", ": the columns stand in this order"},
      {"Time_us, Op, \"Id\", Size, Stream\r",
       ": in these small letters, without spaces and quotes"},
      {"0,a,1,1024,0", " above the first event"},
      {"0.5,f,1,1024", " above the first event"}};
  for (const auto& [line, problem] : cases) {
    EXPECT_EQ(csv_header_problem(line), header + problem) << line;
  }
  for (const std::string& line : {std::string(),
                                  std::string(",,,,"),
                                  std::string("Thread,Time,Action,Pointer,Size,Streams"),
                                  std::string("the size of the stream"),
                                  std::string("name,price"),
                                  std::string(10000, ',')}) {
    const std::string problem = csv_header_problem(line);
    EXPECT_TRUE(problem.empty() || problem.starts_with(header)) << line;
  }
  EXPECT_EQ(csv_header_problem("the size of the stream"), "");
  EXPECT_EQ(csv_header_problem("name,price"), "");
}

class BadCsvTest : public testing::TestWithParam<BadCsv> {};

TEST_P(BadCsvTest, IsRefusedWithPlaceAndExpectation) {
  const BadCsv& bad = GetParam();
  Trace trace;
  const std::optional<TraceError> error =
      read(bad.whole ? bad.body : kHeaderLine + bad.body, &trace);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->path, "t.csv");
  EXPECT_EQ(error->line, bad.line) << error->message();
  EXPECT_NE(error->found.find(bad.found), std::string::npos) << error->message();
  EXPECT_NE(error->expected.find(bad.expected), std::string::npos) << error->message();
  EXPECT_TRUE(trace.events.empty()) << "a refused trace must leave the result untouched";
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadCsvTest,
    testing::Values(
        BadCsv{"Empty", "", 1, "an empty file", "the header", true},
        BadCsv{"NoHeader", "1,a,0,1,0\n", 1, "'1,a,0,1,0'", "the header 'time_us,op", true},
        BadCsv{"OtherHeader",
               "Thread,Time,Action,Pointer,Size,Stream\n",
               1,
               "'Thread,Time",
               "header",
               true},
        BadCsv{"Binary",
               bytes_of("\x7f"
                        "ELF\x02\x00\x01"),
               1,
               "\\x7fELF\\x02\\x00",
               "header",
               true},
        BadCsv{"NoEvents", "", 1, "no events", "at least one event"},
        BadCsv{"DoubleFree",
               "1,a,5,9,0\n2,f,5,9,0\n3,f,5,9,0\n",
               4,
               "id 5 freed twice (first at line 3)",
               "live block"},
        BadCsv{"UnknownFree", "1,f,5,9,0\n", 2, "id 5, which was never allocated", "live block"},
        BadCsv{
            "UnknownFreeLater", "1,a,4,9,0\n1,f,5,9,0\n", 3, "id 5, which was never", "live block"},
        BadCsv{"IdReused",
               "1,a,5,9,0\n2,f,5,9,0\n3,a,5,9,0\n",
               4,
               "id 5 allocated again (first at line 2)",
               "never used"},
        BadCsv{"IdReusedLive", "1,a,5,9,0\n3,a,5,9,0\n", 3, "id 5 allocated again", "never used"},
        BadCsv{"NegativeSize",
               "1,a,5,-9,0\n",
               2,
               "negative size -9",
               "size as a whole decimal number"},
        BadCsv{"NegativeTime", "-1,a,5,9,0\n", 2, "negative time_us -1", "time_us as a whole"},
        BadCsv{"TextSize", "1,a,5,9k,0\n", 2, "size '9k'", "size as a whole decimal"},
        BadCsv{"HexId", "1,a,0x5,9,0\n", 2, "id '0x5'", "id as a whole decimal"},
        BadCsv{"Float", "1.5,a,5,9,0\n", 2, "time_us '1.5'", "time_us as a whole"},
        BadCsv{"Space", "1, a,5,9,0\n", 2, "op ' a'", "op 'a'"},
        BadCsv{"BadOp", "1,x,5,9,0\n", 2, "op 'x'", "op 'a' (allocate) or 'f' (free)"},
        BadCsv{"EmptyOp", "1,,5,9,0\n", 2, "op ''", "op 'a'"},
        BadCsv{"LongOp", "1,alloc,5,9,0\n", 2, "op 'alloc'", "op 'a'"},
        BadCsv{"MissingStream", "1,a,5,9\n", 2, "ends in column size", "5 columns"},
        BadCsv{"MissingAll", "1\n", 2, "ends in column time_us", "5 columns"},
        BadCsv{"CutLine", "1,a,5,9,0\n2,a,6,9,", 3, "no stream", "stream as a whole"},
        BadCsv{"EmptySize", "1,a,5,,0\n", 2, "no size", "size as a whole"},
        BadCsv{"ExtraColumn", "1,a,5,9,0,7\n", 2, "more than 5 columns", "5 columns"},
        BadCsv{"Backwards",
               "5,a,5,9,0\n4,a,6,9,0\n",
               3,
               "earlier than the event before it at 5",
               "time order"},
        BadCsv{"SizeContradicts",
               "1,a,5,9,0\n2,f,5,10,0\n",
               3,
               "id 5 with size 10",
               "size 9, as allocated at line 2"},
        BadCsv{"SizeOverflows",
               "1,a,5,18446744073709551616,0\n",
               2,
               "size '18446744073709551616'",
               "2^64-1"},
        BadCsv{
            "SizeAbsurd", "1,a,5,1152921504606846977,0\n", 2, "size 1152921504606846977", "2^60"},
        BadCsv{"LiveAbsurd",
               "1,a,1,1152921504606846976,0\n1,a,2,1152921504606846976,0\n1,a,3,"
               "1152921504606846976,0\n1,a,4,1152921504606846976,0\n1,a,5,1,0\n",
               6,
               "2^62 bytes live",
               "device"},
        BadCsv{"TimeAbsurd", "9007199254740993,a,5,1,0\n", 2, "time 9007199254740993", "2^53"},
        BadCsv{"BlankInside", "1,a,5,9,0\n\n2,f,5,9,0\n", 3, "an empty line", "time_us,op"},
        BadCsv{"LongLine", std::string(5000, '7') + "\n", 2, "longer than 4096 bytes", "time_us"},
        BadCsv{
            "LongFirstLine", std::string(300000, 'x'), 1, "longer than 4096 bytes", "header", true},
        BadCsv{"NulByte",
               bytes_of("1,a,5,\0"
                        "9,0\n"),
               2,
               "size '\\x009'",
               "size as a whole"},
        BadCsv{"BareReturn", "1,a,5,9,0\r1,a,6,9,0\n", 2, "more than 5 columns", "5 columns"}),
    [](const testing::TestParamInfo<BadCsv>& bad) { return bad.param.name; });

TEST(Csv, ErrorOnALateLineNamesThatLine) {
  std::string text = kHeaderLine;
  constexpr int kLines = 200000;  // several windows of input
  for (int i = 0; i < kLines; ++i) {
    text += "1,a," + std::to_string(i) + ",512,0\n";
  }
  text += "1,f,999999999,512,0\n";
  Trace trace;
  const std::optional<TraceError> error = read(text, &trace);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->line, static_cast<std::uint64_t>(kLines) + 2);
}

TEST(Csv, AskedForByNameRefusesAPackedTrace) {
  Trace trace;
  const std::optional<TraceError> error =
      load_trace_from_memory("\x8eNFTRC\r\n........", "t", TraceFormat::kCsv, &trace);
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->message().find("a packed nofrag trace"), std::string::npos);
}

}  // namespace
}  // namespace nofrag
