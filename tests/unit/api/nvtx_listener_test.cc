// A program's own NVTX ranges in its recording: by the public headers and the documented variable, in a process of
// its own.
#include <unistd.h>

#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "trace/load_trace.h"
#include "trace/record/ranges.h"
#include "trace/record/recording.h"

namespace nofrag {
namespace {

class NvtxListener : public testing::Test {
 protected:
  ~NvtxListener() override { std::remove(path_.c_str()); }

  // What the program and NVTX say.
  static std::string run(const std::string& environment, const std::string& arguments = "") {
    const std::string command = environment + " '" NVTX_PROBE "' " + arguments + " 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    char chunk[4096];
    std::size_t got = 0;
    while ((got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0) {
      output.append(chunk, got);
    }
    ::pclose(pipe);
    return output;
  }
  [[nodiscard]] std::string recorded(const std::string& conf = "") const {
    return "NOFRAG_TRACE='" + path_ + "' NOFRAG_CONF=driver:sim:h100-80g" + conf;
  }
  [[nodiscard]] Trace read() const {
    Trace trace;
    const auto error = load_trace(path_, TraceFormat::kAuto, &trace);
    EXPECT_FALSE(error.has_value()) << error->message();
    return trace;
  }
  static std::string names(const Trace& trace) {
    std::string text;
    for (const RecordedRange& range : ranges_of(*trace.recording, UINT64_MAX)) {
      text += range.name + (range.end_us == UINT64_MAX ? " (open)" : "") + "\n";
    }
    for (const Recording::Mark& mark : trace.recording->marks) {
      text += "mark " + mark.text + "\n";
    }
    return text;
  }

  static constexpr const char* kInjected = "NVTX_INJECTION64_PATH='" NOFRAG_LIBRARY "' ";
  static constexpr const char* kAll =
      "step\n"
      "stra\xc3\x9f"
      "e \xe2\x82\xac\n"
      "by attributes\n"
      "started\n"
      "library: registered\n"
      "library: registered\n"
      "\n"
      "never popped (open)\n"
      "mark a mark\n"
      "mark library: registered\n";
  std::string path_ = testing::TempDir() + "nvtx_listener." + std::to_string(::getpid());
};

TEST_F(NvtxListener, EveryKindOfRangeIsRecorded) {
  EXPECT_EQ(run(kInjected + recorded()), "done\n");
  EXPECT_EQ(names(read()), kAll);
}

TEST_F(NvtxListener, OwnRangesAreLeftOut) {
  EXPECT_EQ(run(kInjected + recorded(",nvtx:ranges")), "done\n");
  EXPECT_EQ(names(read()), kAll);
}

TEST_F(NvtxListener, NothingIsHeardUnlessNvtxIsToldToAsk) {
  EXPECT_EQ(run(recorded()), "done\n");
  EXPECT_EQ(names(read()), "");
}

TEST_F(NvtxListener, ForkedChildrenWaitForNoLockOfTheirParent) {
  EXPECT_EQ(run(kInjected + recorded(), "fork"), "done\n");
}

TEST_F(NvtxListener, AProcessThatIsNotRecordedGoesOn) {
  EXPECT_EQ(run(std::string(kInjected) + "NOFRAG_CONF=driver:sim:h100-80g"), "done\n");
}

}  // namespace
}  // namespace nofrag
