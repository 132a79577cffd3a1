// Call stacks on their way from the recorder through the file to names.
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "../record/recording_file.h"
#include "trace/load_traces.h"
#include "trace/packed_codec.h"
#include "trace/record/record_rewriter.h"
#include "trace/record/recorder.h"
#include "trace/stacks/stack_rows.h"
#include "trace/symbols/call_sites.h"
#include "trace/symbols/elf_symbols.h"

namespace nofrag {

// Not in the unnamed namespace, so that it has a name to be found by.
[[gnu::noinline]] void allocate_in_a_known_place(Recorder& recorder, std::uint64_t address) {
  AllocatorEvent event;
  event.kind = EventKind::kAlloc;
  event.address = VirtAddr(address);
  event.size = Bytes(512);
  event.requested = Bytes(512);
  recorder.on_event(event);
  __asm__ volatile("");
}

namespace {

class RecordedStacks : public testing::Test {
 protected:
  ~RecordedStacks() override {
    recorder_.reset();
    std::remove(path_.c_str());
  }
  void start(StackSettings stacks, std::uint64_t keep = 0) {
    RecorderSettings settings;
    settings.path = path_;
    settings.keep = keep;
    settings.stacks = stacks;
    std::string problem;
    recorder_ = Recorder::start(std::move(settings), &problem);
    ASSERT_NE(recorder_, nullptr) << problem;
  }
  std::vector<Trace> read() {
    std::vector<Trace> traces;
    const auto error = load_traces(path_, TraceFormat::kAuto, &traces);
    EXPECT_FALSE(error.has_value()) << error->message();
    return traces;
  }

  std::string path_ = temporary_path("stacks");
  std::unique_ptr<Recorder> recorder_;
};

TEST_F(RecordedStacks, ABlockHasTheNameOfItsFunction) {
  start({1, UINT64_MAX});
  for (std::uint64_t i = 1; i <= 10; ++i) {
    allocate_in_a_known_place(*recorder_, 0x1000 * i);
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const std::vector<Trace> traces = read();
  ASSERT_EQ(traces.size(), 1U);
  const Trace& trace = traces.front();
  EXPECT_TRUE(trace.warnings.empty());
  ASSERT_EQ(trace.sites.size(), 10U);
  bool found = false;
  for (const std::string& frame : trace.site_frames[trace.sites[5]]) {
    found = found || frame.find("!nofrag::allocate_in_a_known_place(") != std::string::npos;
  }
  EXPECT_TRUE(found) << trace.site_names[trace.sites[5]];
  EXPECT_EQ(trace.recording->info.at("stacks"), "1");
}

TEST_F(RecordedStacks, NothingIsTakenUnlessAsked) {
  start({});
  allocate_in_a_known_place(*recorder_, 0x1000);
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const std::vector<Trace> traces = read();
  EXPECT_TRUE(traces.front().sites.empty());
  EXPECT_TRUE(traces.front().recording->stacks.empty());
  EXPECT_FALSE(traces.front().recording->info.contains("stacks"));
}

TEST_F(RecordedStacks, WhatWasNotSampledSaysSo) {
  start({1000, UINT64_MAX});
  for (std::uint64_t i = 1; i <= 100; ++i) {
    allocate_in_a_known_place(*recorder_, 0x1000 * i);
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const Trace trace = std::move(read().front());
  EXPECT_NE(trace.recording->blocks[0].site, 0U) << "a thread's first";
  EXPECT_EQ(trace.site_names[trace.sites[1]], "(not sampled)");
  EXPECT_TRUE(trace.site_frames[trace.sites[1]].empty());
}

TEST_F(RecordedStacks, ManyThreadsAndTheirDefinitions) {
  constexpr std::uint64_t kThreads = 4;
  start({3, UINT64_MAX});
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (std::uint64_t i = 0; i < 3000; ++i) {
        allocate_in_a_known_place(*recorder_, (t << 32) + 0x1000 * i);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(recorder_->flush());
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const Trace trace = std::move(read().front());
  std::size_t sampled = 0;
  for (const Recording::Block& block : trace.recording->blocks) {
    if (block.site != 0) {
      ++sampled;
      ASSERT_TRUE(trace.recording->stacks.contains(block.site));
    }
  }
  EXPECT_NEAR(static_cast<double>(sampled), kThreads * 1000, 300);
}

// Its file has the definitions of stacks that were first seen long before the events it kept.
TEST_F(RecordedStacks, AFlightRecorderKeepsAllDefinitions) {
  start({1, UINT64_MAX}, 4096);
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    allocate_in_a_known_place(*recorder_, 0x1000 * i);
    if (i % 1000 == 0) {
      EXPECT_TRUE(recorder_->flush());
    }
  }
  EXPECT_TRUE(recorder_->flush());
  const Trace trace = std::move(read().front());
  for (const Recording::Block& block : trace.recording->blocks) {
    ASSERT_TRUE(trace.recording->stacks.contains(block.site));
  }
}

// ---- files

Recording::Stack a_stack() {
  Recording::Stack stack;
  stack.native = {{1, 0x1234}, {0, 0x7f0000001000}};
  stack.python = {{"/home/me/site-packages/torch/nn/functional.py", 114, "linear"},
                  {"/home/me/job/model.py", 31, "Model.forward"}};
  return stack;
}

RecordEvent sampled(std::uint64_t tick, std::uint64_t address, std::uint32_t site) {
  RecordEvent event = an_alloc(tick, address);
  event.site = site;
  return event;
}

std::string a_file() {
  RecordingFile file;
  std::string modules;
  append_module(1, {"/nowhere/libjob.so", "\x01\x02"}, &modules);
  std::string stacks;
  append_stack(1, a_stack(), &stacks);
  Recording::Stack native;
  native.native = {{1, 0x10}};
  append_stack(2, native, &stacks);
  EXPECT_TRUE(file.output().add_lasting_block(NOFRAG_TRACE_BLOCK_MODULES, modules, 1));
  EXPECT_TRUE(file.output().add_lasting_block(NOFRAG_TRACE_BLOCK_STACKS, stacks, 2));
  file.add({sampled(1, 0x1000, 1), sampled(2, 0x2000, 2), sampled(3, 0x3000, 0)});
  return file.finish();
}

std::vector<Trace> traces_of(std::string_view bytes) {
  std::vector<Trace> traces;
  const auto error = load_traces_from_memory(bytes, "t.nofrag", TraceFormat::kAuto, &traces);
  EXPECT_FALSE(error.has_value()) << error->message();
  return traces;
}

TEST(StackFiles, AreNamedAsFarAsTheirModulesAreThere) {
  const Trace trace = std::move(traces_of(a_file()).front());
  ASSERT_EQ(trace.sites.size(), 3U);
  EXPECT_EQ(trace.site_names[trace.sites[0]], "job/model.py:31 Model.forward");
  EXPECT_EQ(trace.site_names[trace.sites[1]], "libjob.so+0x10");
  EXPECT_EQ(trace.site_names[trace.sites[2]], "(not sampled)");
  const std::vector<std::string> frames = {
      "libjob.so+0x1234",
      "0x7f0000001000",
      "/home/me/site-packages/torch/nn/functional.py:114 linear",
      "/home/me/job/model.py:31 Model.forward"};
  EXPECT_EQ(trace.site_frames[trace.sites[0]], frames);
}

TEST(StackFiles, ComeBackFromARewrittenFileWithTheirNames) {
  const Trace trace = std::move(traces_of(a_file()).front());
  std::string bytes;
  ASSERT_TRUE(write_recording(trace, [&bytes](std::string_view more) {
    bytes.append(more);
    return true;
  }));
  const Trace back = std::move(traces_of(bytes).front());
  EXPECT_EQ(back.site_names, trace.site_names);
  EXPECT_EQ(back.site_frames, trace.site_frames);
  ASSERT_EQ(back.recording->stacks.size(), 2U);
  EXPECT_EQ(back.recording->stacks.at(1).native[0].offset, 0x1234U);
  EXPECT_EQ(back.recording->stacks.at(1).python[1].line, 31U);
  EXPECT_EQ(back.recording->modules.at(1).build_id, "\x01\x02");
  EXPECT_EQ(back.recording->sites.size(), 2U) << "the names are in the file now";
}

TEST(StackFiles, TornAnywhereAreReadToTheirLastWholeBlock) {
  const std::string bytes = a_file();
  std::size_t read = 0;
  for (std::size_t cut = 16; cut < bytes.size(); ++cut) {
    std::vector<Trace> traces;
    const auto error = load_traces_from_memory(
        std::string_view(bytes).substr(0, cut), "t.nofrag", TraceFormat::kAuto, &traces);
    if (!error.has_value()) {
      ++read;
      EXPECT_EQ(traces.front().site_names.size(), 3U) << "cut at " << cut;
    } else {
      EXPECT_EQ(error->kind, TraceError::Kind::kEmpty) << error->message();
    }
  }
  EXPECT_GT(read, 0U);
}

TEST(StackFiles, DamageIsRefusedWithItsPlace) {
  const std::string bytes = a_file();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    Trace trace;
    const auto error = read_recording(damaged, &trace);
    EXPECT_TRUE(!error.has_value() || error->offset.has_value() || error->line.has_value()) << at;
  }
}

// What a file with these rows is refused for; its events stand behind them.
std::string refusal(const std::string& modules,
                    std::size_t module_count,
                    const std::string& stacks,
                    std::size_t stack_count) {
  RecordingFile file;
  EXPECT_TRUE(file.output().add_block(NOFRAG_TRACE_BLOCK_MODULES, modules, module_count));
  EXPECT_TRUE(file.output().add_block(NOFRAG_TRACE_BLOCK_STACKS, stacks, stack_count));
  file.add({an_alloc(1, 0x1000)});
  Trace trace;
  const auto error = read_recording(file.finish(), &trace);
  EXPECT_TRUE(error.has_value());
  EXPECT_TRUE(error.has_value() && error->offset.has_value()) << "with its place";
  return error.has_value() ? error->found : "";
}

TEST(StackFiles, NumbersThatNothingDefinesAreRefused) {
  std::string module;
  append_module(1, {"/a", ""}, &module);
  std::string unknown;
  append_stack(1, Recording::Stack{0, {{2, 0}}, {}}, &unknown);
  EXPECT_NE(refusal(module, 1, unknown, 1).find("module 2, which nothing before defines"),
            std::string::npos);
  std::string stack;
  append_stack(5, Recording::Stack{0, {{1, 7}}, {}}, &stack);
  EXPECT_NE(refusal(module, 1, stack + stack, 2).find("call stack 5 a second time"),
            std::string::npos);
  EXPECT_NE(refusal(module + module, 2, stack, 1).find("module 1 a second time"),
            std::string::npos);
  std::string zero;
  append_stack(0, {}, &zero);
  EXPECT_NE(refusal(module, 1, zero, 1).find("call stack 0"), std::string::npos);
  std::string many;
  append_varint(1, &many);
  append_varint(0, &many);
  append_varint(1U << 20, &many);
  EXPECT_NE(refusal(module, 1, many, 1).find("1048576 frames"), std::string::npos);
  EXPECT_NE(refusal(module, 2, stack, 1).find("runs past its end"), std::string::npos);
  EXPECT_NE(refusal(module, 1, stack, 2).find("runs past its end"), std::string::npos);
}

// ---- symbols

TEST(ElfSymbols, FilesThatAreNoneAnswerNothing) {
  for (const char* path : {"/dev/zero", "/nowhere", "/", "/proc/self/maps", "/etc/passwd"}) {
    std::vector<NamedAddress> addresses = {{0x1000, {}}};
    name_addresses(path, "", &addresses);
    EXPECT_TRUE(addresses[0].function.empty()) << path;
  }
}

TEST(ElfSymbols, AnotherBuildAnswersNothing) {
  std::vector<NamedAddress> addresses;
  for (std::uint64_t at = 0; at < 0x10000; at += 64) {
    addresses.push_back({at, {}});
  }
  name_addresses("/proc/self/exe", "no such build", &addresses);
  for (const NamedAddress& address : addresses) {
    EXPECT_TRUE(address.function.empty());
  }
}

// A module without a build id: nobody knows whether the file that is there now was the one that was loaded.
TEST(ElfSymbols, AFileWithoutABuildIdAnswersNothing) {
  std::vector<NamedAddress> addresses;
  for (std::uint64_t at = 0; at < 0x10000; at += 4) {
    addresses.push_back({at, {}});
  }
  name_addresses(STACK_PLUGIN_NAMELESS, "", &addresses);
  for (const NamedAddress& address : addresses) {
    EXPECT_TRUE(address.function.empty()) << address.function;
  }
}

// A file of random bytes behind a right beginning never does harm.
TEST(ElfSymbols, DamagedFilesDoNoHarm) {
  const std::string whole = file_bytes("/proc/self/exe").substr(0, 1 << 16);
  const std::string path = temporary_path("elf");
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    for (int k = 0; k < 8; ++k) {
      damaged[16 + random() % 48] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary) << damaged;
    std::vector<NamedAddress> addresses = {{0x1000, {}}};
    name_addresses(path, "", &addresses);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace nofrag
