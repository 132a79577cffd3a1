// The program `nofrag` as its users meet it: command lines in, exit codes, messages and files out.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "base/json_text.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nofrag::parse_json;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class CliTest : public testing::Test {
 protected:
  CliTest() {
    std::string pattern = (fs::temp_directory_path() / "nofrag_cli_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    write_file(folder_ / "good.csv",
               "time_us,op,id,size,stream\n0,a,0,1000,0\n10,a,1,5000000,0\n20,f,0,1000,0\n");
  }
  ~CliTest() override { fs::remove_all(folder_); }

  // `arguments` as a shell would read them, in the test's folder, with `conf` as NOFRAG_CONF.
  Outcome run(const std::string& arguments, const std::string& conf = "") {
    const std::string command = "cd '" + folder_.string() + "' && NOFRAG_CONF='" + conf +
                                "' '" NOFRAG_PROGRAM "' " + arguments + " >out.txt 2>err.txt";
    const int status = std::system(command.c_str());
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.out = read_file(folder_ / "out.txt");
    outcome.err = read_file(folder_ / "err.txt");
    return outcome;
  }
  // Fails with `code` and one line on stderr that holds all of `parts`.
  void expect_refused(const std::string& arguments,
                      int code,
                      const std::vector<std::string>& parts,
                      const std::string& conf = "") {
    const Outcome outcome = run(arguments, conf);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << arguments << "\n" << outcome.err;
    }
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
  }

  fs::path folder_;
};

TEST_F(CliTest, HelpAndVersion) {
  EXPECT_EQ(run("--version").code, 0);
  EXPECT_NE(run("--version").out.find("nofrag "), std::string::npos);
  for (const char* help : {"--help", "replay --help", "convert --help", "doctor --help"}) {
    const Outcome outcome = run(help);
    EXPECT_EQ(outcome.code, 0) << help;
    EXPECT_GT(outcome.out.size(), 200U) << help;
  }
}

TEST_F(CliTest, BadUsageExitsWith2AndNamesTheNearest) {
  expect_refused("", 2, {"no command"});
  expect_refused("repaly good.csv", 2, {"unknown command 'repaly'", "did you mean 'replay'?"});
  expect_refused("replay", 2, {"TRACE"});
  expect_refused("replay good.csv --capcity 1x", 2, {"'--capcity'", "did you mean '--capacity'?"});
  expect_refused("replay --jsn x", 2, {"'--jsn'", "did you mean '--json'?"});
  expect_refused("replay good.csv --frobnicate", 2, {"'--frobnicate'", "known:", "--allocator"});
  expect_refused("replay good.csv --allocator torchnative",
                 2,
                 {"unknown allocator 'torchnative'", "did you mean 'torch-native'?"});
  expect_refused("replay good.csv --allocator ,", 2, {"names no allocator", "torch-expandable"});
  expect_refused("replay good.csv --device sim:h100-80gb", 2, {"h100-80gb", "sim:h100-80g"});
  expect_refused("replay good.csv --device gpu0", 2, {"'gpu0'", "cuda:N"});
  expect_refused("replay good.csv --device cuda:x", 2, {"'cuda:x'"});
  expect_refused("replay good.csv --device cuda:-1", 2, {"'cuda:-1'"});
  expect_refused("replay good.csv --device cuda:99", 2, {"--device cuda:99: "});
  expect_refused("replay good.csv --device sim:none.json", 2, {"none.json"});
  expect_refused(
      "replay good.csv --conf handle_sze:8MiB", 2, {"handle_sze", "did you mean handle_size?"});
  expect_refused("replay good.csv --conf handle_size:huge", 2, {"handle_size", "huge"});
  expect_refused("replay good.csv --conf reserve_slack:-0.5", 2, {"\"-0.5\" is outside 0 to 10"});
  expect_refused("replay good.csv --conf metrics:99999", 2, {"metrics: \"99999\"", "1 to 65535"});
  expect_refused("replay good.csv --capacity lots", 2, {"--capacity 'lots'", "24GiB", "1.02x"});
  expect_refused("replay good.csv --capacity -1x", 2, {"--capacity '-1x'"});
  expect_refused(
      "replay good.csv --format rrm", 2, {"unknown trace format 'rrm'; did you mean 'rmm'?"});
  expect_refused("replay good.csv --stream-lag -5", 2, {"--stream-lag"});
  expect_refused("replay good.csv --stream-lag soon", 2, {"--stream-lag"});
  expect_refused("replay good.csv --stream-lag ''", 2, {"--stream-lag: its value is empty"});
  expect_refused("replay good.csv --json ''", 2, {"--json: its value is empty"});
  expect_refused("convert good.csv --to cvs out", 2, {"'cvs'", "did you mean 'csv'?"});
  for (const char* to : {"auto", "foo"}) {
    expect_refused(std::string("convert good.csv --to ") + to + " out",
                   2,
                   {"--to: unknown trace format '",
                    "(known: nofrag, csv, torch-snapshot, perfetto, minimalloc)"});
  }
  expect_refused("convert good.csv out", 2, {"--to"});
  expect_refused("doctor --device cuda:99", 2, {"cuda:99"});
  expect_refused("doctor extra", 2, {"unknown argument 'extra'"});
}

TEST_F(CliTest, MessagesNameTheOptionAndWhatToDo) {
  expect_refused(
      "replay", 2, {"replay: TRACE is missing (", "csv.gz", "see 'nofrag replay --help'"});
  expect_refused("convert", 2, {"convert: IN is missing (", "see 'nofrag convert --help'"});
  expect_refused("convert good.csv --to csv", 2, {"convert: OUT is missing ("});
  expect_refused("convert good.csv out", 2, {"convert: --to is missing (nofrag, csv, "});
  expect_refused("replay good.csv --capacity", 2, {"--capacity: its value is missing (", "24GiB"});
  expect_refused("replay good.csv --device a --device b", 2, {"--device: given more than once"});
  expect_refused(
      "replay good.csv --stream-lag soon", 2, {"--stream-lag: expected a number, found 'soon' ("});
  // A switch with a value is no switch: whoever writes it means something else.
  expect_refused("replay good.csv --min-capacity=5", 2, {"--min-capacity takes no value"});
  expect_refused("replay good.csv --quiet=no", 2, {"--quiet takes no value"});
  expect_refused("convert good.csv --to csv out --force=0", 2, {"--force takes no value"});
}

TEST_F(CliTest, WithoutAGpuTheSimulatedOneIsNamed) {
  if (parse_json(run("doctor --json -").out)["cuda_problem"].is_null()) {
    GTEST_SKIP() << "there is a GPU";
  }
  expect_refused("doctor --device cuda:0", 2, {"--device cuda:0: ", "--device sim:h100-80g"});
  expect_refused("replay good.csv --device cuda:0", 2, {"--device sim:h100-80g"});
}

// What doctor says of devices, without its list of variables.
std::string devices_of(const Outcome& doctor) {
  const std::size_t list = doctor.out.find("Environment\n");
  const std::size_t behind = doctor.out.find("Simulated devices");
  return doctor.out.substr(0, std::min(list, behind)) + doctor.out.substr(behind);
}

TEST_F(CliTest, OptionsComeFromTheEnvironmentTooAndTheCommandLineIsStronger) {
  const std::string doctor = "doctor --device sim:h100-80g";
  EXPECT_NE(run(doctor, "backend:plain").out.find("backend:plain says so"), std::string::npos);
  EXPECT_EQ(devices_of(run(doctor + " --conf backend:auto", "backend:plain")), run(doctor).out);
  EXPECT_NE(run(doctor).out.find("handles of 8.00 MiB"), std::string::npos) << "the policy's";
  const std::string both = run(doctor + " --conf rdma:false", "handle_size:64MiB").out;
  EXPECT_NE(both.find("handles of 64.00 MiB"), std::string::npos) << both;
  EXPECT_NE(both.find("rdma:false"), std::string::npos) << "key by key";
  EXPECT_EQ(run("replay good.csv --allocator nofrag", "limit:4MiB").code, 4);
  EXPECT_EQ(run("replay good.csv --allocator nofrag --conf limit:none", "limit:4MiB").code, 0);
  expect_refused("replay good.csv", 2, {"NOFRAG_CONF: ", "did you mean limit?"}, "limt:4MiB");
}

TEST_F(CliTest, OptionsAreConfirmedWithTheirSourceOnRequest) {
  for (const char* command : {"replay good.csv --allocator nofrag --json -",
                              "report good.csv --allocator nofrag -o page.html",
                              "doctor --device sim:h100-80g --json -",
                              "explain good.csv --json -"}) {
    const std::string asked = std::string(command) + " --conf confirm_conf:true,policy:lean";
    const Outcome outcome = run(asked, "policy:fast,rdma:false");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("nofrag: options in use\n"), 0U) << outcome.err;
    for (const char* line :
         {"\npolicy:lean (--conf)\n", "\nrdma:false (NOFRAG_CONF)\n", "\nlimit:none (default)\n"}) {
      EXPECT_NE(outcome.err.find(line), std::string::npos) << command << "\n" << outcome.err;
    }
    EXPECT_EQ(outcome.out.find("(default)"), std::string::npos)
        << "standard output is the result's";
    EXPECT_EQ(run(command, "policy:fast").err.find("options in use"), std::string::npos) << command;
  }
}

TEST_F(CliTest, TheJsonSaysWithWhichOptionsNofragPlayed) {
  const auto runs_of = [&](const std::string& arguments, const std::string& conf) {
    return parse_json(run("replay good.csv --json - " + arguments, conf).out)["traces"][0]["runs"];
  };
  const json runs = runs_of("--conf policy:lean,limit:1GiB", "rdma:false,policy:fast");
  EXPECT_EQ(runs[0]["conf"], "policy:lean,limit:1GiB,rdma:false");
  EXPECT_FALSE(runs[1].contains("conf")) << "a peer has none of nofrag's options";
  EXPECT_EQ(runs_of("", "")[0]["conf"], "");
}

TEST_F(CliTest, WithoutADeviceTheDriverOptionDecides) {
  write_file(folder_ / "small.json", [] {
    json device = parse_json(read_file(NOFRAG_SIM "/h100-80g.json"));
    device["name"] = "a smaller card";
    device["total_memory"] = 64 << 20;
    return device.dump();
  }());
  const std::string small = "driver:sim:small.json";
  const auto device_of = [&](const std::string& arguments, const std::string& conf) {
    const json result = parse_json(run("replay good.csv --json - " + arguments, conf).out);
    return result["traces"][0]["runs"][0]["device"].get<std::string>();
  };
  EXPECT_EQ(device_of("", ""), "sim:h100-80g");
  EXPECT_EQ(device_of("", small), "sim:small.json");
  EXPECT_EQ(device_of("--conf " + small, "driver:cuda"), "sim:small.json");
  EXPECT_EQ(device_of("--device sim:h100-80g", small), "sim:h100-80g");

  const json found = parse_json(run("doctor --json -", small).out);
  ASSERT_EQ(found["devices"].size(), 1U);
  EXPECT_EQ(found["devices"][0]["device"], "sim:small.json");
  EXPECT_EQ(found["devices"][0]["name"], "a smaller card");
  EXPECT_NE(run("doctor", small).out.find("because NOFRAG_CONF says " + small), std::string::npos);
  EXPECT_EQ(run("doctor --conf driver:cuda", small).out.find("Only the device"), std::string::npos);
  EXPECT_EQ(devices_of(run("doctor --device sim:h100-80g", small)),
            run("doctor --device sim:h100-80g").out);

  for (const char* command : {"doctor", "replay good.csv"}) {
    expect_refused(command,
                   2,
                   {"NOFRAG_CONF: driver:sim:h100-80gb: ", "did you mean 'sim:h100-80g'?"},
                   "driver:sim:h100-80gb");
    expect_refused(std::string(command) + " --conf driver:cuda:0",
                   2,
                   {"--conf: driver:cuda:0: expected cuda, sim:NAME"});
  }
  if (!parse_json(run("doctor --json -").out)["cuda_problem"].is_null()) {
    expect_refused("replay good.csv", 2, {"NOFRAG_CONF: driver:cuda: ", "libcuda"}, "driver:cuda");
  }
}

TEST_F(CliTest, WhatADeviceCannotRunIsLeftOutUnlessAskedFor) {
  write_file(folder_ / "plain.json", [] {
    json device = parse_json(read_file(NOFRAG_SIM "/h100-80g.json"));
    device["capabilities"]["virtual_memory"] = false;
    return device.dump();
  }());
  const std::string replay = "replay good.csv --json - --device sim:plain.json";
  const Outcome outcome = run("replay good.csv good.csv --json - --device sim:plain.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err,
            "nofrag: note: torch-expandable is left out: sim:plain.json has no virtual memory, "
            "which it needs\n");
  const json result = parse_json(outcome.out);
  for (const json& trace : result["traces"]) {
    ASSERT_EQ(trace["runs"].size(), 2U);
    EXPECT_EQ(trace["runs"][0]["allocator"], "nofrag");
    EXPECT_EQ(trace["runs"][1]["allocator"], "torch-native");
  }
  EXPECT_EQ(run("report good.csv -o page.html --device sim:plain.json").code, 0);
  expect_refused(replay + " --allocator nofrag,torch-expandable",
                 2,
                 {"torch-expandable: this device has no virtual memory"});
}

TEST_F(CliTest, DoctorWarnsOfALimitUnderWhichNothingCanBeAllocated) {
  const std::string doctor = "doctor --device sim:h100-80g --json - --conf ";
  const std::string replay = "replay tiny.csv --allocator nofrag --conf ";
  write_file(folder_ / "tiny.csv", "time_us,op,id,size,stream\n0,a,0,1,0\n");
  const auto finding = [&](const std::string& conf) {
    return parse_json(run(doctor + conf).out)["devices"][0];
  };
  struct Case {
    const char* conf;
    bool usable;
    const char* warning;
  };
  // What doctor says is what a replay meets.
  for (const Case& c : {Case{"limit:1MiB", false, "write limit:2MiB or more"},
                        Case{"limit:0", false, "limit:0B is less than the 2.00 MiB"},
                        Case{"limit:2097151", false, "write limit:2MiB or more"},
                        Case{"limit:2MiB", true, ""},
                        Case{"memory_fraction:0.00001", false, "write memory_fraction:2.5e-05"},
                        Case{"memory_fraction:2.5e-05", true, ""},
                        Case{"backend:plain,limit:511", false, "write limit:512B or more"},
                        Case{"backend:plain,limit:512", true, ""}}) {
    SCOPED_TRACE(c.conf);
    const json found = finding(c.conf);
    EXPECT_EQ(found["usable"], c.usable);
    EXPECT_EQ(found["warning"].is_null(), c.usable) << found["warning"];
    if (!c.usable) {
      EXPECT_NE(found["warning"].get<std::string>().find(c.warning), std::string::npos)
          << found["warning"];
    }
    const Outcome replayed = run(replay + c.conf);
    EXPECT_EQ(replayed.code, c.usable ? 0 : 4);
    const std::string said = "note: nofrag can serve nothing: --conf: ";
    EXPECT_EQ(replayed.err.find(said) != std::string::npos, !c.usable) << replayed.err;
    EXPECT_NE(replayed.err.find(c.warning), std::string::npos) << replayed.err;
  }
  EXPECT_EQ(
      run("replay tiny.csv tiny.csv --allocator nofrag --quiet", "limit:5").err,
      "nofrag: note: nofrag can serve nothing: NOFRAG_CONF: limit:5B is less than the 2.00 MiB "
      "that nofrag takes at least; write limit:2MiB or more, or leave it out\n");
  EXPECT_EQ(run("replay tiny.csv --allocator driver --quiet", "limit:5").err, "");
  EXPECT_NE(run("replay tiny.csv --quiet --conf memory_fraction:0.5", "limit:5")
                .err.find("nothing: NOFRAG_CONF: limit:5B is"),
            std::string::npos);
  const Outcome said = run("doctor --device sim:h100-80g", "limit:1MiB");
  EXPECT_EQ(said.code, 0);
  EXPECT_NE(said.out.find("nothing: every allocation would fail"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("WARNING           limit:1MiB is less"), std::string::npos) << said.out;
}

TEST_F(CliTest, BadUsageIsFoundBeforeAnyTraceIsRead) {
  expect_refused("replay missing.csv --capacity lots", 2, {"--capacity"});
  expect_refused("replay missing.csv --capacity ''", 2, {"--capacity"});
  expect_refused("replay missing.csv --conf x:1", 2, {"--conf"});
}

struct BadTrace {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
};

TEST_F(CliTest, BadTracesExitWith3AndSayWhere) {
  const std::string header = "time_us,op,id,size,stream\n";
  const std::vector<BadTrace> table = {
      {"empty", "", {"bad:1: found an empty file", "expected a nofrag trace"}},
      {"header only", header, {"bad:1", "no events"}},
      {"double free",
       header + "1,a,0,9,0\n2,f,0,9,0\n3,f,0,9,0\n",
       {"bad:4:", "id 0 freed twice (first at line 3)", "expected the id of a live block"}},
      {"unknown id", header + "1,f,7,9,0\n", {"bad:2:", "id 7, which was never allocated"}},
      {"negative size", header + "1,a,0,-9,0\n", {"bad:2:", "negative size -9", "expected size"}},
      {"binary",
       std::string("\x7f"
                   "ELF\x02\x01\x01\x00\x00",
                   9),
       {"bad: byte 0:", "\\x7fELF"}},
      {"text", "hello\nworld\n", {"bad:1:", "'hello'", "time_us,op,id,size,stream"}},
      {"truncated gzip",
       std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10),
       {"bad: byte 10:", "truncated"}},
      {"torn packed",
       std::string("\x8eNFTRC\r\n\x01\x00\x10\x00\x00\x00\x00\x00NFBK", 20),
       {"bad: byte 20:", "torn tail", "block header of 24 bytes"}},
      {"newer packed",
       std::string("\x8eNFTRC\r\n\x07\x00\x10\x00\x00\x00\x00\x00", 16),
       {"bad: byte 8:", "version 7"}},
  };
  for (const BadTrace& bad : table) {
    SCOPED_TRACE(bad.name);
    write_file(folder_ / "bad", bad.bytes);
    expect_refused("replay bad", 3, bad.parts);
    expect_refused("replay good.csv bad --json out.json", 3, bad.parts);
    EXPECT_FALSE(fs::exists(folder_ / "out.json")) << "no half results";
    expect_refused("convert bad --to csv out.csv", 3, bad.parts);
    EXPECT_FALSE(fs::exists(folder_ / "out.csv"));
  }
  expect_refused("replay missing.csv", 3, {"missing.csv: found no readable file"});
  expect_refused("replay .", 3, {"directory"});
  expect_refused("replay good.csv --format nofrag",
                 3,
                 {"good.csv: byte 0", "the format csv; expected nofrag"});
}

TEST_F(CliTest, ReplayPrintsATableAndExits0) {
  const Outcome outcome = run("replay good.csv");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"good.csv", "3 events", "nofrag", "torch-native", "torch-expandable"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(run("replay good.csv --quiet").out, "");
}

TEST_F(CliTest, ComparesWithAnEarlierReplay) {
  ASSERT_EQ(run("replay good.csv --quiet --json old.json").code, 0);
  const Outcome outcome = run("replay good.csv --allocator nofrag,driver --compare old.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"Changes since the earlier replay", "+0.00 %", "driver           not in the earlier"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  expect_refused(
      "replay good.csv --compare good.csv", 2, {"--compare good.csv: expected the JSON"});
}

TEST_F(CliTest, SpeedIsForRealDevices) {
  expect_refused("replay good.csv --speed 1", 2, {"--speed: a simulated device", "cuda:N"});
  expect_refused("replay good.csv --speed -1", 2, {"--speed: expected a number from 0"});
}

TEST_F(CliTest, RunningOutOfMemoryExits4AndIsAResult) {
  const Outcome outcome = run("replay good.csv --capacity 4MiB --json -");
  EXPECT_EQ(outcome.code, 4);
  const json result = parse_json(outcome.out);
  for (const json& run : result["traces"][0]["runs"]) {
    EXPECT_FALSE(run["completed"].get<bool>());
    EXPECT_EQ(run["oom"]["event"], 1);
    EXPECT_EQ(run["oom"]["cause"], "capacity");
    EXPECT_EQ(run["capacity_bytes"], 4 << 20);
  }
}

TEST_F(CliTest, JsonGoesToTheFileAndTheTableToTheScreen) {
  const Outcome outcome = run("replay good.csv good.csv --json result.json --min-capacity");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("min/live"), std::string::npos);
  const json result = parse_json(read_file(folder_ / "result.json"));
  EXPECT_EQ(result["schema"], "nofrag.replay/1");
  ASSERT_EQ(result["traces"].size(), 2U);
  EXPECT_EQ(result["traces"][1]["path"], "good.csv");
  EXPECT_EQ(result["traces"][0]["runs"].size(), 3U);
  EXPECT_EQ(result["traces"][0]["min_capacity"].size(), 3U);
  EXPECT_GE(result["traces"][0]["min_capacity"][0]["bytes"], 5001024);
  EXPECT_EQ(run("replay good.csv --json /nonexistent/x.json").code, 2);
}

TEST_F(CliTest, NoOutputOverwritesAnInputOrAnotherOutput) {
  const std::string good = read_file(folder_ / "good.csv");
  fs::create_symlink("good.csv", folder_ / "link.csv");
  fs::create_hard_link(folder_ / "good.csv", folder_ / "hard.csv");
  for (const char* output : {"good.csv", "./good.csv", "link.csv", "hard.csv"}) {
    const std::string name = output;
    for (const std::string& arguments : {"replay good.csv --json " + name,
                                         "replay good.csv --html " + name,
                                         "replay - --json " + name + " < good.csv",
                                         "report good.csv -o " + name,
                                         "explain good.csv --json " + name}) {
      expect_refused(arguments, 2, {name + ": is an input of this command", "name another file"});
      EXPECT_EQ(read_file(folder_ / "good.csv"), good) << arguments;
    }
  }
  write_file(folder_ / "small.json", read_file(NOFRAG_SIM "/h100-80g.json"));
  for (const char* command : {"replay good.csv", "doctor"}) {
    expect_refused(std::string(command) + " --device sim:small.json --json small.json",
                   2,
                   {"small.json: is an input of this command"});
  }
  expect_refused("replay good.csv --json a --html ./a", 2, {"--json and --html both write ./a"});
  ASSERT_EQ(run("convert good.csv --to nofrag kept.nofrag").code, 0);
  const std::string kept = read_file(folder_ / "kept.nofrag");
  write_file(folder_ / "oom.log", "torch.OutOfMemoryError: CUDA out of memory.");
  expect_refused("explain --json oom.log < /dev/null", 2, {"oom.log: is there and no JSON"});
  for (const char* arguments : {"report good.csv -o kept.nofrag",
                                "replay good.csv --json kept.nofrag",
                                "explain good.csv --json kept.nofrag"}) {
    expect_refused(arguments, 2, {"kept.nofrag: is there and no ", "name another file"});
    EXPECT_EQ(read_file(folder_ / "kept.nofrag"), kept) << arguments;
  }
  EXPECT_EQ(run("convert good.csv --to nofrag kept.nofrag --force").code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  expect_refused("report good.csv --json a -o a", 2, {"--json and -o both write a"});
  expect_refused("replay good.csv --json - --html -", 2, {"both write standard output (-)"});
  EXPECT_EQ(run("replay good.csv --json /dev/null --html /dev/null").code, 0) << "nothing is lost";
}

TEST_F(CliTest, ALimitIsNamedAndHowItIsLifted) {
  const Outcome replayed = run("replay good.csv --allocator nofrag", "limit:4MiB");
  EXPECT_EQ(replayed.code, 4);
  EXPECT_NE(replayed.out.find("cause: limit of 4.00 MiB"), std::string::npos) << replayed.out;
  const json oom = parse_json(run("replay good.csv --allocator nofrag --json -", "limit:4MiB")
                                  .out)["traces"][0]["runs"][0]["oom"];
  EXPECT_EQ(oom["cause"], "limit");
  EXPECT_EQ(oom["limit_bytes"], 4 << 20);
  const json verdict = parse_json(run("explain good.csv --json -", "limit:4MiB").out);
  EXPECT_EQ(verdict["cause"], "limit");
  EXPECT_EQ(verdict["numbers"]["limit_bytes"], 4 << 20);
  const std::string said = verdict["evidence"].dump();
  EXPECT_NE(said.find("limit:4MiB in NOFRAG_CONF"), std::string::npos) << said;
  EXPECT_NE(said.find("without the limit the same trace runs to its end"), std::string::npos)
      << said;
  EXPECT_NE(verdict["advice"].dump().find("limit:none lifts it"), std::string::npos);
  const json fraction =
      parse_json(run("explain good.csv --json - --conf memory_fraction:0.00005").out);
  EXPECT_EQ(fraction["cause"], "limit");
  EXPECT_NE(fraction["evidence"].dump().find("memory_fraction:5e-05 in --conf"), std::string::npos);
  // Lifting it does not help where the device is too small as well.
  write_file(folder_ / "three.csv",
             "time_us,op,id,size,stream\n0,a,0,3145728,0\n1,a,1,3145728,0\n2,a,2,3145728,0\n");
  const json small =
      parse_json(run("explain three.csv --capacity 8MiB --json - --conf limit:4MiB").out);
  EXPECT_NE(small["cause"], "limit");
  EXPECT_NE(small["evidence"].dump().find("limit:4MiB in --conf ends it 1 events earlier"),
            std::string::npos)
      << small;
}

TEST_F(CliTest, BadOptionsAreRefusedByExplainToo) {
  write_file(folder_ / "oom.log", "CUDA out of memory. Tried to allocate 20.00 MiB");
  expect_refused("explain good.csv", 2, {"NOFRAG_CONF: ", "did you mean limit?"}, "limt:4MiB");
  expect_refused("explain oom.log --conf limt:4MiB", 2, {"--conf: ", "did you mean limit?"});
  EXPECT_EQ(run("explain oom.log", "limt:4MiB").code, 0) << "a message needs no options";
  expect_refused("explain oom.log --capacity lots", 2, {"--capacity 'lots'"});
}

TEST_F(CliTest, StandardInputIsATraceToo) {
  const Outcome outcome = run("replay - --json - --allocator driver < good.csv");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(parse_json(outcome.out)["traces"][0]["events"], 3);
}

TEST_F(CliTest, CapacityMultiplesFollowTheTrace) {
  const Outcome outcome = run("replay good.csv --capacity 2x --json - --allocator driver");
  // Peak live 5,001,216 + 1,024 bytes, doubled and rounded up to 2 MiB.
  EXPECT_EQ(parse_json(outcome.out)["traces"][0]["runs"][0]["capacity_bytes"], 10 << 20);
}

TEST_F(CliTest, ConvertIsLosslessAndDoesNotOverwrite) {
  ASSERT_EQ(run("convert good.csv --to nofrag packed").code, 0);
  ASSERT_EQ(run("convert packed --to csv back.csv").code, 0);
  EXPECT_EQ(read_file(folder_ / "back.csv"), read_file(folder_ / "good.csv"));
  expect_refused("convert good.csv --to nofrag packed", 2, {"packed: exists already", "--force"});
  EXPECT_EQ(run("convert good.csv --to nofrag packed --force").code, 0);
  EXPECT_EQ(run("convert packed --to csv -").out, read_file(folder_ / "good.csv"));
  fs::create_symlink("good.csv", folder_ / "link.csv");
  fs::create_hard_link(folder_ / "good.csv", folder_ / "hard.csv");
  for (const char* output : {"good.csv", "./good.csv", "link.csv", "hard.csv"}) {
    const std::string name = output;
    for (const char* input : {"good.csv ", "- "}) {
      const std::string from = input == std::string("- ") ? " < good.csv" : "";
      expect_refused("convert " + std::string(input) + "--to nofrag " + name + " --force" + from,
                     2,
                     {name + ": is an input of this command"});
    }
  }
  EXPECT_EQ(read_file(folder_ / "good.csv"), read_file(folder_ / "back.csv"));
  EXPECT_EQ(run("convert good.csv --to csv /nonexistent/x").code, 2);
}

TEST_F(CliTest, ConvertPacksWhatEndsInGz) {
  const std::string good = read_file(folder_ / "good.csv");
  ASSERT_EQ(run("convert good.csv --to csv out.csv.gz").code, 0);
  EXPECT_EQ(read_file(folder_ / "out.csv.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(run("convert out.csv.gz --to csv -").out, good);
  EXPECT_EQ(std::system(("gzip -dc " + (folder_ / "out.csv.gz").string() + " | cmp - " +
                         (folder_ / "good.csv").string())
                            .c_str()),
            0);
  expect_refused("convert good.csv --to csv out.csv.gz", 2, {"out.csv.gz: exists already"});
  EXPECT_EQ(run("convert good.csv --to csv out.csv.gz --force").code, 0);
  EXPECT_EQ(run("convert out.csv.gz --to csv -").out, good);
  ASSERT_EQ(run("convert good.csv --to nofrag out.nofrag.gz").code, 0);
  EXPECT_EQ(run("convert out.nofrag.gz --to csv -").out, good);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".partial");
  }
  EXPECT_EQ(run("convert good.csv --to csv /nonexistent/x.gz").code, 2);
}

TEST_F(CliTest, CommittedTracesAreTheRecordedJobs) {
  const std::vector<std::pair<std::string, int>> facts = {
      {"gpt_varlen", 69259}, {"lora_ckpt", 157308}, {"llm_serve", 757403}, {"multistream8", 70856}};
  for (const auto& [name, events] : facts) {
    const Outcome outcome =
        run("replay " NOFRAG_TRACES "/" + name + ".nofrag --allocator torch-native --json -");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json trace = parse_json(outcome.out)["traces"][0];
    EXPECT_EQ(trace["events"], events);
    EXPECT_EQ(trace["format"], "nofrag");
  }
}

TEST_F(CliTest, DoctorAnswersWithAndWithoutAGpu) {
  const Outcome outcome = run("doctor");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("sim:h100-80g"), std::string::npos);
  const json result = parse_json(run("doctor --json -").out);
  EXPECT_EQ(result["schema"], "nofrag.doctor/1");
  EXPECT_EQ(result["devices"].empty(), !result["cuda_problem"].is_null());
  const json simulated = parse_json(run("doctor --device sim:h100-80g --json -").out);
  const std::string page = read_file(NOFRAG_DOCS "/replay.md");
  const std::string section = page.substr(page.find("\n## Doctor"));
  for (const json& object : {simulated, simulated["devices"][0]}) {
    for (const auto& [field, value] : object.items()) {
      EXPECT_NE(section.find("`" + field + "`"), std::string::npos)
          << field << " is not in docs/replay.md";
    }
  }
  EXPECT_TRUE(simulated["devices"][0]["virtual_memory"].get<bool>());
  EXPECT_NE(
      run("doctor --device sim:h100-80g --conf policy:lean").out.find("4.00 MiB to 16.00 MiB"),
      std::string::npos)
      << "the policy's sizes, not the option's zero";
  EXPECT_NE(
      run("doctor --device sim:h100-80g --conf backend:plain").out.find("backend:plain says so"),
      std::string::npos);
}

}  // namespace
