#include "cli/explain/excerpt.h"

#include <algorithm>
#include <cstring>

namespace nofrag {
namespace {

constexpr std::size_t kMostHead = std::size_t{8} << 20;
constexpr std::size_t kMostPassages = std::size_t{8} << 20;
constexpr std::size_t kMostTail = std::size_t{8} << 20;
// A traceback before the words, the numbers behind them.
constexpr std::size_t kBefore = std::size_t{64} << 10;
constexpr std::size_t kBehind = std::size_t{16} << 10;
// Longer than any sign: one may lie across what is let go and what is kept.
constexpr std::size_t kLongestSign = 32;

// In every message that explain knows stands one of these. They are looked for without their first letters, which may
// be large or small.
constexpr std::string_view kSigns[] = {"ut of memory",
                                       "OutOfMemory",
                                       "OUT_OF_MEMORY",
                                       "RESOURCE_EXHAUSTED",
                                       "OOM",
                                       "oom-kill",
                                       "oom_kill",
                                       "MemoryAllocation",
                                       "ALLOC_FAILED",
                                       "alloc_failed",
                                       "bad_alloc",
                                       "llocate",
                                       "MemoryError",
                                       "xit code 137",
                                       "xit status 137",
                                       "Killed",
                                       "killed",
                                       "SIGKILL",
                                       "signal 9",
                                       "annot malloc",
                                       "SIGBUS",
                                       "us error",
                                       "vailable memory",
                                       "Free memory on device",
                                       "runtime error (2)",
                                       "CUDA error 2",
                                       "pool size exceeded",
                                       "Exceeded memory limit",
                                       "NVML_SUCCESS",
                                       "stored in KV cache",
                                       "KV cache is needed",
                                       "o space left",
                                       "ot enough memory",
                                       "nsufficient memory",
                                       "nsufficient VRAM",
                                       "emory allocation",
                                       "emory alloc request",
                                       "emory limit",
                                       "emory exhausted",
                                       "memory size of",
                                       "system memory (",
                                       "of pinned memory",
                                       "ut of GPU",
                                       "ut of Memory",
                                       "paging file"};

// std::string_view::find looks closer at every place with the first letter, and these begin with common ones.
std::size_t find_sign(std::string_view text, std::string_view sign, std::size_t from) {
  const void* const at = ::memmem(text.data() + from, text.size() - from, sign.data(), sign.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

}  // namespace

void Excerpt::append(std::string_view chunk, bool keep_all) {
  total_ += chunk.size();
  const std::size_t room = keep_all ? chunk.size() : kMostHead - std::min(kMostHead, head_.size());
  head_.append(chunk.substr(0, room));
  tail_.append(chunk.substr(std::min(room, chunk.size())));
  if (tail_.size() > 2 * kMostTail) {
    shorten_tail();
  }
}

void Excerpt::shorten_tail() {
  const std::size_t gone = tail_.size() - kMostTail;
  const std::size_t begin = tail_begin();
  const std::string_view searched = std::string_view(tail_).substr(0, gone + kLongestSign);
  std::size_t from = 0;
  while (from < gone) {
    // The next place at which any of them stands, in steps so that a rare sign is not looked for to the end each time.
    constexpr std::size_t kStep = std::size_t{16} << 10;
    const std::string_view step = searched.substr(from, kStep + kLongestSign);
    std::size_t first = std::string_view::npos;
    std::size_t last = 0;
    for (const std::string_view sign : kSigns) {
      for (std::size_t at = find_sign(step, sign, 0); at != std::string_view::npos;
           at = find_sign(step, sign, at + 1)) {
        first = std::min(first, at);
        last = std::max(last, at);
      }
    }
    if (first != std::string_view::npos) {
      keep(begin + from + first - std::min(from + first, kBefore),
           begin + std::min(gone, from + last + kBehind));
    }
    from += kStep;
  }
  tail_.erase(0, gone);
}

void Excerpt::keep(std::size_t begin, std::size_t end) {
  const std::size_t first = std::max(begin, passages_end_);
  if (end <= first) {
    return;
  }
  if (first > std::max(passages_end_, head_.size())) {
    passages_ += '\n';
  }
  passages_.append(tail_, first - tail_begin(), end - first);
  passages_end_ = end;
  if (passages_.size() > 2 * kMostPassages) {
    passages_.replace(0, passages_.size() - kMostPassages, "\n");
  }
}

std::string Excerpt::text() const {
  const bool gap = tail_begin() > std::max(passages_end_, head_.size());
  return head_ + passages_ + (gap ? "\n" : "") + tail_;
}

}  // namespace nofrag
