#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/commands.h"
#include "trace/csv_format.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kEventsAtOnce = std::size_t{1} << 14;

// A file that appears under its name only when it is whole.
class OutputFile {
 public:
  OutputFile(const std::string& path, bool force) : path_(path) {
    if (path_ == "-") {
      file_ = stdout;
      return;
    }
    std::error_code ignored;
    if (std::filesystem::exists(path_, ignored)) {
      if (!force) {
        throw UsageError(path_ + ": exists already; --force overwrites it");
      }
      // Renaming onto a device would replace its node, and onto a link the link.
      path_ = std::filesystem::canonical(path_, ignored).string();
      if (!std::filesystem::is_regular_file(path_, ignored)) {
        throw UsageError(path + ": is not a regular file; use - for standard output");
      }
    }
    temporary_ = path_ + ".partial";
    if (path.ends_with(".gz")) {
      packed_ = gzopen(temporary_.c_str(), "wb");
    } else {
      file_ = std::fopen(temporary_.c_str(), "wb");
    }
    if (file_ == nullptr && packed_ == nullptr) {
      throw UsageError(temporary_ + ": cannot be written (" + std::strerror(errno) + ")");
    }
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (packed_ != nullptr) {
      gzclose(packed_);
      std::remove(temporary_.c_str());
    } else if (file_ != nullptr && file_ != stdout) {
      std::fclose(file_);
      std::remove(temporary_.c_str());
    }
  }

  [[nodiscard]] bool write(std::string_view bytes) {
    if (packed_ != nullptr) {
      return gzfwrite(bytes.data(), 1, bytes.size(), packed_) == bytes.size();
    }
    return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size();
  }

  void finish() {
    bool written = false;
    if (packed_ != nullptr) {
      written = gzclose(std::exchange(packed_, nullptr)) == Z_OK;
    } else {
      written = std::fflush(file_) == 0;
      written = (file_ == stdout || std::fclose(std::exchange(file_, nullptr)) == 0) && written;
    }
    if (file_ != stdout) {
      written = written && std::rename(temporary_.c_str(), path_.c_str()) == 0;
      if (!written) {
        std::remove(temporary_.c_str());
      }
    }
    if (!written) {
      throw RunError(path_ + ": could not be written (" + std::strerror(errno) + ")");
    }
  }

 private:
  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
  gzFile packed_ = nullptr;  // instead of file_
};

bool write_csv(const Trace& trace, OutputFile& output) {
  std::string text(kCsvHeader);
  text += '\n';
  for (std::size_t first = 0; first < trace.events.size(); first += kEventsAtOnce) {
    append_csv(trace, first, std::min(trace.events.size(), first + kEventsAtOnce), &text);
    if (!output.write(text)) {
      return false;
    }
    text.clear();
  }
  return true;
}

}  // namespace

ExitCode run_convert(const ConvertArguments& arguments) {
  const TraceFormat to = parse_output_format(arguments.to);
  const TraceFormat from = parse_input_format(arguments.format);
  const Trace trace = load_or_throw(arguments.input, from);
  OutputFile output(arguments.output, arguments.force);
  const bool written =
      to == TraceFormat::kCsv
          ? write_csv(trace, output)
          : write_packed(trace, {}, [&](std::string_view bytes) { return output.write(bytes); });
  if (!written) {
    throw RunError(arguments.output + ": could not be written (" + std::strerror(errno) + ")");
  }
  output.finish();
  return ExitCode::kOk;
}

}  // namespace nofrag
