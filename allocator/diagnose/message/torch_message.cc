// PyTorch's messages, by their parts: each version has some of them.
#include <algorithm>
#include <string>
#include <vector>

#include "config/human_bytes.h"
#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::string_view kTried = "Tried to allocate";
// The message is one paragraph.
constexpr std::size_t kLongestParagraph = 4000;
// Of it, the part with numbers.
constexpr std::size_t kLongestSentences = 1200;

// 1.0 to 2.0: everything in parentheses.
void read_in_parentheses(std::string_view text, Failure* f) {
  f->capacity = size_before(text, "total capacity");
  f->live = size_before(text, "already allocated");
  f->driver_free = size_before(text, "free;");
  f->limit = size_before(text, "allowed");
  const std::optional<Bytes> reserved = size_before(text, "reserved in total");
  if (reserved && f->live) {
    f->cached = *reserved > *f->live ? *reserved - *f->live : Bytes(0);
  } else if (const std::optional<Bytes> cached = size_before(text, "cached")) {
    f->cached = cached;  // up to 1.3: what is cached and not used
  }
  if (!f->driver_free) {
    f->driver_free = size_before(text, "free");
  }
}

// Terminals, mails and chats break lines anywhere: a break, with the indentation behind it, is a space.
std::string unwrapped(std::string_view text) {
  std::string one;
  one.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n' && text[i] != '\r') {
      one.push_back(text[i]);
      continue;
    }
    while (i + 1 < text.size() &&
           (text[i + 1] == '\n' || text[i + 1] == ' ' || text[i + 1] == '\t')) {
      ++i;
    }
    if (one.empty() || one.back() != ' ') {
      one.push_back(' ');
    }
  }
  return one;
}

// Where the last message begins.
std::size_t last_tried(std::string_view text) {
  constexpr std::string_view kBegins = "Tried to";
  for (std::size_t at = last_of(text, kBegins); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos
                    : last_of(text.substr(0, at + kBegins.size() - 1), kBegins)) {
    if (unwrapped(text.substr(at, 2 * kTried.size())).starts_with(kTried)) {
      return at;
    }
  }
  return std::string_view::npos;
}

struct ListedProcess {
  std::string name;
  Bytes size;
};

std::vector<ListedProcess> listed_processes(std::string_view text) {
  constexpr std::string_view kProcess = "Process ";
  std::vector<ListedProcess> listed;
  for (std::size_t at = text.find(kProcess); at != std::string_view::npos;
       at = text.find(kProcess, at + 1)) {
    const std::string_view rest = text.substr(at, 120);
    const std::size_t has = rest.find(" has ");
    if (has == std::string_view::npos || !holds(rest, "memory in use")) {
      continue;
    }
    if (const std::optional<Bytes> size = size_at(rest.substr(has + 5))) {
      const std::string_view word = rest.substr(kProcess.size(), has - kProcess.size());
      const bool number =
          !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
      listed.push_back({number ? "process " + std::string(word) : "another process", *size});
    }
  }
  return listed;
}

// In a container the driver names processes by the host's numbers: PyTorch does not find itself among them, and lists
// itself as a process like any other. It is the one that holds little more than PyTorch does; or, however much more,
// one that there is no room for beside what PyTorch holds.
void find_this_process(std::vector<ListedProcess>* listed, Failure* f) {
  constexpr Bytes kContextAndLibraries = 2560 * kMiB;
  if (f->process_in_use || !f->reserved() || listed->empty()) {
    return;
  }
  const Bytes held = *f->reserved();
  Bytes all = held;
  auto closest = listed->end();
  for (auto one = listed->begin(); one != listed->end(); ++one) {
    all += one->size;
    if (one->size >= held && (closest == listed->end() || one->size < closest->size)) {
      closest = one;
    }
  }
  const bool too_much = f->capacity && all > *f->capacity;
  if (closest == listed->end() || (closest->size - held > kContextAndLibraries && !too_much)) {
    return;
  }
  f->process_in_use = closest->size;
  f->notes.push_back(closest->name + " is taken for this one: its " + human_bytes(closest->size) +
                     " are the " + human_bytes(held) +
                     " that PyTorch holds, a context and libraries (in a container the driver "
                     "names processes by other numbers)");
  listed->erase(closest);
}

void read_processes(std::string_view text, Failure* f) {
  std::vector<ListedProcess> listed = listed_processes(text);
  find_this_process(&listed, f);
  Bytes others;
  for (const ListedProcess& one : listed) {
    others += one.size;
    ++f->other_processes;
    if (one.size > f->largest_other_size) {
      f->largest_other = one.name;
      f->largest_other_size = one.size;
    }
  }
  if (f->other_processes > 0) {
    f->others = others;
  }
}

// 2.1 and newer: sentences.
void read_sentences(std::string_view text, Failure* f) {
  const std::size_t total = text.find("has a total capac");
  f->capacity = size_after(text.substr(total), " of ");
  f->driver_free = size_before(text, "is free");
  f->process_in_use = size_after(text, "this process has ");
  f->limit = size_before(text, "allowed");
  f->live = size_before(text, "is allocated by PyTorch");
  f->private_pools = size_before(text, "allocated in private pools");
  f->cached = size_before(text, "is reserved by PyTorch but unallocated");
  read_processes(text, f);
}

// "PyTorch limit (set by user-supplied memory fraction)\n                        : 12.00 GiB": it stands in the line below
// its name, and what starts a line ("[rank0]: ", a time) has colons, too. Only the size has a unit.
std::optional<Bytes> limit_in_table(std::string_view table) {
  constexpr std::size_t kLongestLines = 300;
  constexpr std::string_view kUnits[] = {" bytes", " KiB", " MiB", " GiB"};
  const std::size_t name = table.find("PyTorch limit");
  if (name == kNowhere) {
    return std::nullopt;
  }
  std::string_view lines = table.substr(name, kLongestLines);
  const std::size_t first = lines.find('\n');
  lines = lines.substr(0, first == kNowhere ? kNowhere : lines.find('\n', first + 1));
  for (std::size_t at = lines.find(':'); at != kNowhere; at = lines.find(':', at + 1)) {
    const std::string_view behind = lines.substr(at + 1);
    const std::size_t number = std::min(behind.find_first_not_of(" \t"), behind.size());
    const std::size_t unit = behind.find_first_not_of("0123456789.,", number);
    const std::string_view rest = behind.substr(std::min(unit, behind.size()));
    if (std::any_of(std::begin(kUnits), std::end(kUnits), [rest](std::string_view one) {
          return rest.starts_with(one);
        })) {
      return size_at(behind);
    }
  }
  return std::nullopt;
}

// The backend cudaMallocAsync: a table. The driver's pool does not say what it caches, and PyTorch compares its limit with
// what is allocated.
bool read_table(std::string_view text, Failure* f) {
  const std::size_t at = last_of(text, "Currently allocated");
  if (at == std::string_view::npos) {
    return false;
  }
  const std::string_view table = text.substr(at, kLongestParagraph);
  const auto row = [&](std::string_view name) -> std::optional<Bytes> {
    const std::size_t line = table.find(name);
    return line == std::string_view::npos ? std::nullopt : size_after(table.substr(line), ":");
  };
  f->live = row("Currently allocated");
  f->requested = row("Requested");
  f->capacity = row("Device limit");
  f->driver_free = row("Free (according to CUDA)");
  const std::optional<Bytes> limit = limit_in_table(table);
  if (limit && f->capacity && *limit < *f->capacity) {
    f->limit = limit;
    f->limit_reached = f->live && f->requested && *f->live + *f->requested > *limit;
    if (f->limit_reached) {
      f->notes.push_back("PyTorch itself refused it: with the request the " +
                         human_bytes(*f->live) + " that are allocated would exceed its limit");
    }
  }
  return f->requested.has_value();
}

// Apple's GPUs: (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). How much of it is in use,
// and how much memory the machine has, it does not say: what is known is that PyTorch's own limit refused it.
void read_mps(std::string_view text, Failure* f) {
  f->live = size_after(text, "MPS allocated:");
  f->limit = size_after(text, "max allowed:");
  f->limit_reached = f->limit.has_value();
  if (f->limit_reached) {
    f->limit_name = "what PyTorch allows itself of the machine's memory on MPS";
  }
}

Vendor vendor_of(std::string_view before, std::string_view message) {
  if (holds(before, "MPS backend")) {
    return Vendor::kApple;
  }
  if (holds(before, "XPU out of memory")) {
    return Vendor::kIntel;
  }
  return holds(before, "HIP out of memory") || holds(message, "PYTORCH_HIP_ALLOC_CONF")
             ? Vendor::kAmd
             : Vendor::kNvidia;
}

// The words of one line, as they are parted by blanks.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(" \t"); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(" \t", end);
  }
  return words;
}

bool is_one_of(std::string_view word, const auto& list) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

// A word of who tells another what to do.
bool advises(std::string_view word) {
  constexpr std::string_view kAdvice[] = {
      "try",    "set",      "setting",   "consider",    "considering", "use",       "using",
      "enable", "enabling", "recommend", "recommended", "suggest",     "suggested", "should",
      "hint",   "tip",      "note",      "example",     "could",       "may",       "might",
      "with",   "see",      "add",       "pass",        "please",      "want"};
  std::string plain;
  for (const char c : word) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      plain.push_back(static_cast<char>(c | 0x20));
    }
  }
  return is_one_of(plain, kAdvice);
}

// What stands before a setting that somebody has made: a shell's prompt, its commands, other settings, the marks of a
// log or of a program's text. Prose is none of that.
bool is_prose(std::string_view word) {
  constexpr std::string_view kShell[] = {"export",
                                         "env",
                                         "sudo",
                                         "time",
                                         "nohup",
                                         "exec",
                                         "declare",
                                         "setenv",
                                         "INFO",
                                         "DEBUG",
                                         "ENV"};
  constexpr std::string_view kMarks = "=:@$#%>+/-\"'[](){}0123456789";
  return !is_one_of(word, kShell) && word.find_first_of(kMarks) == std::string_view::npos;
}

// Is the setting at `at` one that somebody has made? A hint stands in a sentence: advice before it, or its purpose behind.
bool is_made(std::string_view text, std::size_t at, std::size_t length) {
  constexpr std::size_t kLineOfIt = 400;
  constexpr std::string_view kPurposes[] = {"to", "may", "might", "can", "could", "helps", "for"};
  constexpr std::string_view kGives[] = {"export", "env", "ENV", "-e", "--env", "-x"};
  const std::string_view near =
      text.substr(at > kLineOfIt ? at - kLineOfIt : 0, std::min(at, kLineOfIt));
  const std::size_t begin = near.find_last_of("\r\n") + 1;  // npos + 1 is 0
  const std::string_view line = near.substr(begin);
  std::vector<std::string_view> before = words_of(line);
  if (!line.empty() && line.back() != ' ' && line.back() != '\t') {
    before.pop_back();  // the name that it is given to
  }
  const std::string rest = unwrapped(text.substr(at + length, kLineOfIt / 4));
  const std::vector<std::string_view> behind = words_of(rest);
  // More of its value, or what it is quoted by, may follow first.
  const std::size_t next = rest.starts_with(' ') ? 0 : 1;
  if (behind.size() > next && is_one_of(behind[next], kPurposes)) {
    return false;
  }
  // A terminal may have broken the sentence right before the name.
  const std::string_view above =
      near.substr(0, near.substr(0, begin).find_last_not_of(" \t\r\n") + 1);
  const std::vector<std::string_view> last = words_of(above.substr(above.find_last_of("\r\n") + 1));
  if (std::any_of(before.begin(), before.end(), advises) ||
      (before.empty() && std::any_of(last.begin(), last.end(), advises))) {
    return false;
  }
  return (!before.empty() && is_one_of(before.back(), kGives)) ||
         std::none_of(before.begin(), before.end(), is_prose);
}

bool expandable_is_on(std::string_view text) {
  constexpr std::string_view kSetting = "expandable_segments:True";
  for (std::size_t at = text.find(kSetting); at != std::string_view::npos;
       at = text.find(kSetting, at + 1)) {
    if (is_made(text, at, kSetting.size())) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::size_t last_torch_message(std::string_view text) {
  const std::size_t tried = last_tried(text);
  return tried == std::string_view::npos ? last_of(text, "Currently allocated") : tried;
}

bool read_torch_message(std::string_view text, OomMessage* message) {
  Failure f;
  f.source = "PyTorch";
  f.expandable_segments = expandable_is_on(text);
  const std::size_t tried = last_tried(text);
  if (tried == std::string_view::npos) {
    if (!read_table(text, &f)) {
      return false;
    }
  } else {
    // Whose memory it was stands right before it; MPS has its numbers there, too.
    constexpr std::size_t kName = 40;
    constexpr std::size_t kMpsNumbers = 300;
    const auto before = [&](std::size_t size) {
      const std::size_t begin = tried > size ? tried - size : 0;
      return unwrapped(text.substr(begin, tried - begin));
    };
    const bool mps = holds(before(kMpsNumbers), "MPS backend");
    const std::size_t back = std::min(tried, kMpsNumbers);
    const std::string one = unwrapped(text.substr(mps ? tried - back : tried, kLongestParagraph));
    f.vendor = vendor_of(before(mps ? kMpsNumbers : kName), one);
    f.requested = size_after(one, kTried);
    refuse_unclear(std::string_view(one).substr(0, kLongestSentences), &f);
    if (mps) {
      read_mps(one, &f);
    } else if (holds(one, "has a total capac")) {
      read_sentences(one, &f);
    } else {
      read_in_parentheses(one, &f);
    }
  }
  if (f.limit && f.reserved() && f.requested) {
    f.limit_reached = f.limit_reached || *f.reserved() + *f.requested > *f.limit;
  }
  message->failure = std::move(f);
  return true;
}

}  // namespace nofrag::detail
