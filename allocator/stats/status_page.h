// StatusPage: what a process tells `nofrag top` about itself: one page of shared memory.
//
// Owns: the layout, and how it is written and read. The file is /dev/shm/nofrag-UID/PID, 0600 in a folder of
// mode 0700. Layer: stats. Units: bytes; milliseconds since 1970. Invariants: `sequence` is odd while the
// page is being written; a reader that sees it change takes the page again. Everything in a page may be
// hostile or torn: read_status copies once and checks every field, and text ends in a zero byte.
// Threads: one writer; any readers, in any process. Failure: read_status returns false for what is not a
// whole page of this version. Cost: a page copied.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nofrag {

inline constexpr std::uint64_t kStatusMagic = 0x6e6f667261673031;  // "nofrag01"
inline constexpr std::uint32_t kStatusVersion = 1;
inline constexpr std::size_t kStatusDevices = 16;

struct DeviceStatus {
  std::int32_t device = 0;
  std::uint32_t has_forecast = 0;
  std::uint64_t live = 0;
  std::uint64_t reserved = 0;
  std::uint64_t pending = 0;
  std::uint64_t limit = 0;
  std::uint64_t fragmented = 0;  // free bytes in handles that are in use
  std::uint64_t headroom = 0;
  double headroom_seconds = 0;
  std::uint64_t allocations = 0;
  std::uint64_t failed = 0;
  std::array<std::uint64_t, 11> rungs{};
  std::array<char, 24> last_cause{};
};

struct ProcessStatus {
  std::uint64_t magic = kStatusMagic;
  std::uint32_t version = kStatusVersion;
  std::uint32_t bytes = 0;  // sizeof(ProcessStatus)
  std::uint64_t pid = 0;
  std::uint64_t process_start =
      0;  // /proc/PID/stat, field 22: tells a process from the next of its number
  std::uint64_t written_ms = 0;
  std::uint32_t device_count = 0;
  std::uint32_t reserved32 = 0;
  std::array<char, 64> command{};
  std::array<DeviceStatus, kStatusDevices> devices{};
};

// As it lies in shared memory. Words, so that a torn read is no undefined behaviour.
struct StatusPage {
  static constexpr std::size_t kWords = (sizeof(ProcessStatus) + 7) / 8;
  std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, kWords> words;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(StatusPage) <= 8192);

void write_status(const ProcessStatus& status, StatusPage* page);
// `mapped` bytes are readable at `page`.
[[nodiscard]] bool read_status(const StatusPage* page, std::size_t mapped, ProcessStatus* status);

// "/dev/shm/nofrag-1000"
[[nodiscard]] std::string status_folder();
// The start time of a process by the kernel's clock; 0 if there is none.
[[nodiscard]] std::uint64_t process_start_of(std::uint64_t pid);
void copy_name(std::string_view from, char* to, std::size_t capacity);

}  // namespace nofrag
