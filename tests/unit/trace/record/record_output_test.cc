// Where blocks go: files with a largest size, flight recorders.
#include <sys/stat.h>

#include "recording_file.h"
#include "trace/packed_codec.h"

namespace nofrag {
namespace {

// Addresses that hardly compress.
std::vector<RecordEvent> many(std::uint64_t first, std::size_t count) {
  std::vector<RecordEvent> events;
  for (std::uint64_t i = first; i < first + count; ++i) {
    events.push_back(an_alloc(i, i * 0x9E3779B97F4A7C15U, 512 * (i % 97 + 1)));
  }
  return events;
}

TEST(RecordOutput, AFileStopsAtItsLargestSizeAndSaysSo) {
  constexpr std::uint64_t kMax = 64 * 1024;
  RecordingFile file(0, kMax);
  std::size_t added = 0;
  while (!file.output().full() && added < 100) {
    file.add(many(added * 1000, 1000));
    ++added;
  }
  ASSERT_TRUE(file.output().full());
  file.add(many(0, 1000));  // into the void
  const std::string bytes = file.finish();
  EXPECT_LE(bytes.size(), kMax);
  EXPECT_GT(bytes.size(), kMax * 9 / 10) << "a part of the block that has no room";
  Trace trace;
  const auto error = read_recording(bytes, &trace);
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_GE(trace.events.size(), (added - 1) * 1000);
  EXPECT_LT(trace.events.size(), added * 1000);
  std::uint64_t tick = 0;
  for (const auto& block : trace.recording->blocks) {
    EXPECT_EQ(block.address, tick++ * 0x9E3779B97F4A7C15U) << "the first ones, all of them";
  }
  EXPECT_NE(trace.warnings.at(0).find("(max=)"), std::string::npos);
}

// As of a fast job: its first block is larger than the file may be.
TEST(RecordOutput, OneLargeBlockFillsASmallFile) {
  constexpr std::uint64_t kMax = 64 * 1024;
  RecordingFile file(0, kMax);
  file.add(many(0, 60000));
  ASSERT_TRUE(file.output().full());
  const std::string bytes = file.finish();
  EXPECT_LE(bytes.size(), kMax);
  EXPECT_GT(bytes.size(), kMax * 9 / 10);
  Trace trace;
  const auto error = read_recording(bytes, &trace);
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_NE(trace.warnings.at(0).find("(max=)"), std::string::npos);
}

TEST(RecordOutput, AFlightRecorderKeepsTheLastAndWhatWasLiveBefore) {
  constexpr std::uint64_t kKeep = 32 * 1024;
  RecordingFile file(kKeep);
  RecordEvent created = an_event(NOFRAG_TRACE_RECORD_CREATE, 1);
  created.size = 1 << 30;
  file.add({created, an_alloc(1, 0x1000, 7), an_alloc(2, 0x2000, 1000), a_free(3, 0x1000)});
  std::uint64_t tick = 10;
  for (int block = 0; block < 40; ++block) {
    std::vector<RecordEvent> events = many(tick, 500);
    for (const RecordEvent& event : many(tick, 500)) {
      events.push_back(a_free(event.tick + 500, event.address));
    }
    file.add(events);
    tick += 1000;
    EXPECT_LE(file.output().bytes(), kKeep);
  }
  EXPECT_TRUE(file.bytes().empty()) << "nobody asked for it yet";
  ASSERT_TRUE(file.output().write_flight(0)) << file.output().problem();
  Trace trace;
  const auto error = read_recording(file.bytes(), &trace);
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_TRUE(trace.recording->whole);
  // The oldest thing that is live stands at the beginning; what was freed long ago is gone.
  EXPECT_EQ(trace.recording->blocks[0].address, 0x2000U);
  EXPECT_TRUE(trace.recording->blocks[0].existing);
  EXPECT_EQ(trace.events[0].size, 1000U);
  EXPECT_EQ(trace.live_at_end, Bytes(1024));
  EXPECT_EQ(trace.recording->peak_reserved.at(0), Bytes(1 << 30));
  EXPECT_LT(trace.allocations, 20000U);
  EXPECT_GT(trace.allocations, 1000U);
  // Again, with what came since.
  file.add({an_alloc(tick, 0x3000, 5)});
  ASSERT_TRUE(file.output().write_flight(3));
  ASSERT_FALSE(read_recording(file.bytes(), &trace).has_value());
  EXPECT_EQ(trace.live_at_end, Bytes(1536));
  EXPECT_EQ(trace.recording->lost, 3U);
}

TEST(RecordOutput, AFlightRecorderLeavesTheFileOfTheLastFlightAlone) {
  RecordingFile file(1 << 20);
  file.add({an_alloc(1, 0x1000)});
  ASSERT_TRUE(file.output().write_flight(0));
  const std::string before = file.bytes();
  RecordOutput next(file.path(), RecordOutput::kNoMax, 1 << 20);
  ASSERT_TRUE(next.start());
  EXPECT_EQ(file.bytes(), before);
}

TEST(RecordOutput, TroubleNamesTheFile) {
  RecordOutput nowhere("/no/such/folder/t.nofrag", RecordOutput::kNoMax, 0);
  EXPECT_FALSE(nowhere.start());
  EXPECT_EQ(nowhere.problem(),
            "/no/such/folder/t.nofrag: cannot be opened (No such file or directory)");
  RecordOutput flight("/no/such/folder/t.nofrag", RecordOutput::kNoMax, 1 << 20);
  EXPECT_FALSE(flight.start());
  RecordOutput full("/dev/full", RecordOutput::kNoMax, 0);
  EXPECT_FALSE(full.start());
  EXPECT_EQ(full.problem(), "/dev/full: cannot be written (No space left on device)");
}

TEST(RecordFile, OneProcessWritesAFile) {
  const std::string path = temporary_path("locked");
  RecordFile first;
  ASSERT_TRUE(first.open(path));
  ASSERT_TRUE(first.append("mine"));
  RecordFile second;
  ASSERT_TRUE(second.open(path));
  EXPECT_EQ(second.path(), path + "." + std::to_string(::getpid()));
  EXPECT_EQ(file_bytes(path), "mine");
  first.close();
  RecordFile third;
  ASSERT_TRUE(third.open(path));
  EXPECT_EQ(third.path(), path);
  EXPECT_EQ(file_bytes(path), "");
  std::remove(path.c_str());
  std::remove(second.path().c_str());
  EXPECT_EQ(RecordFile::expand("a.%p.b"), "a." + std::to_string(::getpid()) + ".b");
}

// What is at the path already: recordings and empty files make room, anything else stays.
TEST(RecordOutput, AForeignFileIsNeverWrittenOver) {
  const std::string path = temporary_path("foreign");
  const auto put = [&path](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  };
  const auto opens = [&path](std::uint64_t keep) {
    RecordOutput output(path, RecordOutput::kNoMax, keep);
    const bool started = output.start();
    if (!started) {
      EXPECT_EQ(output.problem(),
                path + ": exists and is no recording of nofrag's; it is left as it is");
    }
    return started;
  };
  constexpr std::uint64_t kKeep = 1 << 20;
  for (const char* text : {"x", "a thesis, in its only copy", "\x8eNFTRC"}) {
    put(text);
    EXPECT_FALSE(opens(0)) << text;
    EXPECT_FALSE(opens(kKeep)) << text;
    EXPECT_EQ(file_bytes(path), text);
  }
  // Of another source, in the same format; and a recording that was killed in its first block.
  const std::string head = packed_file_header();
  const std::string converted = head + packed_block_header(NOFRAG_TRACE_BLOCK_EVENTS, 0, 0, 0, 0);
  put(converted);
  EXPECT_FALSE(opens(0));
  EXPECT_FALSE(opens(kKeep));
  EXPECT_EQ(file_bytes(path), converted);
  put(head + "NF");
  EXPECT_TRUE(opens(kKeep));
  put("");
  EXPECT_TRUE(opens(0));
  EXPECT_EQ(file_bytes(path).size(), 16U) << "the header, at once";
  EXPECT_TRUE(opens(0)) << "an earlier recording";
  EXPECT_TRUE(opens(kKeep));
  // Somebody wrote it meanwhile.
  RecordOutput flight(path, RecordOutput::kNoMax, kKeep);
  ASSERT_TRUE(flight.start());
  put("mine");
  EXPECT_FALSE(flight.write_flight(0));
  EXPECT_EQ(file_bytes(path), "mine");
  EXPECT_NE(::access((path + ".partial").c_str(), F_OK), 0);
  std::remove(path.c_str());
  // No place for a file that comes when it is whole, as /dev/null is none.
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(opens(kKeep));
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  std::remove(path.c_str());
  RecordOutput late(path, RecordOutput::kNoMax, kKeep);
  ASSERT_TRUE(late.start());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(late.write_flight(0));
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace nofrag
