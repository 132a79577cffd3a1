// AddressMap::find_shared while one writer inserts, erases and lets the table grow several times.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "index/address_map.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kBase = 0x700000000000;

struct Seen {
  std::uint64_t found = 0;
  std::uint64_t unsure = 0;
  std::uint64_t wrong = 0;
};

// Keys are one of three kinds: always in the map, never, or now and then.
void readers_against_a_writer(std::uint64_t stride, std::size_t keys) {
  std::vector<std::uint64_t> values(keys);
  const auto key = [&](std::size_t i) { return VirtAddr(kBase + (i + 1) * stride); };
  AddressMap<std::uint64_t> map;
  for (std::size_t i = 0; i < keys; i += 64) {
    ASSERT_TRUE(map.insert(key(i), &values[i]));
  }
  std::atomic<bool> stop{false};
  std::atomic<int> reading{0};
  const auto read = [&](std::uint64_t seed, Seen* seen) {
    std::mt19937_64 random(seed);
    ++reading;
    while (!stop.load(std::memory_order_relaxed)) {
      const std::size_t i = random() % keys;
      const std::size_t steady = i - i % 64;
      std::uint64_t* value = nullptr;
      if (map.find_shared(key(steady), &value)) {
        ++seen->found;
        seen->wrong += value != &values[steady] ? 1U : 0U;
      } else {
        ++seen->unsure;
      }
      if (map.find_shared(key(i), &value)) {  // its own value, or nothing
        seen->wrong += value != nullptr && value != &values[i] ? 1U : 0U;
      }
      if (map.find_shared(key(keys + i), &value)) {  // never in the map
        seen->wrong += value != nullptr ? 1U : 0U;
      }
    }
  };
  Seen seen[2];
  std::thread first(read, 1, &seen[0]);
  std::thread second(read, 2, &seen[1]);
  while (reading < 2) {
    std::this_thread::yield();
  }
  // Grows to half of the keys and beyond; every growth moves entries among insertions and erasures.
  std::mt19937_64 random(3);
  std::vector<bool> in(keys);
  for (std::size_t step = 0; step < 4 * keys; ++step) {
    // What may be in reaches further with every step.
    const std::size_t i = random() % (1 + step / 4);
    if (i % 64 == 0) {
      continue;
    }
    if (in[i]) {
      map.erase(key(i));
    } else {
      ASSERT_TRUE(map.insert(key(i), &values[i]));
    }
    in[i] = !in[i];
  }
  stop = true;
  first.join();
  second.join();
  for (const Seen& s : seen) {
    EXPECT_EQ(s.wrong, 0U);
    EXPECT_GT(s.found, 0U);
  }
}

TEST(AddressMapThreads, ASteadyKeyIsFoundThroughGrowths) {
  readers_against_a_writer(512, 100000);  // from 4096 slots to 131072 or more
}

TEST(AddressMapThreads, ASteadyKeyIsFoundInLongChains) {
  readers_against_a_writer(std::uint64_t{512} << 32, 5000);
}

}  // namespace
}  // namespace nofrag
