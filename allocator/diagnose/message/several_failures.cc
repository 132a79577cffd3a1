// How many failures of GPU memory a text tells of, and which of them a verdict is about. One failure is told again and
// again (a traceback, a log line, the program around it): the same words with the same numbers are one.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::size_t kWords = 110;
constexpr std::size_t kMessage = 600;
constexpr std::size_t kNear = 3000;
constexpr std::size_t kMostTold = 10'000;
constexpr std::size_t kQuote = 200;

// Where a message begins, and what stands in it before the size that was asked for.
struct Headline {
  std::string_view text;
  std::string_view size;
};
constexpr auto kHeadlines = std::to_array<Headline>({
    {"Tried to allocate", "allocate"},
    {"nofrag: out of memory", "tried to allocate "},
    {"Out of memory allocating ", "allocating "},
    {"Out of memory while trying to allocate ", "to allocate "},
    {"Failed to allocate request for ", "request for "},
    {"ran out of memory trying to allocate ", "to allocate "},
    {"OOM when allocating tensor with shape", ""},
    {"aximum pool size exceeded", "failed to allocate "},
    {"cudaMalloc failed: out of memory", ""},
    {"CUDA error: out of memory", ""},
    {"CUBLAS_STATUS_ALLOC_FAILED", ""},
    {"Failed to allocate memory for requested buffer of size ", "of size "},
    {"Memory allocation error on worker ", "- Requested memory: "},
    {"StandardGpuResources: alloc fail", " size "},
    {"ailed to cudaMalloc ", "cudaMalloc "},
    {"Out of memory error on GPU ", "Cannot allocate "},
    {"Requested amount of GPU memory (", "memory ("},
    {"Error Code 2: OutOfMemory (", "size was "},
    {"Insufficient VRAM", ""},
    {"System is out of GPU", ""},
    {"Ran out of memory in memory space ", "Used "},
});

struct Told {
  std::size_t at = 0;
  std::size_t headline = 0;
  std::string words;
  std::optional<Bytes> size;
};

// A line, its blanks made one: where a terminal breaks it differs from one time to the next.
std::string words_from(std::string_view text, std::size_t at) {
  const std::string_view near = text.substr(at, kWords);
  const std::string_view line = near.substr(0, near.find('\n'));
  std::string words;
  for (const char c : line) {
    const bool blank = c == ' ' || c == '\t' || c == '\r';
    if (!blank || (!words.empty() && words.back() != ' ')) {
      words.push_back(blank ? ' ' : c);
    }
  }
  return words;
}

std::optional<Bytes> size_in(std::string_view text, std::size_t at, const Headline& headline) {
  if (headline.text.starts_with("OOM")) {
    return tensor_size(text.substr(at));
  }
  if (headline.text.starts_with("cudaMalloc")) {
    const std::string_view line = text.substr(at > 80 ? at - 80 : 0, at > 80 ? 80 : at);
    const std::size_t phrase = last_of(line, "allocating ");
    return phrase == kNowhere ? std::nullopt : size_after(line.substr(phrase), "allocating ");
  }
  return headline.size.empty() ? std::nullopt
                               : size_after(text.substr(at, kMessage), headline.size);
}

// The same words of what is no failure, or is told in other words as well.
bool is_none(std::string_view text, std::size_t at, const Headline& headline, bool ran_out) {
  if (headline.text.starts_with("ran out")) {
    return holds(text.substr(at, 300), "not a failure");
  }
  if (headline.text.starts_with("OOM")) {
    return is_tensor_on_cpu(text.substr(at, 300)) || ran_out;
  }
  return headline.text.starts_with("aximum") && at > 9 && text.substr(at - 9, 9) == "FAILURE m";
}

bool alike(const std::optional<Bytes>& a, const std::optional<Bytes>& b) {
  if (!a || !b) {
    return false;
  }
  const std::uint64_t less = std::min(a->count(), b->count());
  const std::uint64_t more = std::max(a->count(), b->count());
  return more - less <= more / 100;
}

bool is_same(const Told& before, const Told& next) {
  if (before.headline == next.headline) {
    return alike(before.size, next.size) &&
           (before.words.starts_with(next.words) || next.words.starts_with(before.words));
  }
  // In other words it is told again close by: an equal size further on is another failure.
  return next.at - before.at < kNear &&
         (alike(before.size, next.size) || !before.size || !next.size);
}

// `*more`: not all of them were looked at.
std::vector<Told> failures_in_order(std::string_view text, bool* more) {
  std::vector<Told> all;
  const bool ran_out = holds(text, "ran out of memory trying to");
  for (std::size_t i = 0; i < kHeadlines.size(); ++i) {
    const Headline& headline = kHeadlines[i];
    std::size_t looked = 0;
    for (std::size_t at = text.find(headline.text); at != kNowhere;
         at = text.find(headline.text, at + 1)) {
      if (++looked > kMostTold) {
        *more = true;
        break;
      }
      if (!is_none(text, at, headline, ran_out)) {
        all.push_back({at, i, words_from(text, at), size_in(text, at, headline)});
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Told& a, const Told& b) { return a.at < b.at; });
  std::vector<Told> told;
  std::set<std::string> seen;
  for (Told& one : all) {
    if (!seen.insert(one.words + "/" + (one.size ? std::to_string(one.size->count()) : ""))
             .second) {
      continue;
    }
    if (!told.empty() && is_ollamas_summary(text, one.at)) {
      continue;
    }
    if (!told.empty() && is_same(told.back(), one)) {
      told.back().size = told.back().size ? told.back().size : one.size;
      continue;
    }
    told.push_back(std::move(one));
  }
  return told;
}

// Which of them was read: the last one of its size that had begun where it was read, if any had.
std::size_t number_of(const std::vector<Told>& told, std::size_t place, const Failure& failure) {
  std::size_t by_size = 0;
  for (std::size_t i = told.size(); i > 0; --i) {
    if (!alike(told[i - 1].size, failure.requested)) {
      continue;
    }
    if (place == kNowhere || told[i - 1].at < place + kWords) {
      return i;
    }
    by_size = by_size == 0 ? i : by_size;
  }
  return by_size == 0 ? told.size() : by_size;
}

// The line in which it stands, as far as it can be quoted.
std::string quoted(std::string_view text, std::size_t at) {
  const std::size_t line = at == 0 ? kNowhere : last_of(text.substr(0, at), "\n");
  std::size_t begin = line == kNowhere ? 0 : line + 1;
  begin = std::max(begin, at > kQuote / 2 ? at - kQuote / 2 : 0);
  std::size_t end = std::min(text.find('\n', at), text.size());
  const bool cut = end - begin > kQuote;
  end = std::min(end, begin + kQuote);
  // Not within a letter of several bytes.
  const auto within = [text](std::size_t place) {
    return place < text.size() && (static_cast<unsigned char>(text[place]) & 0xC0U) == 0x80U;
  };
  while (within(begin) && begin < end) {
    ++begin;
  }
  while (within(end) && end > begin) {
    --end;
  }
  std::string_view words = text.substr(begin, end - begin);
  const std::size_t first = words.find_first_not_of(" \t\r");
  words.remove_prefix(first == kNowhere ? words.size() : first);
  words = words.substr(0, words.find_last_not_of(" \t\r") + 1);
  return "\"" + std::string(words) + (cut ? " ..." : "") + "\"";
}

}  // namespace

bool is_ollamas_summary(std::string_view text, std::size_t at) {
  constexpr std::size_t kBefore = 120;
  const std::size_t begin = at > kBefore ? at - kBefore : 0;
  std::string_view line = text.substr(begin, at - begin);
  line = line.substr(line.rfind('\n') + 1);
  const std::size_t runner = last_of(line, "llama runner process");
  return runner != kNowhere && !holds(line.substr(runner), "allocating ");
}

std::size_t last_headline(std::string_view text) {
  std::size_t latest = kNowhere;
  for (const Headline& headline : kHeadlines) {
    const std::size_t at = last_of(text, headline.text);
    latest = latest == kNowhere || (at != kNowhere && at > latest) ? at : latest;
  }
  return latest;
}

std::string_view text_of_last_failure(std::string_view text) {
  bool more = false;
  const std::vector<Told> told = failures_in_order(text, &more);
  if (told.size() < 2 || more) {
    return {};
  }
  const Told& last = told.back();
  const Told& before = told[told.size() - 2];
  // What belongs to it stands close before it too.
  const bool other = last.headline != before.headline && last.at - before.at >= kNear;
  return other && last.size ? text.substr(last.at - kNear / 2) : std::string_view();
}

void note_several_failures(std::string_view text, Failure* failure) {
  bool more = false;
  const std::vector<Told> told = failures_in_order(text, &more);
  if (failure->host_memory) {
    if (!told.empty()) {
      failure->notes.push_back("the text also tells of GPU memory that ran out, before that: " +
                               quoted(text, told.front().at));
    }
    return;
  }
  if (told.size() < 2) {
    if (more) {
      failure->notes.emplace_back(
          "the text tells of more failures of GPU memory than were compared; this is one of the "
          "last");
    }
    return;
  }
  const std::size_t number = number_of(told, place_of(text, *failure), *failure);
  std::string note = "the text tells of " + std::string(more ? "at least " : "") +
                     std::to_string(told.size()) + " failures of GPU memory; this is " +
                     (more                    ? std::string("one of the last")
                      : number == told.size() ? std::string("the last")
                                              : "number " + std::to_string(number));
  if (number > 1) {
    note += "; the first, which mostly is the cause of those behind it, reads " +
            quoted(text, told.front().at);
  }
  failure->notes.push_back(note);
}

}  // namespace nofrag::detail
