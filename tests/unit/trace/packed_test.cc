#include <random>

#include <gtest/gtest.h>

#include <nofrag/trace_format.h>

#include "text_of.h"
#include "trace/csv_format.h"
#include "trace/load_trace.h"
#include "trace/packed_codec.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

Trace from_csv(const std::string& text) {
  Trace trace;
  const auto error = load_trace_from_memory(text, "t.csv", TraceFormat::kAuto, &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

std::string pack(const Trace& trace, std::uint32_t events_per_block = 65536) {
  PackedOptions options;
  options.events_per_block = events_per_block;
  options.zstd_level = 3;
  std::string bytes;
  EXPECT_TRUE(write_packed(trace, options, [&](std::string_view piece) {
    bytes += piece;
    return true;
  }));
  return bytes;
}

std::string to_csv(const Trace& trace) {
  std::string text;
  append_csv(trace, 0, trace.events.size(), &text);
  return text;
}

std::optional<TraceError> unpack(std::string_view bytes, Trace* trace) {
  return load_trace_from_memory(bytes, "t.nofrag", TraceFormat::kAuto, trace);
}

// Valid, with everything that can vary: ids in no order, streams by name, empty blocks, frees on
// other streams.
std::string random_csv(std::uint32_t seed, int events) {
  std::mt19937_64 random(seed);
  std::string text = kHeaderLine;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  std::uint64_t time = random() % 1000;
  std::uint64_t id = random();
  for (int i = 0; i < events; ++i) {
    time += random() % 3 == 0 ? 0 : random() % 100000;
    const std::uint64_t stream = random() % 4 == 0 ? random() % 3 + (std::uint64_t{1} << 63) : 0;
    const bool frees = !live.empty() && random() % 2 == 0;
    std::pair<std::uint64_t, std::uint64_t> block;
    if (frees) {
      const std::size_t at = random() % live.size();
      block = live[at];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      id += 1 + random() % 1000 * (random() % 2) * 977;
      block = {id, random() % 8 == 0 ? 0 : random() % (std::uint64_t{1} << (random() % 40))};
      live.push_back(block);
    }
    text += std::to_string(time) + (frees ? ",f," : ",a,") + std::to_string(block.first) + "," +
            std::to_string(block.second) + "," + std::to_string(stream) + "\n";
  }
  return text;
}

TEST(Packed, RandomTracesRoundTripInAnyBlockSize) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const Trace trace = from_csv(random_csv(seed, 700));
    Trace again;
    const auto error = unpack(pack(trace, seed % 2 == 0 ? 65536 : 1 + seed * 13), &again);
    ASSERT_FALSE(error.has_value()) << error->message();
    EXPECT_EQ(to_csv(again), to_csv(trace)) << "seed " << seed;
    EXPECT_EQ(again.peak_live, trace.peak_live);
    EXPECT_EQ(again.format, TraceFormat::kNofrag);
  }
}

// The bytes of a tiny file, as include/nofrag/trace_format.h describes them.
TEST(Packed, FileIsLaidOutAsDocumented) {
  const std::string bytes =
      pack(from_csv(std::string(kHeaderLine) + "3,a,0,1000,5\n4,a,1,1000,5\n300,f,0,1000,5\n"));
  ASSERT_GT(bytes.size(), 16U + 24U);
  EXPECT_EQ(bytes.substr(0, 8), "\x8eNFTRC\r\n");
  EXPECT_EQ(load_little_endian<std::uint16_t>(bytes, 8), 1);
  EXPECT_EQ(load_little_endian<std::uint16_t>(bytes, 10), 16);
  EXPECT_EQ(bytes.substr(16, 4), "NFBK");
  EXPECT_EQ(load_little_endian<std::uint16_t>(bytes, 20), NOFRAG_TRACE_BLOCK_EVENTS);
  const auto stored = load_little_endian<std::uint32_t>(bytes, 24);
  const auto raw_bytes = load_little_endian<std::uint32_t>(bytes, 28);
  EXPECT_EQ(load_little_endian<std::uint32_t>(bytes, 32), 3U);
  EXPECT_EQ(load_little_endian<std::uint32_t>(bytes, 36), crc32_of(bytes.substr(16, 20)));
  std::string raw;
  std::string why;
  ASSERT_TRUE(unpack_zstd(bytes.substr(40, stored), raw_bytes, &raw, &why)) << why;
  const std::string expected = std::string(
                                   "\x01\x03"
                                   "aaf",
                                   5) +                                // op
                               bytes_of("\x02\x04\x03\x01\xa8\x02") +  // time: 3, 1, 296
                               bytes_of("\x03\x02\x00\x00") +          // id steps
                               bytes_of("\x04\x02\xe8\x07") +          // sizes: 1000
                               bytes_of("\x05\x02\x00\x00") +          // size indices
                               bytes_of("\x06\x01\x01") +              // freed: one back
                               bytes_of("\x07\x01\x05") +              // streams: 5
                               bytes_of("\x08\x03\x00\x00\x00");       // stream indices
  EXPECT_EQ(raw, expected);
  const std::size_t end = 40 + stored;
  EXPECT_EQ(bytes.size(), end + 24 + 40);
  EXPECT_EQ(load_little_endian<std::uint64_t>(bytes, end + 24), 3U);          // events
  EXPECT_EQ(load_little_endian<std::uint64_t>(bytes, end + 24 + 24), 2048U);  // peak live
}

TEST(Packed, EveryTornTailIsRefused) {
  const std::string bytes = pack(from_csv(random_csv(7, 300)), 100);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Trace trace;
    const auto error = unpack(std::string_view(bytes).substr(0, length), &trace);
    ASSERT_TRUE(error.has_value()) << "cut to " << length;
    if (length >= 8) {
      ASSERT_TRUE(error->offset.has_value());
      EXPECT_LE(*error->offset, length);
      EXPECT_NE(error->message().find("torn tail"), std::string::npos) << error->message();
    }
  }
}

TEST(Packed, EveryFlippedByteIsRefused) {
  const std::string bytes = pack(from_csv(random_csv(8, 200)), 90);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    Trace trace;
    EXPECT_TRUE(unpack(damaged, &trace).has_value()) << "byte " << at;
    EXPECT_TRUE(trace.events.empty()) << "byte " << at << ": a refusal that left something";
  }
}

std::string message_of(std::string_view bytes) {
  Trace trace;
  const auto error = unpack(bytes, &trace);
  return error ? error->message() : "accepted";
}

TEST(Packed, NewerVersionIsRefusedByName) {
  std::string bytes = pack(from_csv(random_csv(1, 10)));
  bytes[8] = 9;
  const std::string message = message_of(bytes);
  EXPECT_NE(message.find("byte 8: found packed trace version 9"), std::string::npos) << message;
  EXPECT_NE(message.find("version 1 at most"), std::string::npos) << message;
}

TEST(Packed, TrailingBytesAreRefused) {
  const std::string bytes = pack(from_csv(random_csv(1, 10)));
  const std::string message = message_of(bytes + "x");
  EXPECT_NE(message.find("byte " + std::to_string(bytes.size()) + ": found bytes after the end"),
            std::string::npos)
      << message;
}

std::string block(std::uint16_t kind, std::uint16_t flags, std::string_view payload) {
  std::string bytes;
  append_little_endian<std::uint32_t>(NOFRAG_TRACE_BLOCK_MAGIC, &bytes);
  append_little_endian(kind, &bytes);
  append_little_endian(flags, &bytes);
  append_little_endian(static_cast<std::uint32_t>(payload.size()), &bytes);
  append_little_endian(static_cast<std::uint32_t>(payload.size()), &bytes);
  append_little_endian<std::uint32_t>(0, &bytes);
  append_little_endian(crc32_of(bytes), &bytes);
  return bytes + std::string(payload);
}

TEST(Packed, UnknownBlocksAreSkippedUnlessTheyMustBeUnderstood) {
  const std::string bytes = pack(from_csv(random_csv(2, 50)));
  const std::string skipped = bytes.substr(0, 16) + block(17, 0, "later kind") + bytes.substr(16);
  Trace trace;
  EXPECT_FALSE(unpack(skipped, &trace).has_value()) << message_of(skipped);
  EXPECT_EQ(trace.events.size(), 50U);
  const std::string needed = bytes.substr(0, 16) +
                             block(17, NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND, "later kind") +
                             bytes.substr(16);
  EXPECT_NE(message_of(needed).find("byte 16: found block kind 17"), std::string::npos);
}

// A hand-made plain block of events, then the end block.
std::string file_with_events(std::string_view payload, std::uint32_t items) {
  std::string bytes = std::string(NOFRAG_TRACE_MAGIC, 8) + bytes_of("\1\0\x10\0\0\0\0\0");
  std::string events = block(NOFRAG_TRACE_BLOCK_EVENTS, 0, payload);
  std::string header = events.substr(0, 16);
  append_little_endian(items, &header);
  append_little_endian(crc32_of(header), &header);
  return bytes + header + std::string(payload) +
         block(NOFRAG_TRACE_BLOCK_END, 2, std::string(40, '\0'));
}

TEST(Packed, ContradictionsInsideSoundBlocksAreRefused) {
  const std::string one_alloc = bytes_of("\1\1a\2\1\0\3\1\0\4\1\5\5\1\0\7\1\0\x8\1\0");
  EXPECT_NE(message_of(file_with_events(one_alloc, 1)).find("totals of 0 events"),
            std::string::npos);
  EXPECT_NE(message_of(file_with_events(one_alloc, 2)).find("another number of events"),
            std::string::npos);
  const std::string free_first = bytes_of("\1\1f\2\1\0\6\1\0\7\1\0\x8\1\0");
  EXPECT_NE(message_of(file_with_events(free_first, 1)).find("never allocated"), std::string::npos);
  const std::string double_free(
      "\1\3"
      "aff\2\3\0\0\0\3\1\0\4\1\5\5\1\0\6\2\0\0\7\1\0\x8\3\0\0\0",
      31);
  EXPECT_NE(message_of(file_with_events(double_free, 3)).find("at event 2 id 0 freed twice"),
            std::string::npos)
      << message_of(file_with_events(double_free, 3));
  const std::string unknown_column = bytes_of("\x42\1x");
  EXPECT_NE(message_of(file_with_events(one_alloc + unknown_column, 1)).find("totals"),
            std::string::npos);
  const std::string needed_column = bytes_of("\xC2\1x");
  EXPECT_NE(message_of(file_with_events(one_alloc + needed_column, 1)).find("column kind 194"),
            std::string::npos);
  EXPECT_NE(message_of(file_with_events(one_alloc + one_alloc, 1)).find("same column twice"),
            std::string::npos);
}

TEST(Packed, SinkThatStopsIsReported) {
  EXPECT_FALSE(write_packed(
      from_csv(random_csv(3, 20)), PackedOptions{}, [](std::string_view) { return false; }));
}

TEST(Codec, VarintsAndZigzag) {
  for (const std::uint64_t value : {std::uint64_t{0},
                                    std::uint64_t{127},
                                    std::uint64_t{128},
                                    std::uint64_t{1} << 63,
                                    UINT64_MAX}) {
    std::string bytes;
    append_varint(value, &bytes);
    VarintReader reader(bytes);
    std::uint64_t back = 1;
    EXPECT_TRUE(reader.next(&back));
    EXPECT_EQ(back, value);
    EXPECT_TRUE(reader.empty());
    EXPECT_EQ(zigzag(unzigzag(value)), value);
  }
  std::uint64_t value = 0;
  EXPECT_FALSE(VarintReader(std::string(10, '\xff')).next(&value));
  EXPECT_FALSE(VarintReader(std::string("\xff\xff")).next(&value));
}

}  // namespace
}  // namespace nofrag
