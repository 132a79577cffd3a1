// RecordingFile: a recording made by hand in a temporary file, and what the reader makes of it.
//
// Owns: the file, which goes with it. Layer: tests. Units: a tick is a nanosecond. Threads: none.
// Failure: expectations of the test that uses it.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nofrag/trace_format.h>

#include "trace/load_trace.h"
#include "trace/record/record_output.h"
#include "trace/record/recording.h"

namespace nofrag {

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string temporary_path(const std::string& name) {
  return testing::TempDir() + name + "." + std::to_string(::getpid());
}

inline RecordEvent an_event(nofrag_trace_record_kind kind,
                            std::uint64_t tick,
                            std::uint64_t address = 0) {
  RecordEvent event{};
  event.kind = static_cast<std::uint8_t>(kind);
  event.tick = tick;
  event.address = address;
  return event;
}
inline RecordEvent an_alloc(std::uint64_t tick, std::uint64_t address, std::uint64_t size = 512) {
  RecordEvent event = an_event(NOFRAG_TRACE_RECORD_ALLOC, tick, address);
  event.size = size;
  return event;
}
inline RecordEvent a_free(std::uint64_t tick, std::uint64_t address) {
  return an_event(NOFRAG_TRACE_RECORD_FREE, tick, address);
}

class RecordingFile {
 public:
  explicit RecordingFile(std::uint64_t keep = 0, std::uint64_t max = RecordOutput::kNoMax)
      : path_(temporary_path("recording")), output_(path_, max, keep) {
    EXPECT_TRUE(output_.start()) << output_.problem();
    EXPECT_TRUE(output_.set_info({{"clock", "monotonic"}}));
  }
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;
  ~RecordingFile() { std::remove(path_.c_str()); }

  RecordOutput& output() { return output_; }
  void add(const std::vector<RecordEvent>& events) {
    EXPECT_TRUE(output_.add_events(events, {1, 1}, 0)) << output_.problem();
  }
  std::string finish(std::uint64_t lost = 0) {
    output_.finish(NOFRAG_TRACE_STOP_ASKED, lost);
    return bytes();
  }
  [[nodiscard]] std::string bytes() const { return file_bytes(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  RecordOutput output_;
};

inline std::optional<TraceError> read_recording(std::string_view bytes, Trace* trace) {
  return load_trace_from_memory(bytes, "t.nofrag", TraceFormat::kAuto, trace);
}

// "a0 a1 f0": what is played, by block number.
inline std::string story(const Trace& trace) {
  std::string text;
  for (const TraceEvent& event : trace.events) {
    text += (text.empty() ? "" : " ") + std::string(event.is_free() ? "f" : "a") +
            std::to_string(event.block);
  }
  return text;
}

// Of a recording of these events, which must be readable.
inline Trace recorded(const std::vector<RecordEvent>& events) {
  RecordingFile file;
  file.add(events);
  Trace trace;
  const auto error = read_recording(file.finish(), &trace);
  EXPECT_FALSE(error.has_value()) << error->message();
  return trace;
}

}  // namespace nofrag
