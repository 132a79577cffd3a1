// Excerpt: what explain reads of an input of any length: its beginning, its end, and of what is between the passages
// that may tell of a failure (servers log on after one).
//
// Owns: up to 8 MiB of the beginning, 8 of passages, 16 of the end; all of it where append() is told to keep all.
// Layer: cli. Threads: none. Failure: std::bad_alloc. Cost: a copy, and a search through what is between.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nofrag {

class Excerpt {
 public:
  void append(std::string_view chunk, bool keep_all);

  // The beginning; everything that was to be kept.
  [[nodiscard]] const std::string& head() const { return head_; }
  [[nodiscard]] std::size_t total() const { return total_; }
  // Is anything left out?
  [[nodiscard]] bool whole() const { return total_ == head_.size() + tail_.size(); }
  // What was kept, in order, with an end of line where something was left out.
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] std::size_t tail_begin() const { return total_ - tail_.size(); }
  void shorten_tail();
  void keep(std::size_t begin, std::size_t end);

  std::string head_;
  std::string passages_;
  std::size_t passages_end_ = 0;  // where in the input the last of them ends
  std::string tail_;
  std::size_t total_ = 0;
};

}  // namespace nofrag
