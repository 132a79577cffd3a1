// fetch_ahead looks at the first blocks of a chain, however short it is, and changes nothing.
#include "heap/fetch_ahead.h"

#include <algorithm>
#include <vector>

#include "heap_fixture.h"

namespace nofrag {
namespace {

class FetchAheadTest : public HeapFixture {};

TEST_F(FetchAheadTest, TheFirstBlocksOfAChain) {
  attach(Bytes(0), 2 * kMiB);
  attach(2 * kMiB, 4 * kMiB);
  for (std::size_t count = 0; count <= 2 * kFetchedAhead; ++count) {
    std::vector<VirtAddr> addresses;
    Block* chain = nullptr;
    for (std::size_t i = 0; i < count; ++i) {
      // Some lie over two handles, some fill what is left of one.
      Block* block = allocate(i % 3 == 0 ? 640 * kKiB : 4 * kKiB);
      ASSERT_NE(block, nullptr);
      block->next_kept = chain;
      chain = block;
      addresses.insert(addresses.begin(), block->address);
    }
    for (std::size_t freed = 0; freed < count; ++freed) {
      std::vector<VirtAddr> looked_up;
      fetch_ahead(chain, [&](VirtAddr address) { looked_up.push_back(address); });
      const std::size_t left = std::min(count - freed, kFetchedAhead);
      const auto first = addresses.begin() + static_cast<std::ptrdiff_t>(freed);
      ASSERT_EQ(looked_up, std::vector<VirtAddr>(first, first + static_cast<std::ptrdiff_t>(left)));
      Block* block = chain;
      chain = block->next_kept;
      free(block);
    }
  }
}

}  // namespace
}  // namespace nofrag
