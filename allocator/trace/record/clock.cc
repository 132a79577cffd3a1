#include "trace/record/clock.h"

#include <fcntl.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>

namespace nofrag {
namespace {

#if defined(__x86_64__)

// rdtscp, and a counter that neither frequency nor sleep changes.
bool counter_is_steady() {
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  constexpr unsigned int kRdtscp = 1U << 27;
  constexpr unsigned int kInvariant = 1U << 8;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (d & kRdtscp) != 0 &&
         __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
}

// The kernel watches whether the cores' counters agree, and gives the counter up where they do not.
bool kernel_trusts_counter() {
  const int file = ::open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                          O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  std::array<char, 16> text{};
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  return size >= 3 && std::string_view(text.data(), 3) == "tsc";
}

#endif

}  // namespace

TraceClock::TraceClock([[maybe_unused]] bool monotonic) {
#if defined(__x86_64__)
  counter_ = !monotonic && counter_is_steady() && kernel_trusts_counter();
#endif
}

}  // namespace nofrag
