// RecordOutput: where the recorder's blocks go: to a file as they come, or, of a flight recorder, to memory
// until somebody asks for them.
//
// A flight recorder keeps the last so many bytes of blocks. What it lets go is folded into a table of the blocks
// that were live then, so that a file it writes begins with them and can be replayed like any other.
// Owns: the file, the kept blocks, the table. Layer: trace. Units: bytes.
// Invariants: a file never grows beyond `max`, its stop block included; one that was there is written over only
// if it is empty or a recording, and taken away never.
// Threads: none (the recorder's writer). Failure: false, and problem() says why; nothing more is written then.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/record/record_event.h"
#include "trace/record/record_file.h"

namespace nofrag {

// The last block of a recording.
std::string recording_stop_block(nofrag_trace_stop_reason reason,
                                 std::uint64_t events,
                                 std::uint64_t lost);

class RecordOutput {
 public:
  struct Block {
    std::string bytes;  // header and payload
    std::size_t raw = 0;
    bool packed = false;
    std::uint32_t events = 0;  // 0: not a block of events
  };

  static Block make_block(nofrag_trace_block_kind kind,
                          std::string_view payload,
                          std::size_t items);
  static constexpr std::uint64_t kNoMax = UINT64_MAX;
  static constexpr std::uint64_t kSmallestMax = 4096;

  // `keep` 0: to the file, of at most `max` bytes. Else a flight recorder of `keep` bytes.
  RecordOutput(std::string path, std::uint64_t max, std::uint64_t keep)
      : path_(std::move(path)), max_(max), keep_(keep) {}

  bool start();
  // Names and values; part of every file.
  bool set_info(const std::map<std::string, std::string>& info);
  bool add_events(std::span<const RecordEvent> events, ClockPair clock, std::uint64_t lost);
  bool add_block(nofrag_trace_block_kind kind, std::string_view payload, std::size_t items);
  // Blocks that every file of a flight recorder begins with, however old they are.
  bool add_lasting_block(nofrag_trace_block_kind kind, std::string_view payload, std::size_t items);
  // A flight recorder's file, as of now.
  bool write_flight(std::uint64_t lost);
  void finish(nofrag_trace_stop_reason reason, std::uint64_t lost);
  // Nothing will be recorded. A file that start() made goes; what was at the path before stays there.
  void abandon();

  // The file had no room left: it is complete, and nothing more is taken.
  [[nodiscard]] bool full() const { return full_; }
  [[nodiscard]] bool is_flight() const { return keep_ > 0; }
  [[nodiscard]] std::uint64_t bytes() const { return is_flight() ? kept_bytes_ : file_.size(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& problem() const { return file_.problem(); }

 private:
  bool put(Block block);
  [[nodiscard]] bool has_room_for(const Block& block) const;
  void let_go_of_oldest();
  void fold(const RecordEvent& event);
  [[nodiscard]] std::string state_block() const;
  [[nodiscard]] std::string partial() const { return path_ + ".partial"; }

  std::string path_;
  std::uint64_t max_;
  std::uint64_t keep_;
  RecordFile file_;
  bool full_ = false;
  std::uint64_t events_ = 0;  // in the file
  std::uint64_t lost_ = 0;
  std::string lasting_;
  std::deque<Block> kept_;
  std::uint64_t kept_bytes_ = 0;
  ClockPair clock_;  // of the newest events
  // What was live when the oldest kept block began, by device and address.
  std::map<std::pair<std::uint8_t, std::uint64_t>, RecordEvent> live_before_;
  std::map<std::uint8_t, std::uint64_t> reserved_before_;
  std::uint64_t last_tick_before_ = 0;
};

}  // namespace nofrag
