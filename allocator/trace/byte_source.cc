#include "trace/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nofrag {
namespace {

// What zlib's 32-bit counts are given at once.
constexpr std::size_t kInflateStep = std::size_t{1} << 30;

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path) : path_(path) {
    descriptor_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      fail();
    }
  }
  ~FileSource() override {
    if (descriptor_ > STDIN_FILENO) {
      ::close(descriptor_);
    }
  }

  std::size_t read(std::span<char> into) override {
    std::size_t got = 0;
    while (!error_ && got < into.size()) {
      const ssize_t count = ::read(descriptor_, into.data() + got, into.size() - got);
      if (count > 0) {
        got += static_cast<std::size_t>(count);
      } else if (count == 0) {
        break;
      } else if (errno != EINTR) {
        fail();
      }
    }
    return got;
  }

 private:
  void fail() {
    TraceError error;
    error.kind = TraceError::Kind::kUnreadable;
    error.path = path_;
    error.found = std::string("no readable file (") + std::strerror(errno) + ")";
    error.expected = "a trace";
    error_ = std::move(error);
  }

  std::string path_;
  int descriptor_;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : rest_(bytes) {}
  std::size_t read(std::span<char> into) override {
    const std::size_t count = std::min(into.size(), rest_.size());
    std::copy_n(rest_.data(), count, into.data());
    rest_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view rest_;
};

class GzipSource final : public ByteSource {
 public:
  GzipSource(std::unique_ptr<ByteWindow> packed, std::string path)
      : packed_(std::move(packed)), path_(std::move(path)) {
    // 15 bits of window, 16 = a gzip wrapper is required.
    usable_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
    if (!usable_) {
      fail("no memory to unpack gzip data", "");
    }
  }
  ~GzipSource() override {
    if (usable_) {
      inflateEnd(&stream_);
    }
  }

  std::size_t read(std::span<char> into) override {
    std::size_t got = 0;
    while (!error_ && !ended_ && got < into.size()) {
      got += step(into.subspan(got));
    }
    return got;
  }

 private:
  std::size_t step(std::span<char> into) {
    const std::string_view packed = packed_->fill(1);
    if (packed.empty()) {
      if (packed_->source_error()) {
        error_ = packed_->source_error();
      } else if (in_member_) {
        fail("the end of the file inside gzip data (truncated)", "the rest of the gzip data");
      }
      ended_ = true;
      return 0;
    }
    in_member_ = true;
    // zlib's interface predates const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(std::min<std::size_t>(packed.size(), kInflateStep));
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(into.size(), kInflateStep));
    const uInt in_before = stream_.avail_in;
    const uInt out_before = stream_.avail_out;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    packed_->consume(in_before - stream_.avail_in);
    if (status == Z_STREAM_END) {
      in_member_ = false;
      inflateReset(&stream_);  // gzip files may be several, one after another
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail(std::string("damaged gzip data (") +
               (stream_.msg != nullptr ? stream_.msg : zError(status)) + ")",
           "whole gzip data");
    }
    return out_before - stream_.avail_out;
  }

  void fail(std::string found, std::string expected) {
    TraceError error;
    error.path = path_;
    error.offset = packed_->offset();
    error.found = std::move(found);
    error.expected = std::move(expected);
    error_ = std::move(error);
  }

  std::unique_ptr<ByteWindow> packed_;
  std::string path_;
  z_stream stream_{};
  bool usable_ = false;
  bool in_member_ = true;
  bool ended_ = false;
};

// A source whose first bytes were already looked at.
class WindowSource final : public ByteSource {
 public:
  explicit WindowSource(std::unique_ptr<ByteWindow> window) : window_(std::move(window)) {}
  std::size_t read(std::span<char> into) override {
    const std::string_view bytes = window_->fill(into.size()).substr(0, into.size());
    std::copy(bytes.begin(), bytes.end(), into.begin());
    window_->consume(bytes.size());
    error_ = window_->source_error();
    return bytes.size();
  }

 private:
  std::unique_ptr<ByteWindow> window_;
};

}  // namespace

ByteWindow::ByteWindow(std::unique_ptr<ByteSource> source, std::size_t first_capacity)
    : source_(std::move(source)), buffer_(first_capacity) {}

std::string_view ByteWindow::fill(std::size_t wanted) {
  if (end_ - begin_ < wanted && !ended_) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    if (buffer_.size() < wanted) {
      buffer_.resize(wanted);
    }
    const std::size_t room = buffer_.size() - end_;
    const std::size_t count = source_->read(std::span(buffer_).subspan(end_));
    end_ += count;
    ended_ = count < room;
  }
  return {buffer_.data() + begin_, end_ - begin_};
}

void ByteWindow::consume(std::size_t count) {
  begin_ += count;
  offset_ += count;
}

std::unique_ptr<ByteSource> open_file_source(const std::string& path) {
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> open_memory_source(std::string_view bytes) {
  return std::make_unique<MemorySource>(bytes);
}

std::unique_ptr<ByteSource> unpack_if_gzip(std::unique_ptr<ByteSource> source,
                                           std::string path,
                                           std::size_t window) {
  auto packed = std::make_unique<ByteWindow>(std::move(source), window);
  const std::string_view start = packed->fill(2);
  if (start.size() >= 2 && start.substr(0, 2) == "\x1f\x8b") {
    return std::make_unique<GzipSource>(std::move(packed), std::move(path));
  }
  return std::make_unique<WindowSource>(std::move(packed));
}

std::string quoted_for_message(std::string_view bytes) {
  constexpr std::size_t kMost = 48;
  std::string text = "'";
  for (const char c : bytes.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      constexpr std::string_view kDigits = "0123456789abcdef";
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  text += bytes.size() > kMost ? "'..." : "'";
  return text;
}

}  // namespace nofrag
