#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "base/json_text.h"
#include "cli/explain/excerpt.h"
#include "cli/explain/explain.h"
#include "cli/replay/capacity.h"
#include "cli/replay/replay_session.h"
#include "config/human_bytes.h"
#include "trace/byte_source.h"
#include "trace/csv_format.h"
#include "trace/load_traces.h"
#include "trace/packed_format.h"

namespace nofrag {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;
// Of what may never end: so much that is no text, and so much of a trace, which is kept in memory as a whole.
constexpr std::size_t kMostData = std::size_t{256} << 20;
constexpr std::size_t kMostTrace = std::size_t{8} << 30;
// From here on it is said that it is still being read.
constexpr std::size_t kLong = std::size_t{1} << 30;

bool begins(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

// What is inside may be a trace or a text.
bool is_gzip(std::string_view head) {
  return begins(head, "\x1f\x8b");
}

// A trace is known by how it begins. What begins like this and is none is corrupt.
bool is_trace(std::string_view head) {
  return is_gzip(head) || looks_packed(head) || begins(head, "time_us,op,id") ||
         begins(head, "\xef\xbb\xbftime_us,op,id");
}

// Data of some program, and no text that a person would paste.
bool is_data(std::string_view head) {
  return is_trace(head) || recognise_trace(head.substr(0, kChunk)) != TraceFormat::kAuto ||
         begins(head, "PK");
}

// Where the input is, and what it is called.
struct Place {
  std::string path;
  std::string name;
  bool standard = false;
  // What was read of it does not come again: standard input, named pipes, devices.
  bool once = false;
  // A device, whose bytes are no log: zeros, random numbers.
  bool device = false;
  // A file, of whatever length.
  bool ends = false;
};

bool is_terminal(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  const bool terminal = file >= 0 && ::isatty(file) != 0;
  if (file >= 0) {
    ::close(file);
  }
  return terminal;
}

Place place_of(const std::string& path) {
  Place place{path, path, path == "-", path == "-", false, false};
  if (place.standard) {
    place.name = "standard input";
  }
  struct stat info {};
  const int known = place.standard ? ::fstat(STDIN_FILENO, &info) : ::stat(path.c_str(), &info);
  if (known == 0) {
    place.ends = S_ISREG(info.st_mode);
  }
  if (known == 0 && !place.standard) {
    if (S_ISDIR(info.st_mode)) {
      throw InputError(path + ": cannot be read (it is a directory)");
    }
    place.once = !S_ISREG(info.st_mode);
    place.device = S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !is_terminal(path));
  }
  return place;
}

// Zero bytes, which no text has: a program, a picture, an archive. (In UTF-16 every second byte of plain letters is one.)
bool is_binary(std::string_view head) {
  head = head.substr(0, kChunk);
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < head.size(); ++i) {
    zeros[i % 2] += head[i] == '\0' ? 1U : 0U;
  }
  const bool marked = begins(head, "\xff\xfe") || begins(head, "\xfe\xff");
  const bool wide = marked || zeros[0] == 0 || zeros[1] == 0;
  return zeros[0] + zeros[1] > 0 && !(wide && (zeros[0] + zeros[1]) * 3 > head.size());
}

// What may never end is given up where it has become clear that it is no log. (A log may be of any length, and through a
// pipe come for as long as it likes; a file ends, and may have zeros before its text, where it was cut while written.)
void check_length(const Place& place, const Excerpt& input, bool trace) {
  if (place.ends) {
    return;
  }
  if (input.total() > kMostData && !trace && (place.device || is_binary(input.head()))) {
    throw InputError(fmt::format(
        "{}: more than {} of it were read, which are no text and no trace, and there is more; give "
        "the message, a log or a trace",
        place.name,
        human_bytes(Bytes(kMostData))));
  }
  if (trace && input.total() > kMostTrace) {
    throw InputError(fmt::format(
        "{}: more than {} of a trace, which would have to be kept in memory; give the trace as a "
        "file",
        place.name,
        human_bytes(Bytes(kMostTrace))));
  }
}

Excerpt read_input(const Place& place) {
  const auto& [path, name, standard, once, device, ends] = place;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      standard ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* file) { return std::fclose(file); });
  std::FILE* file = standard ? stdin : opened.get();
  if (file == nullptr) {
    throw InputError(name + ": cannot be read (" + std::strerror(errno) + ")");
  }
  if (standard && ::isatty(STDIN_FILENO) != 0) {
    say("paste the message, then press Enter and Ctrl-D");
  }
  Excerpt input;
  std::vector<char> chunk(kChunk);
  std::size_t got = chunk.size();
  while (got == chunk.size()) {
    got = std::fread(chunk.data(), 1, chunk.size(), file);
    const std::string_view bytes(chunk.data(), got);
    const bool trace = once && is_data(input.head().empty() ? bytes : input.head());
    const bool was_short = input.total() <= kLong;
    input.append(bytes, trace);
    check_length(place, input, trace);
    if (!ends && was_short && input.total() > kLong) {
      say(name + ": read 1 GiB so far; waiting for its end (Ctrl-C gives up)");
    }
  }
  if (std::ferror(file) != 0) {
    throw InputError(name + ": cannot be read (" + std::strerror(errno) + ")");
  }
  return input;
}

// Nothing but a trace begins like this, so what cannot be read of it is damaged. (JSON may be anybody's.)
bool is_surely_trace(std::string_view head) {
  constexpr std::string_view kFramed = "\x95";
  constexpr std::size_t kFrameLength = 8;
  head = head.substr(0, kChunk);
  switch (recognise_trace(head)) {
    case TraceFormat::kAuto:
      return false;
    case TraceFormat::kTorch: {
      // A pickle: the opcode behind its version, and a frame shorter than a TiB.
      const std::string_view body = head.substr(2);
      return body.starts_with('}') || body.starts_with(']') || body.starts_with('(') ||
             (body.starts_with(kFramed) && body.size() > kFrameLength &&
              body.substr(6, 3) == std::string_view("\0\0\0", 3));
    }
    case TraceFormat::kKineto:
      return head.find("\"traceEvents\"") != std::string_view::npos;
    case TraceFormat::kTimeline:
      return begins(head, "[[");
    default:
      return true;
  }
}

// What is inside, of a gzip file.
Excerpt unpacked(const Place& place, const Excerpt& packed) {
  const std::unique_ptr<ByteSource> source =
      unpack_if_gzip(place.once ? open_memory_source(packed.head()) : open_file_source(place.path),
                     place.name,
                     kChunk);
  Excerpt input;
  std::vector<char> chunk(kChunk);
  std::size_t got = 0;
  while ((got = source->read(chunk)) > 0) {
    input.append(std::string_view(chunk.data(), got), false);
  }
  if (source->error()) {
    throw InputError(source->error()->message());
  }
  return input;
}

// What the input is as a trace; empty, and *why says why, if it is none and may be a text.
std::optional<Explained> as_trace(const ExplainArguments& arguments,
                                  const Place& place,
                                  const Excerpt& input,
                                  std::string* why) {
  const TraceFormat as = parse_input_format(arguments.format);
  std::vector<Trace> traces;
  const std::optional<TraceError> error =
      place.once ? load_traces_from_memory(input.head(), place.name, as, &traces)
                 : load_traces(place.path, as, &traces);
  if (!error) {
    traces = only_device(std::move(traces), arguments.trace_device, arguments.input);
    print_warnings(traces, arguments.input);
    return explain_traces(traces, arguments);
  }
  if (error->kind == TraceError::Kind::kEmpty) {
    return explain_nothing(error->message());
  }
  if (arguments.format != "auto" || (is_trace(input.head()) && !is_gzip(input.head()))) {
    throw InputError(error->message());
  }
  *why = error->message();
  return std::nullopt;
}

// What there is, where there is nothing to explain, and what would tell more. `why`: why it is no trace, where it was
// tried as one; `packed`: and it was what is inside that counts.
void tell_of_nothing(const Place& place,
                     const Excerpt& input,
                     const std::string& why,
                     bool packed,
                     Explained* explained) {
  std::vector<std::string>& missing = explained->diagnosis.missing;
  if (!why.empty()) {
    missing.push_back("a trace that can be read (" + why + ")");
  }
  if (input.total() == 0) {
    explained->found = place.name + " is empty";
  } else if (!why.empty() && !packed &&
             (is_binary(input.head()) || is_surely_trace(input.head()))) {
    explained->found = why;
  } else if (is_binary(input.head())) {
    explained->found = place.name + " is no text, and no trace that nofrag knows";
    missing.insert(missing.begin(), "a text or a trace: the input is neither");
  } else {
    explained->found = "there is no out-of-memory message in " + place.name + " that nofrag knows";
    if (const std::string header = csv_header_problem(input.head()); !header.empty()) {
      explained->found += "; for a csv trace its first line lacks " + header;
    }
    if (!input.whole()) {
      explained->found += " (of its middle only passages about memory were read)";
    }
  }
}

Explained explain(const ExplainArguments& arguments) {
  const Place place = place_of(arguments.input);
  Excerpt input = read_input(place);
  std::string why;
  if (arguments.format != "auto" || is_data(input.head())) {
    if (std::optional<Explained> explained = as_trace(arguments, place, input, &why)) {
      return std::move(*explained);
    }
  }
  const bool packed = is_gzip(input.head());
  if (packed) {
    input = unpacked(place, input);
  }
  Explained explained = explain_text(input.text());
  if (explained.kind == "nothing") {
    if (is_surely_trace(input.head()) && !why.empty()) {
      throw InputError(why);
    }
    tell_of_nothing(place, input, why, packed, &explained);
  }
  return explained;
}

}  // namespace

ExitCode run_explain(const ExplainArguments& arguments) {
  const std::vector<std::string_view>& known = replay_allocators();
  if (std::find(known.begin(), known.end(), arguments.allocator) == known.end()) {
    throw UsageError("--allocator: " + unknown_name("allocator", arguments.allocator, known));
  }
  if (arguments.capacity) {
    Capacity::parse(*arguments.capacity);
  }
  // (NOFRAG_CONF matters to traces only, and is read there.)
  check_conf("--conf", arguments.conf);
  refuse_overwriting({arguments.input}, {{"--json", arguments.json}});
  const Explained explained = explain(arguments);
  if (!arguments.json.empty()) {
    write_output(arguments.json, json_text(explain_json(explained)));
  }
  if (arguments.json != "-") {
    write_output("-", explain_page(explained));
  }
  return ExitCode::kOk;
}

}  // namespace nofrag
