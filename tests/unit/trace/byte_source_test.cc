#include "trace/byte_source.h"

#include <zlib.h>

#include <gtest/gtest.h>

#include "trace/load_trace.h"

namespace nofrag {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1024, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::string many_lines(int count) {
  std::string text = "time_us,op,id,size,stream\n";
  for (int i = 0; i < count; ++i) {
    text += std::to_string(i * 37 % 1000 + i) + ",a," + std::to_string(i) + ",4096,0\n";
  }
  return text;
}

std::optional<TraceError> load(std::string_view bytes, Trace* trace) {
  return load_trace_from_memory(bytes, "t", TraceFormat::kAuto, trace);
}

std::string sorted_lines(int count) {
  std::string text = "time_us,op,id,size,stream\n";
  for (int i = 0; i < count; ++i) {
    text += std::to_string(i * 13) + ",a," + std::to_string(i) + ",4096,0\n";
  }
  return text;
}

TEST(Gzip, IsRecognisedByContentAndReadInPieces) {
  Trace trace;
  const auto error = load(gzip(sorted_lines(150000)), &trace);
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_EQ(trace.events.size(), 150000U);
}

TEST(Gzip, MembersMayFollowEachOther) {
  const std::string text = sorted_lines(1000);
  const std::size_t half = text.size() / 2;
  Trace trace;
  const auto error = load(gzip(text.substr(0, half)) + gzip(text.substr(half)), &trace);
  ASSERT_FALSE(error.has_value()) << error->message();
  EXPECT_EQ(trace.events.size(), 1000U);
}

TEST(Gzip, EveryTruncationIsRefusedWithTheByte) {
  const std::string whole = gzip(sorted_lines(400));
  for (std::size_t length = 2; length < whole.size(); ++length) {
    Trace trace;
    const auto error = load(std::string_view(whole).substr(0, length), &trace);
    ASSERT_TRUE(error.has_value()) << length;
    EXPECT_EQ(error->offset, length) << error->message();
    EXPECT_NE(error->found.find("truncated"), std::string::npos) << error->message();
  }
}

TEST(Gzip, DamageAndForeignTailsAreRefused) {
  std::string damaged = gzip(sorted_lines(400));
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  Trace trace;
  EXPECT_TRUE(load(damaged, &trace).has_value());
  const auto error = load(gzip(sorted_lines(4)) + "tail", &trace);
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->found.find("damaged gzip data"), std::string::npos) << error->message();
}

TEST(Gzip, ErrorsInsideStillNameTheLine) {
  Trace trace;
  const auto error = load(gzip(many_lines(100)), &trace);  // times go back
  ASSERT_TRUE(error.has_value());
  EXPECT_TRUE(error->line.has_value());
}

TEST(File, MissingFilesAndFoldersAreUnreadable) {
  Trace trace;
  for (const char* path : {"/nonexistent/trace.csv", "/"}) {
    const auto error = load_trace(path, TraceFormat::kAuto, &trace);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind, TraceError::Kind::kUnreadable);
    EXPECT_EQ(error->path, path);
  }
}

TEST(Window, KeepsBytesAcrossRefills) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  ByteWindow window(open_memory_source(text), 8);
  EXPECT_EQ(window.fill(3).substr(0, 3), "abc");
  window.consume(6);
  EXPECT_EQ(window.offset(), 6U);
  EXPECT_EQ(window.fill(12).substr(0, 12), "ghijklmnopqr");
  window.consume(12);
  EXPECT_EQ(window.fill(100), "stuvwxyz");
  window.consume(8);
  EXPECT_TRUE(window.fill(1).empty());
  EXPECT_FALSE(window.source_error().has_value());
}

TEST(Quoting, CutsAndEscapes) {
  EXPECT_EQ(quoted_for_message("a\n\x01"), "'a\\x0a\\x01'");
  EXPECT_EQ(quoted_for_message(std::string(100, 'x')), "'" + std::string(48, 'x') + "'...");
}

}  // namespace
}  // namespace nofrag
