// Texts in which nothing else is found: a process that somebody killed, and errors that any memory may raise. What is
// said of them is a guess, and its confidence says how good a one.
#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr double kBadAlloc = 0.75;
constexpr double kMemoryError = 0.7;
constexpr double kKilledBySignal = 0.5;
constexpr double kShellsKilled = 0.5;
constexpr double kTheWord = 0.3;

bool is_word_part(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The word, with nothing of another word around it, from `from` on.
std::size_t find_word(std::string_view text, std::string_view word, std::size_t from = 0) {
  for (std::size_t at = text.find(word, from); at != kNowhere; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word_part(text[at - 1])) &&
        (end == text.size() || !is_word_part(text[end]))) {
      return at;
    }
  }
  return kNowhere;
}

// "std::bad_alloc: ..." is RMM's and Thrust's, of a GPU.
bool has_bad_alloc(std::string_view text) {
  constexpr std::string_view kWord = "std::bad_alloc";
  for (std::size_t at = text.find(kWord); at != kNowhere; at = text.find(kWord, at + 1)) {
    if (text.substr(at + kWord.size(), 1) != ":") {
      return true;
    }
  }
  return false;
}

bool has_memory_error(std::string_view text) {
  for (const std::string_view word : {"MemoryError", "_ArrayMemoryError"}) {
    if (find_word(text, word) != kNowhere) {
      return true;
    }
  }
  return false;
}

// 137 is 128 and the 9 of SIGKILL. A container's own word that it was not for memory counts.
bool has_exit_of_killed(std::string_view text) {
  constexpr auto kSigns = std::to_array<std::string_view>({"exitcode: -9",
                                                           "return code = -9",
                                                           "Signal 9 (SIGKILL)",
                                                           "SIGKILL: 9",
                                                           "status=9/KILL",
                                                           "exited on signal 9"});
  for (const std::string_view sign : kSigns) {
    if (holds(text, sign)) {
      return true;
    }
  }
  constexpr std::size_t kBefore = 24;
  for (std::size_t at = find_word(text, "137"); at != kNowhere;
       at = find_word(text, "137", at + 1)) {
    std::string before(text.substr(at > kBefore ? at - kBefore : 0, at > kBefore ? kBefore : at));
    before.erase(0, before.rfind('\n') + 1);
    for (char& c : before) {
      c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (holds(before, "exit")) {
      return true;
    }
  }
  return false;
}

// "Killed" as a line of its own, "run.sh: line 3: 4242 Killed    python train.py", "[1]+  Killed  ...", "zsh: killed".
bool is_shells_line(std::string_view line) {
  const std::size_t at = find_word(line, "Killed");
  if (at == kNowhere) {
    return line.starts_with("zsh: killed");
  }
  const std::string_view before = line.substr(0, at);
  const std::size_t last = before.find_last_not_of(" \t");
  const std::string_view after = line.substr(at + 6);
  const bool alone = last == kNowhere && after.find_first_not_of(" \t\r") == kNowhere;
  const bool job = last != kNowhere &&
                   (std::isdigit(static_cast<unsigned char>(before[last])) != 0 ||
                    before[last] == ']' || before[last] == '+' || before[last] == '-') &&
                   (after.empty() || after[0] == ' ' || after[0] == '\r' || after[0] == '\t');
  return alone || job;
}

bool has_shells_line(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (is_shells_line(text.substr(0, end))) {
      return true;
    }
    text.remove_prefix(end == kNowhere ? text.size() : end + 1);
  }
  return false;
}

// "oom_kill 2" in a control group's memory.events.
bool has_kill_count(std::string_view text) {
  constexpr std::string_view kCount = "oom_kill ";
  const std::size_t at = find_word(text, "oom_kill");
  return at != kNowhere && text.substr(at, kCount.size()) == kCount &&
         size_at(text.substr(at + kCount.size())).value_or(Bytes(0)) > Bytes(0);
}

bool denies_it(std::string_view text) {
  const std::size_t at = last_of(text, "OOMKilled");
  return at != kNowhere && holds(text.substr(at, 24), "false");
}

// What ends programs otherwise: whoever is killed after it was killed for it.
bool tells_of_another_end(std::string_view text) {
  constexpr std::string_view kSigns[] = {"CUDA error:",
                                         "Segmentation fault",
                                         "SIGSEGV",
                                         "core dumped",
                                         "SIGABRT",
                                         "Watchdog caught collective",
                                         "NCCL error",
                                         "DUE TO TIME LIMIT",
                                         "CANCELLED"};
  return std::any_of(std::begin(kSigns), std::end(kSigns), [text](std::string_view sign) {
    return holds(text, sign);
  });
}

bool guess(std::string_view text, Failure* f) {
  HostShortage* const host = &f->host;
  const auto settle = [&](double confidence, const char* evidence, const char* source = "Linux") {
    f->source = source;
    host->confidence = confidence;
    host->evidence.emplace_back(evidence);
    return true;
  };
  if (has_kill_count(text)) {
    host->which = HostMemory::kContainer;
    return settle(0.9, "the control group's memory.events counts kills (oom_kill)");
  }
  if (has_bad_alloc(text)) {
    return settle(
        kBadAlloc, "std::bad_alloc is thrown where C++ gets no memory of the machine", "C++");
  }
  if (has_memory_error(text)) {
    return settle(
        kMemoryError, "MemoryError is raised where Python gets no memory of the machine", "Python");
  }
  const bool by_signal = has_exit_of_killed(text) && !denies_it(text);
  const bool by_shell = has_shells_line(text);
  if ((!by_signal && !by_shell && find_word(text, "Killed") == kNowhere) ||
      tells_of_another_end(text)) {
    return false;
  }
  if (holds(text, "memory.max") || holds(text, "cgroup")) {
    host->which = HostMemory::kContainer;
  }
  host->missing.emplace_back(
      "who ended it: dmesg -T | grep -i 'killed process', journalctl -k, kubectl describe pod, "
      "sacct -o State,MaxRSS");
  return by_signal ? settle(kKilledBySignal,
                            "a process was ended by SIGKILL (137 = 128 + 9); nothing says by whom, "
                            "and mostly it is Linux's OOM killer")
         : by_shell
             ? settle(
                   kShellsKilled,
                   "a shell says that its program was killed; nothing says by whom, and mostly it "
                   "is Linux's OOM killer")
             : settle(kTheWord,
                      "the text says that something was killed, and tells of no other failure; "
                      "Linux's OOM killer does so");
}

}  // namespace

bool guess_host_message(std::string_view text, OomMessage* message) {
  Failure f;
  if (!guess(text, &f)) {
    return false;
  }
  f.host_memory = true;
  message->failure = std::move(f);
  return true;
}

}  // namespace nofrag::detail
