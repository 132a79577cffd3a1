// What is read of a recording: order, causality, notes, and what cannot be trusted.
#include <algorithm>
#include <cstring>
#include <random>

#include "recording_file.h"
#include "trace/packed_format.h"
#include "trace/record/record_codec.h"
#include "trace/record/split_devices.h"

namespace nofrag {
namespace {

std::vector<RecordEvent> random_events(std::uint32_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<RecordEvent> events;
  for (std::size_t i = 0; i < count; ++i) {
    RecordEvent event{};
    event.tick = random() >> (random() % 64);
    event.address = random() >> (random() % 64);
    event.size = random() >> (random() % 64);
    event.stream = random() % 3 == 0 ? random() : 0;
    event.pool_first = random() % 9 == 0 ? random() : 0;
    event.pool_second = random() % 9 == 0 ? random() : 0;
    event.slack = static_cast<std::uint32_t>(random() >> 40);
    event.detail = static_cast<std::uint32_t>(random() >> 32);
    event.site = random() % 4 == 0 ? static_cast<std::uint32_t>(random()) : 0;
    event.thread = static_cast<std::uint16_t>(random());
    event.device = static_cast<std::uint8_t>(random() % 3);
    event.kind = static_cast<std::uint8_t>(random() % 20);
    events.push_back(event);
  }
  return events;
}

bool same(const RecordEvent& a, const RecordEvent& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST(RecordCodec, RandomEventsRoundTrip) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<RecordEvent> events = random_events(seed, seed * 7);
    const std::string payload = encode_record(events, {123, 456});
    std::vector<RecordEvent> read;
    ClockPair clock;
    std::string why;
    ASSERT_TRUE(
        decode_record(payload, static_cast<std::uint32_t>(events.size()), &read, &clock, &why))
        << why;
    ASSERT_EQ(read.size(), events.size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_TRUE(same(read[i], events[i])) << "seed " << seed << ", event " << i;
    }
    EXPECT_EQ(clock.tick, 123U);
    EXPECT_EQ(clock.ns, 456U);
  }
}

TEST(RecordCodec, BrokenPayloadsAreRefusedWithAReason) {
  const std::vector<RecordEvent> events = random_events(1, 40);
  const std::string payload = encode_record(events, {1, 1});
  for (std::size_t cut = 0; cut < payload.size(); ++cut) {
    std::vector<RecordEvent> read;
    ClockPair clock;
    std::string why;
    const bool good = decode_record(payload.substr(0, cut), 40, &read, &clock, &why);
    // A cut between columns is a block whose last fields are 0, which the frame's checksum rules out.
    EXPECT_TRUE(good || !why.empty()) << "cut at " << cut;
  }
}

TEST(RecordReader, EventsAreInTheOrderOfTheirTicks) {
  const Trace trace =
      recorded({an_alloc(3000, 0x2000), a_free(9000, 0x1000), an_alloc(1000, 0x1000)});
  EXPECT_EQ(story(trace), "a0 a1 f0");
  EXPECT_EQ(trace.events[0].time_us, 0U);
  EXPECT_EQ(trace.events[1].time_us, 2U);
  EXPECT_EQ(trace.events[2].time_us, 8U);
  EXPECT_EQ(trace.recording->blocks[1].address, 0x2000U);
  EXPECT_TRUE(trace.recording->whole);
  EXPECT_TRUE(trace.warnings.empty());
}

TEST(RecordReader, AnAddressIsGivenOutAgainOnlyAfterItsFree) {
  // Another thread's allocation has the earlier tick.
  const Trace trace = recorded({an_alloc(1000, 0x1000, 100),
                                an_alloc(5000, 0x1000, 7),
                                a_free(5001, 0x1000),
                                a_free(9000, 0x1000)});
  EXPECT_EQ(story(trace), "a0 f0 a1 f1");
  EXPECT_TRUE(trace.warnings.empty());
  // Ticks that are the same.
  EXPECT_EQ(story(recorded({an_alloc(1, 0x1000), an_alloc(5, 0x1000), a_free(5, 0x1000)})),
            "a0 f0 a1");
}

TEST(RecordReader, AFreeComesAfterItsAllocation) {
  EXPECT_EQ(story(recorded({a_free(1000, 0x1000), an_alloc(1001, 0x1000), an_alloc(2000, 0x1000)})),
            "a0 f0 a1");
}

TEST(RecordReader, WhatIsMissingIsSaid) {
  const Trace trace = recorded({a_free(1, 0x5000), an_alloc(2, 0x1000), an_alloc(3, 0x1000)});
  EXPECT_EQ(story(trace), "a0 f0 a1");
  ASSERT_EQ(trace.warnings.size(), 2U);
  EXPECT_EQ(trace.warnings[0].substr(0, 8), "1 frees ");
  EXPECT_NE(trace.warnings[1].find("are assumed"), std::string::npos);
  RecordingFile file;
  file.add({an_alloc(1, 0x1000)});
  Trace lossy;
  ASSERT_FALSE(read_recording(file.finish(17), &lossy).has_value());
  EXPECT_EQ(lossy.warnings.at(0), "17 events could not be recorded");
}

TEST(RecordReader, NotesStandBetweenTheEvents) {
  RecordEvent create = an_event(NOFRAG_TRACE_RECORD_CREATE, 1);
  create.size = 2 << 20;
  RecordEvent use = an_event(NOFRAG_TRACE_RECORD_STREAM, 3, 0x1000);
  use.stream = 77;
  RecordEvent release = an_event(NOFRAG_TRACE_RECORD_RELEASE, 9);
  release.size = 2 << 20;
  RecordEvent alloc = an_alloc(2, 0x1000, 1000);
  alloc.slack = 512;
  alloc.thread = 5;
  const Trace trace = recorded({create, alloc, use, a_free(4, 0x1000), release});
  const Recording& recording = *trace.recording;
  ASSERT_EQ(recording.notes.size(), 3U);
  EXPECT_EQ(recording.notes[0].before, 0U);
  EXPECT_EQ(recording.notes[1].before, 1U);
  EXPECT_EQ(recording.notes[1].block, 0U);
  EXPECT_EQ(trace.streams[recording.notes[1].stream], 77U);
  EXPECT_EQ(trace.streams[trace.events[1].stream()], 77U) << "the stream that used it last";
  EXPECT_EQ(recording.notes[2].before, 2U);
  EXPECT_EQ(recording.peak_reserved.at(0), Bytes(2 << 20));
  EXPECT_EQ(recording.peak_held.at(0), Bytes(1536));
  EXPECT_EQ(recording.event_threads[0], 5U);
}

TEST(RecordReader, DevicesAreTakenApart) {
  RecordEvent other = an_alloc(2, 0x1000, 4096);
  other.device = 1;
  RecordEvent note = an_event(NOFRAG_TRACE_RECORD_STREAM, 3, 0x1000);
  note.device = 1;
  note.stream = 9;
  RecordEvent other_free = a_free(5, 0x1000);
  other_free.device = 1;
  Trace whole = recorded({an_alloc(1, 0x1000), other, note, a_free(4, 0x1000), other_free});
  EXPECT_EQ(story(whole), "a0 a1 f0 f1") << "one address on two devices";
  const std::vector<Trace> parts = split_by_device(std::move(whole));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(story(parts[0]), "a0 f0");
  EXPECT_EQ(story(parts[1]), "a0 f0");
  EXPECT_EQ(parts[0].peak_live, Bytes(512));
  EXPECT_EQ(parts[1].peak_live, Bytes(4096));
  EXPECT_TRUE(parts[0].recording->notes.empty());
  ASSERT_EQ(parts[1].recording->notes.size(), 1U);
  EXPECT_EQ(parts[1].recording->notes[0].block, 0U);
  EXPECT_EQ(parts[1].recording->notes[0].before, 1U);
  EXPECT_EQ(split_by_device(recorded({an_alloc(1, 0x1000)})).size(), 1U);
}

TEST(RecordReader, AFileThatEndsAnywhereIsReadUpToItsLastBlock) {
  RecordingFile file;
  std::vector<std::size_t> block_ends;
  for (std::uint64_t block = 0; block < 3; ++block) {
    file.add({an_alloc(10 * block + 1, 0x1000 + 0x1000 * block)});
    block_ends.push_back(file.bytes().size());
  }
  const std::string bytes = file.finish();
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    Trace trace;
    const auto error = read_recording(std::string_view(bytes).substr(0, cut), &trace);
    const auto blocks = static_cast<std::size_t>(std::count_if(
        block_ends.begin(), block_ends.end(), [cut](auto end) { return end <= cut; }));
    ASSERT_EQ(error.has_value(), blocks == 0) << "cut at " << cut;
    if (blocks == 0) {
      continue;
    }
    EXPECT_EQ(trace.events.size(), blocks);
    EXPECT_FALSE(trace.recording->whole);
    ASSERT_EQ(trace.warnings.size(), 1U);
    const bool at_end = std::find(block_ends.begin(), block_ends.end(), cut) != block_ends.end();
    EXPECT_EQ(trace.warnings[0].find("bytes from byte") == std::string::npos, at_end);
  }
}

TEST(RecordReader, OneThatEndedBeforeItsFirstBlockIsNamedAsThat) {
  RecordingFile file;
  const std::string bytes =
      file.bytes();  // header and info: what is there when nothing has happened yet
  for (std::size_t cut = 16; cut <= bytes.size(); ++cut) {
    Trace trace;
    const auto error = read_recording(std::string_view(bytes).substr(0, cut), &trace);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind, TraceError::Kind::kEmpty) << "cut at " << cut;
    EXPECT_NE(error->message().find("recording that ended before its first block"),
              std::string::npos)
        << error->message();
  }
}

TEST(RecordReader, ARequestThatFailedIsToldThoughNothingWasEverAllocated) {
  RecordEvent failed = an_event(NOFRAG_TRACE_RECORD_OUT_OF_MEMORY, 7);
  failed.size = 100;
  failed.device = 1;
  Trace whole = recorded({failed});
  EXPECT_TRUE(whole.events.empty());
  const std::vector<Trace> parts = split_by_device(std::move(whole));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].device, 1U);
  ASSERT_EQ(parts[0].marks.size(), 1U);
  EXPECT_EQ(parts[0].marks[0].requested, 100U);
  // Beside a device that did allocate.
  const std::vector<Trace> both = split_by_device(recorded({an_alloc(1, 0x1000), failed}));
  ASSERT_EQ(both.size(), 2U);
  EXPECT_TRUE(both[1].events.empty());
  EXPECT_EQ(both[1].marks.size(), 1U);
}

TEST(RecordReader, MarksTellWhatWasKnownAtTheFailure) {
  RecordEvent created = an_event(NOFRAG_TRACE_RECORD_CREATE, 1);
  created.size = 8 << 20;
  RecordEvent released = an_event(NOFRAG_TRACE_RECORD_RELEASE, 3);
  released.size = 2 << 20;
  RecordEvent limited = an_event(NOFRAG_TRACE_RECORD_OUT_OF_MEMORY, 4, 7 << 20);  // the limit
  limited.size = 4 << 20;
  limited.detail = 101;  // 100 MiB free
  RecordEvent refused = an_event(NOFRAG_TRACE_RECORD_OUT_OF_MEMORY, 5);
  refused.size = 4 << 20;
  const std::vector<Trace> parts =
      split_by_device(recorded({created, an_alloc(2, 0x1000), released, limited, refused}));
  ASSERT_EQ(parts[0].marks.size(), 2U);
  EXPECT_EQ(parts[0].marks[0].reserved_bytes, 6U << 20);
  EXPECT_EQ(parts[0].marks[0].limit_bytes, 7U << 20);
  EXPECT_EQ(parts[0].marks[0].free_bytes, 100U << 20);
  EXPECT_FALSE(parts[0].marks[1].limit_bytes.has_value());
  EXPECT_FALSE(parts[0].marks[1].free_bytes.has_value());
}

TEST(RecordReader, DamageIsRefusedWithItsPlace) {
  RecordingFile file;
  file.add({an_alloc(1, 0x1000), a_free(2, 0x1000)});
  file.add({an_alloc(3, 0x1000)});
  const std::string bytes = file.finish();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    Trace trace;
    const auto error = read_recording(damaged, &trace);
    // Some bits decide nothing: reserved words, totals of a kind that are not compared.
    if (error.has_value()) {
      EXPECT_TRUE(error->offset.has_value() || error->line.has_value()) << error->message();
      EXPECT_FALSE(error->found.empty());
    } else {
      EXPECT_EQ(story(trace), "a0 f0 a1") << "byte " << at;
    }
  }
}

TEST(RecordReader, AStopBlockThatCountsOtherwiseIsRefused) {
  RecordingFile one;
  one.add({an_alloc(1, 0x1000)});
  const std::string first = one.finish();
  RecordingFile two;
  two.add({an_alloc(1, 0x1000)});
  two.add({an_alloc(2, 0x2000)});
  const std::string second = two.finish();
  constexpr std::size_t kStop = sizeof(nofrag_trace_block_header) + sizeof(nofrag_trace_stop);
  const std::string mixed =
      first.substr(0, first.size() - kStop) + second.substr(second.size() - kStop);
  Trace trace;
  const auto error = read_recording(mixed, &trace);
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->message().find("counts 2 events where 1 were read"), std::string::npos);
  ASSERT_TRUE(read_recording(first + "x", &trace).has_value()) << "bytes after the end";
}

std::string packed_again(const Trace& trace) {
  std::string packed;
  EXPECT_TRUE(write_packed(trace, {}, [&packed](std::string_view piece) {
    packed += piece;
    return true;
  }));
  return packed;
}

// Converted to the same format nothing is lost.
TEST(RecordReader, ARecordingThatIsWrittenAgainIsTheSame) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<RecordEvent> events;
    std::vector<std::uint64_t> live;
    std::uint64_t tick = 1000;
    for (int i = 0; i < 400; ++i) {
      tick += random() % 3000;
      RecordEvent event = an_event(NOFRAG_TRACE_RECORD_MAP, tick, random());
      if (random() % 3 == 0) {
        event.kind = static_cast<std::uint8_t>(NOFRAG_TRACE_RECORD_STREAM + random() % 16);
        event.address = live.empty() ? 0 : live[random() % live.size()];
        event.size = random() % 100000;
        event.stream = random() % 5;
        event.detail = static_cast<std::uint32_t>(random() % 11);
      } else if (live.empty() || random() % 2 == 0) {
        event = an_alloc(tick, 0x1000 * static_cast<std::uint64_t>(i + 1), random() % 100000);
        event.slack = static_cast<std::uint32_t>(random() % 2 * 512);
        event.pool_first = random() % 4 == 0 ? 7 : 0;
        event.site = static_cast<std::uint32_t>(random() % 3);
        live.push_back(event.address);
      } else {
        event = a_free(tick, live.back());
        live.pop_back();
      }
      // Neither allocations nor existing blocks out of the blue.
      if (event.kind == NOFRAG_TRACE_RECORD_EXISTING) {
        event.kind = NOFRAG_TRACE_RECORD_TRIM;
      }
      event.thread = static_cast<std::uint16_t>(random() % 4);
      events.push_back(event);
    }
    const Trace first = recorded(events);
    Trace second;
    const auto error = read_recording(packed_again(first), &second);
    ASSERT_FALSE(error.has_value()) << error->message();
    ASSERT_EQ(story(second), story(first)) << "seed " << seed;
    for (std::size_t i = 0; i < first.events.size(); ++i) {
      EXPECT_EQ(second.events[i].time_us, first.events[i].time_us);
      EXPECT_EQ(second.events[i].size, first.events[i].size);
      EXPECT_EQ(second.streams[second.events[i].stream()], first.streams[first.events[i].stream()]);
      EXPECT_EQ(second.recording->event_threads[i], first.recording->event_threads[i]);
    }
    ASSERT_EQ(second.recording->notes.size(), first.recording->notes.size());
    for (std::size_t i = 0; i < first.recording->notes.size(); ++i) {
      Recording::Note a = first.recording->notes[i];
      Recording::Note b = second.recording->notes[i];
      a.event.tick = b.event.tick = 0;
      EXPECT_TRUE(same(a.event, b.event));
      EXPECT_EQ(b.before, a.before);
      EXPECT_EQ(b.time_us, a.time_us);
      EXPECT_EQ(b.block, a.block);
    }
    EXPECT_EQ(second.recording->peak_held, first.recording->peak_held);
    EXPECT_EQ(second.recording->blocks.back().pool_first,
              first.recording->blocks.back().pool_first);
    EXPECT_TRUE(second.warnings.empty());
  }
}

TEST(RecordReader, KindsOfTraceDoNotMix) {
  Trace trace;
  RecordingFile file;
  file.add({an_alloc(1, 0x1000)});
  const std::string recording = file.finish();
  Trace plain = recorded({an_alloc(1, 0x1000)});
  plain.recording.reset();
  const std::string packed = packed_again(plain);
  constexpr std::size_t kStop = sizeof(nofrag_trace_block_header) + sizeof(nofrag_trace_stop);
  constexpr std::size_t kHeader = sizeof(nofrag_trace_file_header);
  EXPECT_TRUE(
      read_recording(recording.substr(0, recording.size() - kStop) + packed.substr(kHeader), &trace)
          .has_value());
  constexpr std::size_t kEnd = sizeof(nofrag_trace_block_header) + sizeof(nofrag_trace_totals);
  EXPECT_TRUE(
      read_recording(packed.substr(0, packed.size() - kEnd) + recording.substr(kHeader), &trace)
          .has_value());
}

TEST(RecordReader, EventsOfUnknownKindsAreNotes) {
  RecordEvent unknown{};
  unknown.kind = 200;
  unknown.tick = 2;
  const Trace trace = recorded({an_alloc(1, 0x1000), unknown});
  EXPECT_EQ(story(trace), "a0");
  EXPECT_EQ(trace.recording->notes.at(0).event.kind, 200U);
}

}  // namespace
}  // namespace nofrag
