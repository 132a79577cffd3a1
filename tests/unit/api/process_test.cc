#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace {

struct Outcome {
  std::string output;  // stdout and stderr together
  int status = 0;      // as of wait()

  [[nodiscard]] bool says(const std::string& line) const {
    return output.find(line) != std::string::npos;
  }
};

// `environment` is a shell prefix: "NOFRAG_CONF=... ".
Outcome probe(const std::string& environment, const std::string& arguments) {
  const std::string command = environment + " '" PROCESS_PROBE "' " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  char chunk[4096];
  std::size_t got = 0;
  while ((got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0) {
    outcome.output.append(chunk, got);
  }
  outcome.status = ::pclose(pipe);
  return outcome;
}

constexpr const char* kSim = "NOFRAG_CONF=driver:sim:h100-80g";

TEST(Start, EnvironmentIsUsed) {
  const Outcome outcome = probe("NOFRAG_CONF=driver:sim:h100-80g,limit:3GiB", "init");
  EXPECT_TRUE(outcome.says("driver: sim:h100-80g\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("limit: 3221225472\n")) << outcome.output;
}

TEST(Start, WithoutAGpuTheMessageNamesTheSimulatedDriver) {
  // No device is to be seen, whether there is a driver or not.
  const Outcome outcome = probe("CUDA_VISIBLE_DEVICES=-1 NOFRAG_CONF=driver:cuda", "init");
  EXPECT_TRUE(outcome.says("NOFRAG_CONF=driver:sim:h100-80g")) << outcome.output;
}

TEST(Start, ALimitWithoutItsUnitIsSaid) {
  const Outcome outcome = probe("NOFRAG_CONF=driver:sim:h100-80g,limit:20", "init");
  EXPECT_TRUE(outcome.says("NOFRAG_CONF: a limit of 20 bytes would refuse every allocation"))
      << outcome.output;
  EXPECT_FALSE(probe("NOFRAG_CONF=driver:sim:h100-80g,limit:2MiB", "init").says("would refuse"));
}

TEST(Start, CallIsStrongerThanEnvironmentKeyByKey) {
  const Outcome outcome = probe("NOFRAG_CONF=driver:sim:h100-80g,limit:3GiB", "init limit:1GiB");
  EXPECT_TRUE(outcome.says("driver: sim:h100-80g\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("limit: 1073741824\n")) << outcome.output;
}

TEST(Start, ConfirmConfNamesEachSource) {
  const Outcome outcome =
      probe("NOFRAG_LOG=info NOFRAG_CONF=driver:sim:h100-80g,log:silent,confirm_conf:true",
            "init limit:1GiB");
  EXPECT_TRUE(outcome.says("driver:sim:h100-80g (NOFRAG_CONF)\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("limit:1GiB (nofrag_init)\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("log:info (environment)\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("rdma:true (default)\n")) << outcome.output;
}

TEST(Start, BadEnvironmentWarnsOnceAndGoesOn) {
  const Outcome outcome =
      probe("NOFRAG_STATS=loud NOFRAG_CONF=driver:sim:h100-80g,limt:1GiB", "init");
  EXPECT_TRUE(outcome.says("nofrag: NOFRAG_CONF: unknown option \"limt\"; did you mean limit?\n"))
      << outcome.output;
  EXPECT_TRUE(outcome.says(
      "nofrag: NOFRAG_STATS: option stats: \"loud\" is not one of off, exit, summary\n"))
      << outcome.output;
  EXPECT_FALSE(outcome.says("NOFRAG_LOG")) << "only the variable that has it";
  EXPECT_TRUE(outcome.says("malloc: ok\n")) << outcome.output;
  EXPECT_EQ(outcome.output.find("limt"), outcome.output.rfind("limt"));
}

TEST(Start, SilentSaysNothing) {
  const Outcome outcome =
      probe("NOFRAG_LOG=silent NOFRAG_CONF=driver:sim:h100-80g,limt:1GiB", "init");
  EXPECT_FALSE(outcome.says("nofrag:")) << outcome.output;
}

TEST(Start, AbortConfStopsTheProcess) {
  const Outcome outcome =
      probe("exec env NOFRAG_CONF=driver:sim:h100-80g,limt:1GiB,abort_conf:true", "init");
  EXPECT_NE(outcome.status, 0);
  EXPECT_TRUE(outcome.says("limt")) << outcome.output;
  EXPECT_FALSE(outcome.says("malloc")) << outcome.output;
}

TEST(Start, BadCallConfIsAnError) {
  const Outcome outcome = probe(kSim, "init handle_size:2GiB");
  EXPECT_TRUE(
      outcome.says("init: bad configuration: nofrag_init: option handle_size: \"2GiB\" is "
                   "outside 0B to 1GiB\n"))
      << outcome.output;
}

TEST(Start, TwiceIsRefused) {
  const Outcome outcome = probe("", "init-twice");
  EXPECT_TRUE(outcome.says("first: ok\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("second: already initialized: ")) << outcome.output;
}

TEST(Start, AfterUseIsRefused) {
  const Outcome outcome = probe(kSim, "init-after-use");
  EXPECT_TRUE(outcome.says("malloc: ok\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("init: already initialized: ")) << outcome.output;
}

TEST(Start, MemoryIsExportableWhereAskedForInTime) {
  Outcome outcome = probe(kSim, "exportable");
  EXPECT_TRUE(outcome.says("prefer: ok\nexport: ok\nagain: ok\n")) << outcome.output;
  outcome = probe(kSim, "exportable-late");
  EXPECT_TRUE(outcome.says("export: not supported: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("set shareable_handles:fd in NOFRAG_CONF")) << outcome.output;
  EXPECT_TRUE(outcome.says("prefer: already initialized: ")) << outcome.output;
  // The user's word counts.
  outcome = probe("NOFRAG_CONF=driver:sim:h100-80g,shareable_handles:none", "exportable");
  EXPECT_TRUE(outcome.says("prefer: ok\nexport: not supported: ")) << outcome.output;
  outcome = probe("NOFRAG_CONF=driver:sim:h100-80g,shareable_handles:fd", "exportable-late");
  EXPECT_TRUE(outcome.says("export: ok\nprefer: ok\n")) << outcome.output;
}

TEST(Start, MayBeRepeatedAfterFailure) {
  const Outcome outcome = probe("", "init-again");
  EXPECT_TRUE(outcome.says("first: not initialized: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("no-such-device")) << outcome.output;
  EXPECT_TRUE(outcome.says("second: ok\n")) << outcome.output;
}

TEST(Start, UnknownDriverIsNamed) {
  const Outcome outcome = probe("NOFRAG_CONF=driver:vulkan", "init");
  EXPECT_TRUE(outcome.says("init: not initialized: there is no driver \"vulkan\""))
      << outcome.output;
  EXPECT_TRUE(outcome.says("malloc: not initialized: there is no driver \"vulkan\""))
      << outcome.output;
}

TEST(Start, SixteenThreadsAtOnce) {
  const Outcome outcome = probe(kSim, "race");
  EXPECT_TRUE(outcome.says("served: 16, live: 16\n")) << outcome.output;
}

TEST(Start, PlainFallbackIsSaid) {
  // The built-in device without its virtual memory.
  std::ifstream file(NOFRAG_SOURCE_DIR "/sim/h100-80g.json");
  std::ostringstream text;
  text << file.rdbuf();
  std::string device = text.str();
  const std::string able = "\"virtual_memory\": true";
  ASSERT_NE(device.find(able), std::string::npos);
  device.replace(device.find(able), able.size(), "\"virtual_memory\": false");
  const std::string path = testing::TempDir() + "nofrag_plain_device.json";
  std::ofstream(path) << device;

  const std::string said = "has no virtual memory management: falling back";
  const Outcome fallback = probe("NOFRAG_CONF=driver:sim:" + path, "init");
  EXPECT_TRUE(fallback.says("malloc: ok\n")) << fallback.output;
  EXPECT_TRUE(fallback.says(said)) << fallback.output;
  EXPECT_EQ(fallback.output.find(said), fallback.output.rfind(said)) << fallback.output;

  const Outcome demanded = probe("NOFRAG_CONF=backend:vmm,driver:sim:" + path, "init");
  EXPECT_TRUE(demanded.says("malloc: not supported: device 0 could not be used"))
      << demanded.output;

  const Outcome asked = probe("NOFRAG_CONF=backend:plain,driver:sim:h100-80g", "init");
  EXPECT_TRUE(asked.says("malloc: ok\n")) << asked.output;
  EXPECT_FALSE(asked.says("falling back")) << asked.output;
}

// compute-sanitizer takes no mapped memory for a heap.
TEST(Start, NvtxMemoryBringsThePlainBackend) {
  const auto backend = [](const std::string& conf) {
    const std::string text =
        probe("NOFRAG_STATS=exit NOFRAG_CONF=driver:sim:h100-80g," + conf, "exit").output;
    const std::size_t at = text.find("  backend ");
    return at == std::string::npos ? text : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_NE(backend("nvtx:memory").find("plain"), std::string::npos);
  EXPECT_NE(backend("nvtx:memory,backend:vmm").find("vmm"), std::string::npos);
  EXPECT_NE(backend("nvtx:ranges").find("vmm"), std::string::npos);
}

TEST(Fork, ChildIsInertAndParentGoesOn) {
  const Outcome outcome = probe(std::string(kSim) + " NOFRAG_STATS=exit", "fork");
  EXPECT_TRUE(outcome.says("child malloc: not usable after fork: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("child free: not usable after fork: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("child trim: not usable after fork: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("child init: not usable after fork: ")) << outcome.output;
  EXPECT_TRUE(outcome.says("child exit: 0\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("parent free: ok\n")) << outcome.output;
  const std::string once = "stays with the parent (said once)";
  EXPECT_TRUE(outcome.says(once)) << outcome.output;
  EXPECT_EQ(outcome.output.find(once), outcome.output.rfind(once)) << outcome.output;
  // One summary: the parent's.
  const std::string summary = "nofrag statistics";
  EXPECT_TRUE(outcome.says(summary)) << outcome.output;
  EXPECT_EQ(outcome.output.find(summary), outcome.output.rfind(summary)) << outcome.output;
}

TEST(Fork, BeforeFirstUseTheChildWorks) {
  const Outcome outcome = probe(kSim, "fork-unused");
  EXPECT_TRUE(outcome.says("child malloc: ok\n")) << outcome.output;
}

TEST(Exit, SummaryIsPrintedAndLateCallsAreHarmless) {
  const Outcome outcome = probe(std::string(kSim) + " NOFRAG_STATS=exit", "exit");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(outcome.says("nofrag statistics; docs/stats.md")) << outcome.output;
  EXPECT_TRUE(outcome.says("late free: ok\n")) << outcome.output;
  EXPECT_TRUE(outcome.says("late malloc: process is exiting: ")) << outcome.output;
}

TEST(Exit, NoSummaryUnlessAskedFor) {
  EXPECT_FALSE(probe(kSim, "exit").says("statistics"));
}

}  // namespace
