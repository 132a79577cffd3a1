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
    if (known == model.end()) {
      ASSERT_TRUE(map.insert(VirtAddr(key), &values[pick]));
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

TEST(AddressMapDeathTest, EraseOfAnAbsentKeyAborts) {
  AddressMap<int> map;
  int value = 1;
  ASSERT_TRUE(map.insert(VirtAddr(std::uint64_t{1024}), &value));
  EXPECT_DEATH(map.erase(VirtAddr(std::uint64_t{2048})), "not in the map");
}

}  // namespace
}  // namespace nofrag
