// AddressMap against std::unordered_map, with addresses that crowd one home slot.
#include "index/address_map.h"

#include <random>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

TEST(AddressMap, EmptyMapFindsNothing) {
  const AddressMap<int> map;
  EXPECT_EQ(map.find(VirtAddr(std::uint64_t{512})), nullptr);
  EXPECT_EQ(map.size(), 0U);
}

TEST(AddressMap, NeverTakesAnInteriorAddressForAKey) {
  AddressMap<int> map;
  int value = 1;
  ASSERT_TRUE(map.insert(VirtAddr(std::uint64_t{1024}), &value));
  EXPECT_EQ(map.find(VirtAddr(std::uint64_t{1024})), &value);
  EXPECT_EQ(map.find(VirtAddr(std::uint64_t{1025})), nullptr);
  EXPECT_EQ(map.find(VirtAddr(std::uint64_t{1536})), nullptr);
}

constexpr std::uint64_t kTags = alignof(std::uint64_t);

// The tag that came in with the key, or kTags: not there.
std::uint64_t tag_of(const AddressMap<std::uint64_t>& map, std::uint64_t key) {
  std::uint64_t* found = nullptr;
  std::uint64_t tag = kTags;
  EXPECT_TRUE(map.find_shared(
      VirtAddr(key), &found, [&tag](const std::uint64_t&, std::uint32_t its) { tag = its; }));
  EXPECT_EQ(found, map.find(VirtAddr(key)));
  return tag;
}

void compare_with_model(std::uint64_t distinct, std::uint64_t stride, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  AddressMap<std::uint64_t> map;
  std::unordered_map<std::uint64_t, std::uint64_t*> model;
  std::vector<std::uint64_t> values(distinct);
  for (int step = 0; step < 200000; ++step) {
    const std::uint64_t pick = random() % distinct;
    const std::uint64_t key = 0x700000000000 + (pick + 1) * stride;
    const auto known = model.find(key);
    ASSERT_EQ(map.find(VirtAddr(key)), known == model.end() ? nullptr : known->second);
    ASSERT_EQ(tag_of(map, key), known == model.end() ? kTags : pick % kTags);
    if (known == model.end()) {
      ASSERT_TRUE(
          map.insert(VirtAddr(key), &values[pick], static_cast<std::uint32_t>(pick % kTags)));
      model.emplace(key, &values[pick]);
    } else {
      map.erase(VirtAddr(key));
      model.erase(known);
    }
    ASSERT_EQ(map.size(), model.size());
  }
  for (const auto& [key, value] : model) {
    ASSERT_EQ(map.find(VirtAddr(key)), value);
  }
  std::size_t visited = 0;
  map.for_each([&visited](const std::uint64_t*) { ++visited; });
  EXPECT_EQ(visited, model.size());
}

TEST(AddressMap, RandomProgramOfDenseAddresses) {
  compare_with_model(20000, 512, 1);
}

TEST(AddressMap, RandomProgramOfGranuleAddresses) {
  compare_with_model(6000, std::uint64_t{2} << 20, 2);
}

// Steps whose hashes differ only above the table's mask: all keys share a few home slots, so that
// chains are long and wrap around, and every erase shifts.
TEST(AddressMap, RandomProgramOfCollidingAddresses) {
  compare_with_model(300, std::uint64_t{512} << 32, 3);
}

// A table of 4096 slots grows with the 2049th key and is empty some hundreds of insertions later:
// all the while every key is in one of the two tables, and can leave it.
void grow_and_look(std::uint64_t stride) {
  const std::uint64_t base = 0x700000000000;
  std::vector<std::uint64_t> values(5000);
  AddressMap<std::uint64_t> map;
  std::vector<bool> in(values.size());
  std::size_t live = 0;
  std::size_t found_once = 0;
  std::size_t missed = 0;  // those that have not moved over yet
  const auto check_all = [&] {
    std::vector<bool> seen(values.size());
    map.for_each([&](const std::uint64_t* value) {
      const auto i = static_cast<std::size_t>(value - values.data());
      EXPECT_FALSE(seen[i]);
      seen[i] = true;
    });
    ASSERT_EQ(seen, in);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(map.find(VirtAddr(base + i * stride)), in[i] ? &values[i] : nullptr);
      ASSERT_EQ(tag_of(map, base + i * stride), in[i] ? i % kTags : kTags);
      const std::uint64_t* once = map.look_once(
          VirtAddr(base + i * stride),
          [&](const std::uint64_t&, std::uint32_t tag) { ASSERT_EQ(tag, i % kTags); });
      ASSERT_TRUE(once == nullptr || (in[i] && once == &values[i]));
      found_once += once != nullptr ? 1U : 0U;
      missed += in[i] && once == nullptr ? 1U : 0U;
    }
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(
        map.insert(VirtAddr(base + i * stride), &values[i], static_cast<std::uint32_t>(i % kTags)));
    in[i] = true;
    ++live;
    const bool moving = (i > 2040 && i < 2600) || (i > 4090 && i < 4300);
    if (moving && i % 16 == 0) {
      map.erase(VirtAddr(base + (i / 2) * stride));
      in[i / 2] = false;
      --live;
    }
    if (moving && i % 37 == 0) {
      check_all();
    }
    ASSERT_EQ(map.size(), live);
  }
  EXPECT_GT(missed, 0U);
  found_once = missed = 0;
  check_all();
  EXPECT_EQ(found_once + missed, live);
  EXPECT_GT(found_once, live / 2);
}

TEST(AddressMap, EveryKeyIsFoundWhileTheTableGrows) {
  grow_and_look(512);
}

TEST(AddressMap, EveryKeyIsFoundWhileATableOfOneChainGrows) {
  grow_and_look(std::uint64_t{512} << 32);
}

TEST(AddressMapDeathTest, EraseOfAnAbsentKeyAborts) {
  AddressMap<int> map;
  int value = 1;
  ASSERT_TRUE(map.insert(VirtAddr(std::uint64_t{1024}), &value));
  EXPECT_DEATH(map.erase(VirtAddr(std::uint64_t{2048})), "not in the map");
}

}  // namespace
}  // namespace nofrag
