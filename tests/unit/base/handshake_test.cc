// The handshake between a thread that passes its door all the time and one that closes it now and then. What
// both change inside is plain memory: ThreadSanitizer sees whether the door orders it.
#include "base/handshake.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace nofrag {
namespace {

TEST(Handshake, AClosedDoorIsNotPassed) {
  Handshake door;
  ASSERT_TRUE(door.enter());
  door.leave();
  door.close();
  EXPECT_FALSE(door.enter());
  fence_everywhere();
  door.await();  // nobody is inside, also after a refused attempt
  EXPECT_FALSE(door.enter());
  door.open();
  EXPECT_TRUE(door.enter());
  door.leave();
}

TEST(Handshake, TheCloserWaitsForTheOwner) {
  Handshake door;
  std::atomic<bool> inside{false};
  std::atomic<bool> may_leave{false};
  std::atomic<bool> left{false};
  std::thread owner([&] {
    ASSERT_TRUE(door.enter());
    inside = true;
    while (!may_leave) {
      std::this_thread::yield();
    }
    left = true;
    door.leave();
  });
  while (!inside) {
    std::this_thread::yield();
  }
  std::thread hurry([&] { may_leave = true; });
  door.close();
  fence_everywhere();
  door.await();
  EXPECT_TRUE(left);
  door.open();
  owner.join();
  hurry.join();
}

TEST(Handshake, NoIncrementIsLost) {
  constexpr std::uint64_t kCloses = 2000;
  Handshake door;
  std::uint64_t counter = 0;
  std::uint64_t passed = 0;
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (door.enter()) {
        ++counter;
        ++passed;
        door.leave();
      }
    }
  });
  for (std::uint64_t i = 0; i < kCloses; ++i) {
    door.close();
    fence_everywhere();
    door.await();
    const std::uint64_t before = counter;
    counter = before + 1;
    door.open();
    if (i % 64 == 0) {
      std::this_thread::yield();
    }
  }
  stop = true;
  owner.join();
  EXPECT_EQ(counter, passed + kCloses);
  EXPECT_GT(passed, 0U);
}

// As the device does it: all doors closed, one fence, all awaited; closers take turns by a lock.
TEST(Handshake, ManyDoorsBehindOneFence) {
  constexpr std::size_t kOwners = 3;
  constexpr int kCloses = 600;
  struct Room {
    Handshake door;
    std::uint64_t content = 0;
    std::uint64_t passed = 0;
  };
  std::array<Room, kOwners> rooms;
  std::atomic<bool> stop{false};
  std::atomic_flag turn;
  std::uint64_t moved = 0;  // under turn
  const auto close_all = [&] {
    for (int i = 0; i < kCloses; ++i) {
      while (turn.test_and_set(std::memory_order_acquire)) {
        std::this_thread::yield();
      }
      for (Room& room : rooms) {
        room.door.close();
      }
      fence_everywhere();
      for (Room& room : rooms) {
        room.door.await();
        moved += room.content;
        room.content = 0;
      }
      for (Room& room : rooms) {
        room.door.open();
      }
      turn.clear(std::memory_order_release);
      std::this_thread::yield();
    }
  };
  std::vector<std::thread> owners;
  for (Room& room : rooms) {
    owners.emplace_back([&room, &stop] {
      while (!stop.load(std::memory_order_relaxed)) {
        if (room.door.enter()) {
          ++room.content;
          ++room.passed;
          room.door.leave();
        }
      }
    });
  }
  std::thread second(close_all);
  close_all();
  second.join();
  stop = true;
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < kOwners; ++i) {
    owners[i].join();
    expected += rooms[i].passed;
    moved += rooms[i].content;
  }
  EXPECT_EQ(moved, expected);
}

// Forbids the process, for good, to call membarrier, as a sandbox does that closes after the start. False if it
// may not.
bool forbid_membarrier() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         ::syscall(SYS_membarrier, 0, 0, 0) == -1;
}

TEST(Handshake, ASandboxThatForbidsTheFenceLaterSlowsItDown) {
  constexpr int kSkipped = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Handshake door;
    fence_everywhere();
    if (!forbid_membarrier()) {
      ::_exit(kSkipped);
    }
    std::atomic<bool> stop{false};
    std::uint64_t counter = 0;
    std::uint64_t passed = 0;
    std::thread owner([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        if (door.enter()) {
          ++counter;
          ++passed;
          door.leave();
        }
      }
    });
    constexpr std::uint64_t kCloses = 50;
    for (std::uint64_t i = 0; i < kCloses; ++i) {
      door.close();
      fence_everywhere();
      door.await();
      ++counter;
      door.open();
    }
    stop = true;
    owner.join();
    ::_exit(counter == passed + kCloses ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kSkipped) {
    GTEST_SKIP() << "no filters of system calls here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << "an increment was lost";
}

}  // namespace
}  // namespace nofrag
