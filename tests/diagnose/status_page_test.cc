#include "stats/status_page.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace nofrag {
namespace {

ProcessStatus some_status(std::uint64_t n) {
  ProcessStatus s;
  s.bytes = sizeof s;
  s.pid = n;
  s.written_ms = n;
  s.device_count = 2;
  copy_name("python train.py", s.command.data(), s.command.size());
  for (DeviceStatus& d : s.devices) {
    d.live = n;
    d.reserved = n;
    d.allocations = n;
    copy_name("leak", d.last_cause.data(), d.last_cause.size());
  }
  return s;
}

TEST(StatusPage, ComesBackAsItWasWritten) {
  const auto page = std::make_unique<StatusPage>();
  write_status(some_status(7), page.get());
  ProcessStatus read;
  ASSERT_TRUE(read_status(page.get(), sizeof(StatusPage), &read));
  EXPECT_EQ(read.pid, 7U);
  EXPECT_EQ(read.devices[1].live, 7U);
  EXPECT_STREQ(read.devices[0].last_cause.data(), "leak");
  EXPECT_FALSE(read_status(page.get(), sizeof(StatusPage) - 1, &read));
}

TEST(StatusPage, ReadersNeverSeeHalfAPage) {
  const auto page = std::make_unique<StatusPage>();
  write_status(some_status(1), page.get());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t n = 2; !stop.load(); ++n) {
      write_status(some_status(n), page.get());
    }
  });
  // The writer never rests, so on a busy machine most looks find it at work.
  std::uint64_t whole = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int i = 0; (i < 20'000 || whole < 100) && std::chrono::steady_clock::now() < deadline; ++i) {
    ProcessStatus read;
    if (read_status(page.get(), sizeof(StatusPage), &read)) {
      ++whole;
      ASSERT_EQ(read.devices[0].live, read.pid);
      ASSERT_EQ(read.devices[1].allocations, read.pid);
      ASSERT_EQ(read.written_ms, read.pid);
    }
  }
  stop = true;
  writer.join();
  EXPECT_GE(whole, 100U);
}

TEST(StatusPage, HostileContentsAreRefusedOrHarmless) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    ProcessStatus status = some_status(seed);
    auto* bytes = reinterpret_cast<unsigned char*>(&status);
    const std::size_t changes = seed % 3 == 0 ? sizeof status : 1 + random() % 40;
    for (std::size_t i = 0; i < changes; ++i) {
      bytes[random() % sizeof status] = static_cast<unsigned char>(random());
    }
    const auto page = std::make_unique<StatusPage>();
    write_status(status, page.get());
    ProcessStatus read;
    if (!read_status(page.get(), sizeof(StatusPage), &read)) {
      continue;
    }
    ASSERT_LE(read.device_count, kStatusDevices);
    ASSERT_LT(std::strlen(read.command.data()), read.command.size());
    for (const char c : std::string(read.command.data())) {
      ASSERT_TRUE(c >= ' ' && c <= '~');
    }
    for (std::uint32_t i = 0; i < read.device_count; ++i) {
      ASSERT_TRUE(std::isfinite(read.devices[i].headroom_seconds)) << seed;
      ASSERT_LT(std::strlen(read.devices[i].last_cause.data()), read.devices[i].last_cause.size());
    }
  }
}

TEST(StatusPage, AWriterThatDiedHalfWayIsNotWaitedFor) {
  const auto page = std::make_unique<StatusPage>();
  write_status(some_status(1), page.get());
  page->sequence.store(5);
  ProcessStatus read;
  EXPECT_FALSE(read_status(page.get(), sizeof(StatusPage), &read));
}

TEST(Process, StartTimesTellProcessesApart) {
  EXPECT_GT(process_start_of(static_cast<std::uint64_t>(::getpid())), 0U);
  EXPECT_EQ(process_start_of(0), 0U);
  EXPECT_EQ(process_start_of(UINT64_MAX), 0U);
}

TEST(Process, AZombieHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::_exit(0);
  }
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_start_of(static_cast<std::uint64_t>(child)), 0U);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Process, OneWhoseFirstThreadEndedGoesOn) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pthread_t other{};
    const auto wait = [](void*) -> void* {
      ::pause();
      return nullptr;
    };
    if (::pthread_create(&other, nullptr, wait, nullptr) != 0) {
      ::_exit(1);
    }
    ::syscall(SYS_exit, 0);  // this thread alone
  }
  const auto state = [child] {
    std::ifstream file("/proc/" + std::to_string(child) + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t name = line.rfind(')');
    return name == std::string::npos || name + 2 >= line.size() ? '?' : line[name + 2];
  };
  for (int i = 0; i < 500 && state() != 'Z'; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(state(), 'Z');
  EXPECT_GT(process_start_of(static_cast<std::uint64_t>(child)), 0U);
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Names, AreCutAndEnded) {
  char name[4] = {'x', 'x', 'x', 'x'};
  copy_name("abcdef", name, sizeof name);
  EXPECT_STREQ(name, "abc");
  copy_name("", name, sizeof name);
  EXPECT_STREQ(name, "");
}

}  // namespace
}  // namespace nofrag
