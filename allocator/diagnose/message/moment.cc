// What the text near a failure says of its moment. Only the failure's own traceback and lines close to it tell: a log
// names loading, steps and caches all along, and its configuration names them too.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

using Lines = std::vector<std::string_view>;

// Names that stand in the frames of a traceback, or in log lines, of each moment.
struct Sign {
  std::string_view text;
  Moment moment;
};
constexpr std::array<Sign, 27> kKnownSigns = {{
    {"past_key_value", Moment::kKvCache},
    {"cache_utils.py", Moment::kKvCache},
    {"cache_engine", Moment::kKvCache},
    {"kv_cache", Moment::kKvCache},
    {"KV cache", Moment::kKvCache},
    {"kv cache", Moment::kKvCache},
    {"key_cache", Moment::kKvCache},
    {"for the cache blocks", Moment::kKvCache},
    {"load_state_dict", Moment::kLoading},
    {"from_pretrained", Moment::kLoading},
    {"_load_pretrained_model", Moment::kLoading},
    {"load_model", Moment::kLoading},
    {"error loading model", Moment::kLoading},
    {"load_tensors", Moment::kLoading},
    {"load_weights", Moment::kLoading},
    {"checkpoint_loader", Moment::kLoading},
    {"_apply(convert)", Moment::kLoading},
    {"in _apply", Moment::kLoading},
    {".to(device)", Moment::kLoading},
    {"in forward", Moment::kStep},
    {"warming up sampler", Moment::kStep},
    {".backward(", Moment::kStep},
    {"_engine_run_backward", Moment::kStep},
    {"optimizer.step", Moment::kStep},
    {"in training_step", Moment::kStep},
    {"_call_impl", Moment::kStep},
    {"sequential_executor.cc", Moment::kStep},
}};

// Where an optimizer makes its state, the last time; npos: nowhere. What it computes with that state in each step
// has the same names: there must be a function beside them that makes a tensor.
std::size_t optimizer_state_in(std::string_view text) {
  constexpr std::array<std::string_view, 6> kMakes = {"zeros_like(",
                                                      "torch.zeros(",
                                                      "full_like(",
                                                      "empty_like(",
                                                      "torch.clone(",
                                                      "get_state_buffer("};
  constexpr std::array<std::string_view, 6> kStates = {
      "exp_avg", "exp_inf", "momentum_buffer", "square_avg", "acc_delta", "state["};
  constexpr std::size_t kFrame = 400;
  const std::size_t init = last_of(text, "in _init_group");
  std::size_t latest = init;
  for (const std::string_view make : kMakes) {
    const std::size_t at = last_of(text, make);
    if (at == kNowhere || (latest != kNowhere && at < latest)) {
      continue;
    }
    const std::size_t line = last_of(text.substr(0, at), "\n");
    const std::size_t begin = line == kNowhere ? 0 : line;
    const std::string_view statement = text.substr(begin, at - begin);
    const std::size_t frame = begin > kFrame ? begin - kFrame : 0;
    if (holds(text.substr(frame, at - frame), "optim") &&
        std::any_of(kStates.begin(), kStates.end(), [&](auto s) { return holds(statement, s); })) {
      latest = at;
    }
  }
  return latest;
}

// The last sign before the message: the innermost frame that says anything.
Moment moment_of(std::string_view text) {
  std::size_t latest = 0;
  Moment moment = Moment::kUnknown;
  for (const Sign& sign : kKnownSigns) {
    const std::size_t at = last_of(text, sign.text);
    if (at != std::string_view::npos && at + 1 > latest) {
      latest = at + 1;
      moment = sign.moment;
    }
  }
  const std::size_t state = optimizer_state_in(text);
  return state != kNowhere && state + 1 > latest ? Moment::kOptimizerState : moment;
}

constexpr std::size_t kMostAbove = 400;
constexpr std::size_t kMostBehind = 64;
constexpr std::size_t kLongestLine = 4000;
// Lines so close before a failure belong to it.
constexpr std::size_t kClose = 4;
// Lines that one message is broken into.
constexpr std::size_t kMostBroken = 12;

bool holds_any(std::string_view line, const auto& words) {
  return std::any_of(
      std::begin(words), std::end(words), [line](std::string_view w) { return holds(line, w); });
}

// Logs in JSON write a break as two letters.
std::size_t break_at(std::string_view text, std::size_t at) {
  if (text[at] == '\n') {
    return 1;
  }
  return text[at] == '\\' && at + 1 < text.size() && text[at + 1] == 'n' ? 2 : 0;
}

std::size_t line_begin(std::string_view text, std::size_t at) {
  const std::size_t from = at;
  const std::size_t least = at > kLongestLine ? at - kLongestLine : 0;
  while (at > least) {
    --at;
    if (const std::size_t length = break_at(text, at); length != 0) {
      return std::min(at + length, from);
    }
  }
  return at;
}

std::size_t line_end(std::string_view text, std::size_t at) {
  const std::size_t most = std::min(text.size(), at + kLongestLine);
  while (at < most && break_at(text, at) == 0) {
    ++at;
  }
  return at;
}

std::string_view trimmed(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  line.remove_prefix(first == kNowhere ? line.size() : first);
  return line.substr(0, line.find_last_not_of(" \t\r") + 1);
}

// Lines before the one that begins there, the last one last.
Lines lines_above(std::string_view text, std::size_t begin) {
  Lines lines;
  while (begin > 0 && lines.size() < kMostAbove) {
    const std::size_t length = text[begin - 1] == '\n'                  ? 1
                               : text.substr(0, begin).ends_with("\\n") ? 2
                                                                        : 0;
    if (length == 0) {
      break;  // a line that is not seen from its beginning
    }
    const std::size_t end = begin - length;
    begin = line_begin(text, end);
    lines.push_back(text.substr(begin, end - begin));
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

Lines lines_from(std::string_view text, std::size_t end) {
  Lines lines;
  while (end < text.size() && lines.size() < kMostBehind + kMostBroken) {
    const std::size_t length = break_at(text, end);
    if (length == 0) {
      break;
    }
    const std::size_t begin = end + length;
    end = line_end(text, begin);
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

bool is_indented(std::string_view line) {
  return line.starts_with(' ') || line.starts_with('\t');
}

// Where a frame of Python's begins, behind what a logger puts before each line; kNowhere: it is none.
std::size_t frame_in(std::string_view line) {
  for (const std::string_view words : {"File \"", "File \\\"", "File ~", "File /"}) {
    if (const std::size_t at = line.find(words); at != kNowhere) {
      return at;
    }
  }
  // Of notebooks and of rich: "/x/model.py in forward(self, x)", "/x/model.py:12 in forward".
  const std::size_t file = line.find(".py");
  const bool in = file != kNowhere && holds(line.substr(file, 12), " in ");
  return in ? line.find_first_not_of(" \t") : kNowhere;
}

bool is_head(std::string_view line) {
  return holds(line, "Traceback (most recent call last)");
}

// Line `i` of a traceback, if it is one: a frame, its source, or the rest of either that a terminal has broken.
bool is_of_traceback(const Lines& lines, std::size_t i) {
  constexpr std::string_view kMarks[] = {"\xe2\x94", "\xe2\x95", "->", "--->", "---->"};
  constexpr std::size_t kNarrowestTerminal = 60;
  constexpr std::size_t kMostSource = 4;
  const std::string_view line = lines[i];
  if (trimmed(line).empty() || is_indented(line) || frame_in(line) != kNowhere ||
      std::any_of(
          std::begin(kMarks), std::end(kMarks), [line](auto m) { return line.starts_with(m); })) {
    return true;
  }
  // Behind a logger's words its source is indented by more than the frame itself.
  for (std::size_t back = 1; back <= std::min(i, kMostSource); ++back) {
    const std::size_t frame = frame_in(lines[i - back]);
    if (frame != kNowhere && frame > 0) {
      return line.size() > frame && line.substr(frame).starts_with("  ");
    }
  }
  return i > 0 && lines[i - 1].size() >= kNarrowestTerminal &&
         (is_indented(lines[i - 1]) || frame_in(lines[i - 1]) != kNowhere) && !holds(line, "Error");
}

// Where the traceback begins that ends before line `end`; `end`: there is none.
std::size_t traceback_begin(const Lines& lines, std::size_t end) {
  std::size_t begin = end;
  for (std::size_t i = end; i > 0; --i) {
    if (is_head(lines[i - 1])) {
      return i - 1;
    }
    if (!is_of_traceback(lines, i - 1)) {
      break;
    }
    // What is only indented, or empty, above the first frame is not of it.
    begin = frame_in(lines[i - 1]) != kNowhere ? i - 1 : begin;
  }
  return begin;
}

bool is_ordinary(std::string_view line) {
  constexpr std::string_view kLevels[] = {"INFO", "DEBUG", "TRACE"};
  return holds_any(line, kLevels);
}

// Lines that a failure may have before it and that are of it: what else a program says of what goes wrong.
bool is_of_failure(std::string_view line) {
  constexpr std::string_view kWords[] = {
      "ERROR", "rror", "WARN", "arning", "ail", "xception", "CRITICAL", "FATAL", "panic"};
  return trimmed(line).empty() || (!is_ordinary(line) && holds_any(line, kWords));
}

// Lines in which the message itself has begun: terminals and programs break it.
bool begins_message(std::string_view line) {
  constexpr std::string_view kWords[] = {"ut of memory", "OutOfMemory", "out of"};
  return trimmed(line).empty() || (!is_ordinary(line) && holds_any(line, kWords));
}

// Is what ends there the name of a setting: "past_key_values": null, kv_cache_dtype=auto, use_kv_cache: true?
bool is_setting(std::string_view line, std::size_t end) {
  const auto is_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  while (end < line.size() && is_name(line[end])) {
    ++end;
  }
  const std::string_view rest = line.substr(end);
  const std::size_t behind = rest.find_first_not_of("\\\"'");
  const std::string_view sign = trimmed(rest.substr(std::min(behind, rest.size())));
  if (behind != 0) {
    return sign.starts_with(':') || sign.starts_with('=');
  }
  if (rest.starts_with('=')) {
    return true;
  }
  // One word only: a function that logs says more.
  return rest.starts_with(':') && trimmed(rest.substr(1)).find(' ') == kNowhere;
}

// What servers report of a cache all along: "GPU KV cache usage: 11.0%, Prefix cache hit rate: 80.1%"; and the file
// that a logger names before its words: "[kv_cache_utils.py:1200] ".
bool is_report(std::string_view line, std::size_t end) {
  constexpr std::string_view kMeasures[] = {" usage", "_usage", " size:", " hit", "_hit"};
  constexpr std::string_view kFile = "abcdefghijklmnopqrstuvwxyz_.py:0123456789";
  const std::string_view rest = line.substr(end);
  const std::size_t close = rest.find_first_not_of(kFile);
  if (close != kNowhere && rest[close] == ']' && holds(rest.substr(0, close), "py:")) {
    return true;
  }
  return std::any_of(std::begin(kMeasures), std::end(kMeasures), [rest](auto measure) {
    return rest.starts_with(measure);
  });
}

// A line of a log, without the names of settings and of what is reported.
std::string without_settings(std::string_view line) {
  std::string plain(line);
  for (const Sign& sign : kKnownSigns) {
    for (std::size_t at = line.find(sign.text); at != kNowhere; at = line.find(sign.text, at + 1)) {
      const std::size_t end = at + sign.text.size();
      if (is_setting(line, end) || is_report(line, end)) {
        std::fill_n(plain.begin() + static_cast<std::ptrdiff_t>(at), sign.text.size(), ' ');
      }
    }
  }
  return plain;
}

// Frames behind a message: of C++ and Java, and what ggml and the programs on it say on their way out.
bool is_behind(std::string_view line) {
  constexpr std::string_view kFrames[] = {"frame #", "@ 0x", "[0x", "Exception raised from"};
  constexpr std::string_view kGgml[] = {"ggml",
                                        "llama_",
                                        "llama-",
                                        "llama runner",
                                        "load_tensors:",
                                        "load_model:",
                                        "alloc_tensor_range",
                                        "graph_reserve",
                                        "gallocr",
                                        "common_init",
                                        "panic:"};
  constexpr std::string_view kWrong[] = {"fail", "unable", "error", "panic"};
  const std::string_view words = trimmed(line);
  if (is_ordinary(line)) {
    return false;
  }
  const bool numbered = words.size() > 1 && words[0] == '#' && words[1] >= '0' && words[1] <= '9';
  const bool java = is_indented(line) && words.starts_with("at ");
  return numbered || java || holds_any(line, kFrames) ||
         (holds_any(line, kGgml) && holds_any(line, kWrong));
}

// The frames directly behind the line that ends there, the innermost last.
Lines frames_behind(std::string_view text, std::string_view own, std::size_t end) {
  const Lines behind = lines_from(text, end);
  std::size_t i = 0;
  // A message that its line does not end goes on in the next ones.
  const auto goes_on = [](std::string_view line) {
    const std::string_view words = trimmed(line);
    return !words.empty() && words.back() != '.' && words.back() != ')';
  };
  if (holds(own, "Tried to")) {
    std::string_view before = own;
    while (i < std::min(behind.size(), kMostBroken) && goes_on(before) && !is_ordinary(behind[i]) &&
           !is_behind(behind[i])) {
      before = behind[i++];
    }
  }
  Lines frames;
  for (; i < behind.size() && frames.size() < kMostBehind && is_behind(behind[i]); ++i) {
    frames.push_back(behind[i]);
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

// The closest line before line `end` that says it, as long as none between is of anything else.
Moment moment_close_before(const Lines& lines, std::size_t end) {
  for (std::size_t i = end; i > 0 && end - i < kClose; --i) {
    if (frame_in(lines[i - 1]) != kNowhere) {
      break;  // of another failure's traceback
    }
    const Moment moment = moment_of(without_settings(lines[i - 1]));
    if (moment != Moment::kUnknown || !is_of_failure(lines[i - 1])) {
      return moment;
    }
  }
  return Moment::kUnknown;
}

}  // namespace

std::string words_behind(std::string_view text, std::size_t at) {
  const std::size_t end = line_end(text, at);
  std::string words(text.substr(at, end - at));
  for (const std::string_view line : frames_behind(text, words, end)) {
    words.append("\n").append(line);
  }
  return words;
}

Moment moment_near(std::string_view text, std::size_t at) {
  if (at >= text.size()) {
    return Moment::kUnknown;
  }
  const std::size_t begin = line_begin(text, at);
  const std::size_t end = line_end(text, at);
  const std::string_view own = text.substr(begin, end - begin);
  const Lines above = lines_above(text, begin);
  std::size_t top = above.size();
  while (top > 0 && above.size() - top < kClose && begins_message(above[top - 1])) {
    --top;
  }
  const std::size_t traceback = traceback_begin(above, top);
  std::string words;
  for (std::size_t i = traceback; i < top; ++i) {
    words.append(above[i]).append("\n");
  }
  words += without_settings(own);
  for (const std::string_view line : frames_behind(text, own, end)) {
    words.append("\n").append(line);
  }
  const Moment moment = moment_of(words);
  return moment != Moment::kUnknown ? moment : moment_close_before(above, traceback);
}

std::size_t place_of(std::string_view text, const Failure& failure) {
  const std::size_t torch = failure.source == "PyTorch" ? last_torch_message(text) : kNowhere;
  const std::size_t headline = torch == kNowhere ? last_headline(text) : torch;
  const std::size_t plain = headline == kNowhere ? last_plain_sign(text) : headline;
  if (plain != kNowhere) {
    return plain;
  }
  std::size_t latest = kNowhere;
  for (const std::string_view words : {"ut of memory", "OutOfMemory"}) {
    const std::size_t at = last_of(text, words);
    latest = latest == kNowhere || (at != kNowhere && at > latest) ? at : latest;
  }
  return latest;
}

}  // namespace nofrag::detail
