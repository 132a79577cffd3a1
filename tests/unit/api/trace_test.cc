// Recording a process from outside and through the C interface: what is in the file however the process ends, and
// that the process never suffers.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <nofrag/trace_format.h>

#include "trace/load_trace.h"
#include "trace/record/recording.h"

namespace nofrag {
namespace {

class TraceTest : public testing::Test {
 protected:
  ~TraceTest() override {
    std::remove(path_.c_str());
    std::remove((path_ + ".csv").c_str());
  }

  // stdout and stderr of a scene, under NOFRAG_TRACE (empty: none).
  std::string probe(const std::string& trace, const std::string& arguments) {
    const std::string command = "PROBE_FILE='" + path_ + "' NOFRAG_TRACE='" + trace +
                                "' NOFRAG_CONF=driver:sim:h100-80g '" TRACE_PROBE "' " + arguments +
                                " 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    char chunk[4096];
    std::size_t got = 0;
    while ((got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0) {
      output.append(chunk, got);
    }
    status_ = ::pclose(pipe);
    return output;
  }
  Trace read() {
    Trace trace;
    const auto error = load_trace(path_, TraceFormat::kAuto, &trace);
    EXPECT_FALSE(error.has_value()) << error->message();
    return trace;
  }

  std::string path_ = testing::TempDir() + "trace_test." + std::to_string(::getpid());
  int status_ = 0;
};

TEST_F(TraceTest, TheEnvironmentRecordsAWholeProcess) {
  EXPECT_EQ(probe(path_, "work"), "");
  EXPECT_EQ(status_, 0);
  const Trace trace = read();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.allocations, 1000U);
  EXPECT_EQ(trace.frees, 1000U);
  EXPECT_EQ(trace.events[0].size, 1000U);
  EXPECT_EQ(trace.peak_live, Bytes(512 * 51));
  EXPECT_TRUE(trace.recording->whole);
  EXPECT_EQ(trace.recording->info.at("driver"), "sim:h100-80g");
  EXPECT_EQ(trace.recording->info.at("device.0.total_bytes"), "85029158912");
  EXPECT_GT(trace.recording->peak_reserved.at(0), Bytes(0));
}

TEST_F(TraceTest, TheInterfaceRecordsAPart) {
  const std::string output = probe("", "api '" + path_ + "'");
  EXPECT_EQ(output,
            "state: ok, active 0, 0 events, no bytes, \n"
            "stop: invalid argument: nothing is being recorded\n"
            "mark: ok\n"
            "start: ok\n"
            "again: already initialized: this process is being recorded to " +
                path_ +
                " already\n"
                "mark: ok\n"
                "flush: ok\n"
                "state: ok, active 1, " +
                std::to_string(read().events.size() - 1 + read().recording->notes.size()) +
                " events, some bytes, " + path_ +
                "\n"
                "stop: ok\n"
                "flush: invalid argument: nothing is being recorded\n"
                "state: ok, active 0, " +
                std::to_string(read().events.size() + read().recording->notes.size()) +
                " events, some bytes, " + path_ + "\n");
  const Trace trace = read();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.allocations, 101U);
  EXPECT_TRUE(trace.recording->blocks[0].existing);
  EXPECT_EQ(trace.events[0].size, 3000U);
  EXPECT_EQ(trace.live_at_end, Bytes(0));
  ASSERT_EQ(trace.recording->marks.size(), 1U);
  EXPECT_EQ(trace.recording->marks[0].text, "half way");
  EXPECT_EQ(trace.recording->marks[0].before, 201U);
}

TEST_F(TraceTest, AKilledProcessLeavesWhatItHadWritten) {
  probe(path_, "kill");
  EXPECT_FALSE(WIFEXITED(status_) && WEXITSTATUS(status_) == 0);
  const Trace trace = read();
  EXPECT_GE(trace.events.size(), 1000U);
  EXPECT_FALSE(trace.recording->whole);
  ASSERT_FALSE(trace.warnings.empty());
  EXPECT_EQ(trace.warnings[0].find("the recording has no end"), 0U);
}

TEST_F(TraceTest, AForkedChildWritesNothing) {
  const std::string output = probe(path_, "fork");
  EXPECT_NE(output.find("child flush: not usable after fork"), std::string::npos) << output;
  EXPECT_NE(output.find("child mark: not usable after fork"), std::string::npos) << output;
  EXPECT_NE(output.find("child start: not usable after fork"), std::string::npos) << output;
  EXPECT_NE(output.find("child exit: 0\n"), std::string::npos) << output;
  const Trace trace = read();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.events.size(), 400U);
  EXPECT_TRUE(trace.recording->marks.empty());
}

TEST_F(TraceTest, WhatCannotBeWrittenIsSaidOnceAndTheProcessGoesOn) {
  EXPECT_EQ(probe("/no/such/folder/t", "work"),
            "nofrag: nothing is recorded: /no/such/folder/t: cannot be opened (No such file or "
            "directory)\n");
  EXPECT_EQ(status_, 0);
  EXPECT_EQ(
      probe("/dev/full", "work"),
      "nofrag: nothing is recorded: /dev/full: cannot be written (No space left on device)\n");
  EXPECT_EQ(status_, 0);
  const std::string api = probe("", "api /no/such/folder/t");
  EXPECT_NE(api.find("start: invalid argument: nothing is recorded: /no/such/folder/t"),
            std::string::npos)
      << api;
}

// A disk that is full half-way: a file may have so many bytes and no more.
TEST_F(TraceTest, AFullDiskEndsTheRecordingAndNotTheProcess) {
  const std::string command = "ulimit -f 4; trap '' XFSZ; PROBE_FILE=x NOFRAG_TRACE='" + path_ +
                              "' NOFRAG_CONF=driver:sim:h100-80g '" TRACE_PROBE "' work-long 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  char chunk[4096];
  std::size_t got = 0;
  while ((got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0) {
    output.append(chunk, got);
  }
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(output,
            "nofrag: recording has ended: " + path_ + ": cannot be written (File too large)\n");
}

TEST_F(TraceTest, SpecsThatCannotBeReadAreSaid) {
  const std::string outcome = probe(path_ + ",max=lots", "work");
  EXPECT_NE(outcome.find("trace_max"), std::string::npos) << outcome;
  const std::string unknown = probe("", "api '" + path_ + ",size=3'");
  EXPECT_NE(unknown.find("start: invalid argument: nofrag_trace_start: \"size=3\" is not known"),
            std::string::npos)
      << unknown;
  const std::string nothing = probe("", "api ''");
  EXPECT_NE(nothing.find("there is no file name"), std::string::npos) << nothing;
}

// ---- call stacks

// Every sampled block's stack is defined, whatever became of the process.
void expect_stacks(const Trace& trace, std::size_t sampled) {
  std::size_t found = 0;
  for (const Recording::Block& block : trace.recording->blocks) {
    found += block.site != 0 ? 1 : 0;
    EXPECT_TRUE(block.site == 0 || trace.recording->stacks.contains(block.site));
  }
  EXPECT_GE(found, sampled);
  for (const auto& [number, module] : trace.recording->modules) {
    EXPECT_FALSE(module.path.ends_with("/libnofrag.so")) << "its own frames are left out";
  }
}

TEST_F(TraceTest, StacksAreRecordedThroughTheInterface) {
  EXPECT_NE(probe("", "api '" + path_ + ",stacks=1'").find("start: ok"), std::string::npos);
  expect_stacks(read(), 100);
}

TEST_F(TraceTest, StacksOfAProcessThatWasKilled) {
  probe(path_ + ",stacks=1", "kill");
  const Trace trace = read();
  EXPECT_FALSE(trace.recording->whole);
  expect_stacks(trace, 500);
}

TEST_F(TraceTest, StacksAndAForkedChild) {
  const std::string output = probe(path_ + ",stacks=1", "fork");
  EXPECT_NE(output.find("child exit: 0\n"), std::string::npos) << output;
  EXPECT_EQ(status_, 0);
  expect_stacks(read(), 200);
}

TEST_F(TraceTest, StacksThatCannotBeReadAreSaid) {
  const std::string outcome = probe(path_ + ",stacks=many", "work");
  EXPECT_NE(outcome.find("trace_stacks"), std::string::npos) << outcome;
  EXPECT_TRUE(read().recording->stacks.empty());
}

// Else a recording that should go to its file would stay in memory.
TEST_F(TraceTest, OnlyAFlightRecorderKeeps) {
  EXPECT_NE(probe(path_ + ",keep=1MiB", "work")
                .find("\"keep=1MiB\" is for a flight recorder (write flight:FILE,keep=SIZE)"),
            std::string::npos);
  EXPECT_EQ(read().allocations, 1000U) << "recorded, to the file";
  const std::string api = probe("", "api '" + path_ + ",keep=1MiB'");
  EXPECT_NE(api.find("start: invalid argument: nofrag_trace_start: \"keep=1MiB\" is for a flight"),
            std::string::npos)
      << api;
}

// Opening it would wait for a reader, who may never come.
TEST_F(TraceTest, APipeThatNobodyReadsIsRefused) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string output = probe(pipe, "work");
  ::unlink(pipe.c_str());
  EXPECT_NE(output.find(pipe + ": cannot be opened"), std::string::npos) << output;
}

TEST_F(TraceTest, AMistypedFlightIsSaid) {
  const std::string output = probe("", "api 'flght:" + path_ + "'");
  EXPECT_NE(output.find("did you mean flight:" + path_ + "?"), std::string::npos) << output;
}

TEST_F(TraceTest, AFlightRecorderWritesAtASignal) {
  const std::string output = probe("flight:" + path_ + ",keep=1MiB,signal", "signal");
  EXPECT_NE(output.find("nofrag: the last of what happened is in " + path_ + "\n"),
            std::string::npos)
      << output;
  EXPECT_GE(read().allocations, 100U);
}

TEST_F(TraceTest, AFlightRecorderWritesWhenARequestFails) {
  const std::string output = probe("flight:" + path_, "out-of-memory");
  EXPECT_NE(output.find("too much: out of memory"), std::string::npos) << output;
  const Trace trace = read();
  EXPECT_EQ(trace.allocations, 100U);
  EXPECT_EQ(trace.recording->notes.back().event.kind, NOFRAG_TRACE_RECORD_OUT_OF_MEMORY);
}

TEST_F(TraceTest, TheFailureIsInTheFileOfAProcessThatIsEndedByIt) {
  for (const char* const kind : {"flight:", ""}) {
    ::unlink(path_.c_str());
    const std::string output = probe(kind + path_, "killed");
    EXPECT_EQ(output.find("the last of what happened is in ") != std::string::npos, *kind != '\0')
        << output;
    const Trace trace = read();
    EXPECT_EQ(trace.allocations, 100U) << kind;
    ASSERT_FALSE(trace.recording->notes.empty()) << kind;
    EXPECT_EQ(trace.recording->notes.back().event.kind, NOFRAG_TRACE_RECORD_OUT_OF_MEMORY) << kind;
    EXPECT_EQ(trace.recording->notes.back().event.size, std::uint64_t{2} << 40) << "the last one";
  }
}

TEST_F(TraceTest, AFlightRecorderThatIsNotAskedWritesNothing) {
  EXPECT_EQ(probe("flight:" + path_, "work"), "");
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace nofrag
