#include <functional>

#include "samples.h"

namespace nofrag {
namespace {

struct Bad {
  const char* text;
  TraceFormat format;
  const char* said;  // a part of the message
};

std::string message_of(const std::string& bytes, TraceFormat format) {
  std::vector<Trace> traces;
  const auto error = load_traces_from_memory(bytes, "bad", format, &traces);
  EXPECT_TRUE(traces.empty());
  return error ? error->message() : "(accepted)";
}

TEST(BadImport, SaysWhereAndWhatWasExpected) {
  const std::string rmm = "Thread,Time,Action,Pointer,Size,Stream\n";
  const std::string mini = "id,lower,upper,size\n";
  const std::pair<std::string, Bad> cases[] = {
      {rmm + "1,12:00:00.000001,allocate,0x10,5,0\n1,12:0:00.5,free,0x10,5,0\n",
       {"", TraceFormat::kAuto, "bad:3: found time '12:0:00.5'; expected HH:MM:SS.micros"}},
      {rmm + "1,12:00:00.000001,allocate,0x10,5\n",
       {"", TraceFormat::kAuto, "bad:2: found not 6 columns"}},
      {rmm + "1,12:00:00.1,grow,0x10,5,0\n",
       {"", TraceFormat::kAuto, "bad:2: found action 'grow'"}},
      {rmm + "1,12:00:00.1,free,0xzz,5,0\n",
       {"", TraceFormat::kAuto, "bad:2: found pointer '0xzz'"}},
      {rmm, {"", TraceFormat::kAuto, "bad:1: found a log without an event"}},
      {mini + "0,5,5,10\n",
       {"", TraceFormat::kAuto, "bad:2: found a buffer that lives from 5 to 5"}},
      {mini + "0,1,5,10\n0,2,3,10\n",
       {"", TraceFormat::kAuto, "bad:3: found id '0' again (first on line 2)"}},
      {mini + "0,1,x,10\n", {"", TraceFormat::kAuto, "bad:2: found upper 'x'"}},
      {"id,lower,size,lower,upper\n1,2,3,4,5\n",
       {"", TraceFormat::kAuto, "bad:1: found column 'lower' twice"}},
      {"{\"traceEvents\": []}",
       {"", TraceFormat::kAuto, "found a trace without one [memory] event"}},
      {"{\"traceEvents\": [{]}", {"", TraceFormat::kAuto, "found invalid JSON near"}},
      {"{\"traceEvents\": [{]}", {"", TraceFormat::kAuto, "(unexpected ']'); expected"}},
      {"{\"traceEvents\": [1e999]}",
       {"", TraceFormat::kAuto, "'1e999' (number overflow parsing '1e999'); expected"}},
      {"{\"traceEvents\": [{\"name\":\"[memory]\",\"ts\":1,\"args\":{\"Device "
       "Type\":1,\"Bytes\":5}}]}",
       {"", TraceFormat::kAuto, "without 'Addr'"}},
      {"{\"traceEvents\": [{\"name\":\"[memory]\",\"ts\":-1,"
       "\"args\":{\"Device Type\":1,\"Bytes\":5,\"Addr\":1}}]}",
       {"", TraceFormat::kAuto, "with a bad 'ts'"}},
      {"[[1, 2, 512]]", {"", TraceFormat::kAuto, "found a list of 3 numbers"}},
      {"[[1, 7, 512, 0]]", {"", TraceFormat::kAuto, "found action 7"}},
      {"[[1, 2], [[3]]]", {"", TraceFormat::kAuto, "found 2 times and 1 sizes"}},
      {"[[1, 2, 512, 0], {}]", {"", TraceFormat::kAuto, "found an object"}},
      {"{ \"kind\":\"replay\", \"event\":\"x\", \"payload\":1 }\nnonsense\n",
       {"", TraceFormat::kAuto, "bad:2: found no JSON object: 'nonsense'"}},
      {"SQLite format 3 and no more",
       {"", TraceFormat::kAuto, "byte 0: found a database that cannot be read"}},
      {"\x80\x04}.", {"", TraceFormat::kAuto, "'segments' is missing"}},
      {"\x80\x04N.", {"", TraceFormat::kAuto, "found a pickle of None"}},
      {"hello\n",
       {"", TraceFormat::kAuto, "bad:1: found 'hello'; expected a nofrag trace, csv (time_us"}},
      {"hello\n", {"", TraceFormat::kRmm, "bad:1: found 'hello'; expected the header"}},
      {mini + "0,1,5,10\n",
       {"", TraceFormat::kRmm, "a file of the format minimalloc; expected rmm, as --format"}},
      {"", {"", TraceFormat::kAuto, "found an empty file"}},
  };
  for (const auto& [text, bad] : cases) {
    EXPECT_NE(message_of(text, bad.format).find(bad.said), std::string::npos)
        << message_of(text, bad.format) << "\n  does not say: " << bad.said;
  }
}

TEST(BadImport, NothingInAPickleIsExecuted) {
  const std::string message =
      message_of(sample_bytes("torch_snapshot_fuzz/torch_evil.pickle"), TraceFormat::kAuto);
  EXPECT_NE(message.find("STACK_GLOBAL"), std::string::npos) << message;
  EXPECT_NE(message.find("nothing of it was executed"), std::string::npos) << message;
}

TEST(BadImport, HostEventsAloneAreNoTrace) {
  const std::string message =
      message_of(sample_bytes("kineto_fuzz/kineto_host_only.json"), TraceFormat::kAuto);
  EXPECT_NE(message.find("of the CPU only (1)"), std::string::npos) << message;
}

// Every beginning of every sample: refused with a place, or (text formats that end in a line) a shorter trace.
TEST(BadImport, CutOffAnywhere) {
  for (const char* name : {"torch_snapshot_fuzz/torch_2.4.pickle",
                           "torch_snapshot_fuzz/torch_2.0.pickle",
                           "kineto_fuzz/kineto.json",
                           "kineto_fuzz/kineto_fractions.json.gz",
                           "torch_timeline_fuzz/timeline.json",
                           "rmm_fuzz/rmm.csv",
                           "nsys_fuzz/nsys.sqlite",
                           "umpire_fuzz/umpire_old.replay",
                           "minimalloc_fuzz/telamalloc.csv"}) {
    const std::string whole = sample_bytes(name);
    std::size_t refused = 0;
    for (std::size_t length = 0; length < whole.size(); ++length) {
      std::vector<Trace> traces;
      const auto error =
          load_traces_from_memory(whole.substr(0, length), name, TraceFormat::kAuto, &traces);
      refused += error ? 1U : 0U;
      if (error) {
        EXPECT_TRUE(error->line || error->offset || error->row) << name << " at " << length;
        EXPECT_FALSE(error->expected.empty())
            << name << " at " << length << ": " << error->message();
        EXPECT_TRUE(traces.empty());
      } else {
        EXPECT_FALSE(traces.empty());
      }
    }
    EXPECT_GT(refused, 0U) << name;
    const std::string text(name);
    if (text.find("pickle") != std::string::npos || text.find("json") != std::string::npos) {
      EXPECT_GE(refused + 1, whole.size()) << name << ": a part of it passed for the whole";
    }
  }
}

}  // namespace
}  // namespace nofrag
