// Progress: says on stderr how far a long command is, without getting in the way.
//
// Layer: cli. Silent for the first second. On a terminal one line is rewritten a few times a
// second; elsewhere a line is printed every five seconds, so that logs stay short. Units: events.
// Threads: none. Failure: none. Cost: one clock read an update.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace nofrag {

class Progress {
 public:
  explicit Progress(bool enabled);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void begin(std::string_view what, std::uint64_t total);
  void update(std::uint64_t done);
  // Takes the line off the terminal before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  bool enabled_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_ = started_;
  std::string what_;
  std::uint64_t total_ = 0;
};

}  // namespace nofrag
