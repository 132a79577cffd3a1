// ByteSource and ByteWindow: where a trace's bytes come from, and a sliding view of them.
//
// Owns: a file descriptor or a borrowed buffer; a window owns its source and one buffer. Files are
// read front to back in pieces, so pipes work and a trace of any size needs the window only. gzip
// data is recognised by content and unpacked on the way.
// Layer: trace. Units: bytes; ByteWindow::offset() counts from the start of what the source gives.
// Threads: none. Failure: read() gives fewer bytes than asked only at the end or after a failure;
// error() tells the two apart and says what was found (a truncated gzip: at which byte).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  virtual std::size_t read(std::span<char> into) = 0;
  [[nodiscard]] const std::optional<TraceError>& error() const { return error_; }

 protected:
  std::optional<TraceError> error_;
};

class ByteWindow {
 public:
  ByteWindow(std::unique_ptr<ByteSource> source, std::size_t first_capacity);

  // Everything buffered from offset() on, after trying to have at least `wanted` bytes of it. Less
  // means the source has ended (source_error() tells how). Valid until the next call.
  std::string_view fill(std::size_t wanted);
  void consume(std::size_t count);
  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] const std::optional<TraceError>& source_error() const { return source_->error(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t offset_ = 0;
  bool ended_ = false;
};

// "-" is standard input. A file that cannot be opened gives a source that fails at once.
std::unique_ptr<ByteSource> open_file_source(const std::string& path);
// `bytes` must outlive the source.
std::unique_ptr<ByteSource> open_memory_source(std::string_view bytes);
// The bytes themselves, or what is inside if they are gzip data.
// `window` is the size of its buffer.
std::unique_ptr<ByteSource> unpack_if_gzip(std::unique_ptr<ByteSource> source,
                                           std::string path,
                                           std::size_t window);

// Bytes as they may stand in a message: cut at 48, everything unprintable as \xNN, in quotes.
std::string quoted_for_message(std::string_view bytes);

}  // namespace nofrag
