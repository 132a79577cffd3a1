#include "stats/status_page.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nofrag {
namespace {

constexpr int kTries = 64;

bool ends(const char* text, std::size_t capacity) {
  return std::memchr(text, 0, capacity) != nullptr;
}

// What is printed must not drive the terminal.
void make_plain(char* text) {
  for (; *text != '\0'; ++text) {
    if (*text < ' ' || *text > '~') {
      *text = '?';
    }
  }
}

bool sound(ProcessStatus* s) {
  if (s->magic != kStatusMagic || s->version != kStatusVersion ||
      s->bytes != sizeof(ProcessStatus) || s->device_count > kStatusDevices ||
      !ends(s->command.data(), s->command.size())) {
    return false;
  }
  make_plain(s->command.data());
  for (std::size_t i = 0; i < s->device_count; ++i) {
    DeviceStatus& d = s->devices[i];
    if (!ends(d.last_cause.data(), d.last_cause.size()) || !std::isfinite(d.headroom_seconds) ||
        d.headroom_seconds < 0) {
      return false;
    }
    make_plain(d.last_cause.data());
  }
  return true;
}

}  // namespace

void write_status(const ProcessStatus& status, StatusPage* page) {
  std::array<std::uint64_t, StatusPage::kWords> words{};
  std::memcpy(words.data(), &status, sizeof status);
  const std::uint64_t before = page->sequence.load(std::memory_order_relaxed) | 1;
  page->sequence.store(before, std::memory_order_relaxed);
  // A reader that sees one of these words sees that the page is being written too.
  for (std::size_t i = 0; i < words.size(); ++i) {
    page->words[i].store(words[i], std::memory_order_release);
  }
  page->sequence.store(before + 1, std::memory_order_release);
}

bool read_status(const StatusPage* page, std::size_t mapped, ProcessStatus* status) {
  if (mapped < sizeof(StatusPage)) {
    return false;
  }
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = page->sequence.load(std::memory_order_acquire);
    if (before % 2 != 0) {
      continue;
    }
    std::array<std::uint64_t, StatusPage::kWords> words{};
    for (std::size_t w = 0; w < words.size(); ++w) {
      words[w] = page->words[w].load(std::memory_order_acquire);
    }
    if (page->sequence.load(std::memory_order_relaxed) == before) {
      std::memcpy(static_cast<void*>(status), words.data(), sizeof *status);
      return sound(status);
    }
  }
  return false;
}

std::string status_folder() {
  return "/dev/shm/nofrag-" + std::to_string(::geteuid());
}

std::uint64_t process_start_of(std::uint64_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(pid));
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) {
    return 0;
  }
  char text[1024];
  const std::size_t got = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[got] = '\0';
  // The name in parentheses may hold anything; field 3 follows the last one.
  const char* at = std::strrchr(text, ')');
  const bool zombie =
      at != nullptr && (std::strncmp(at, ") Z", 3) == 0 || std::strncmp(at, ") X", 3) == 0);
  constexpr int kThreads = 18;  // fields behind the name
  constexpr int kStart = 20;
  std::uint64_t threads = 0;
  for (int i = 1; at != nullptr && i <= kStart; ++i) {
    at = std::strchr(at + 1, ' ');
    threads = at != nullptr && i == kThreads ? std::strtoull(at + 1, nullptr, 10) : threads;
  }
  // A zombie has ended, and its parent has not asked after it yet; but where only the first thread has, others go on.
  return at == nullptr || (zombie && threads <= 1) ? 0 : std::strtoull(at + 1, nullptr, 10);
}

void copy_name(std::string_view from, char* to, std::size_t capacity) {
  const std::size_t length = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), length);
  std::memset(to + length, 0, capacity - length);
}

}  // namespace nofrag
