// fetch_ahead: some kept blocks are about to be freed; what that will read comes into the processor's caches for
// all of them together.
//
// A block that was kept for a while lies among blocks, mappings and handles that nobody has looked at lately: to
// free it is half a dozen journeys to memory, each of which begins where the one before it ended. Here the blocks
// make each of these journeys together.
// Owns: nothing. Layer: heap.
// Threads: none (the device lock). Failure: none. Cost: some thirty instructions a block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/prefetch.h"
#include "heap/region.h"

namespace nofrag {

// How many blocks at once: about as many lines as a processor waits for at a time.
inline constexpr std::size_t kFetchedAhead = 8;

// The first kFetchedAhead blocks of the chain (by next_kept), which are live. look_up(address): asks for the
// block's place in a map.
template <typename LookUp>
void fetch_ahead(const Block* chain, LookUp&& look_up) {
  const auto fetch = [](const void* object, std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    for (std::size_t line = 0; line < bytes; line += kLine) {
      // Whether or not there is anything at the address; where no pointer may go, an integer may.
      const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(object) + line;
      prefetch_to_write(reinterpret_cast<const void*>(at));  // NOLINT(performance-no-int-to-ptr)
    }
  };
  std::array<const Block*, kFetchedAhead> blocks{};
  std::array<Mapping* const*, kFetchedAhead> entries{};
  std::size_t count = 0;
  for (const Block* block = chain; block != nullptr && count < kFetchedAhead;
       block = block->next_kept) {
    fetch(block, sizeof(Block));
    look_up(block->address);
    blocks[count++] = block;
  }
  for (std::size_t i = 0; i < count; ++i) {
    fetch(blocks[i]->previous, sizeof(Block));
    fetch(blocks[i]->next, sizeof(Block));
    const Region& region = *blocks[i]->region;
    entries[i] = &region.mappings()[region.granule_index(blocks[i]->address)];
    __builtin_prefetch(static_cast<const void*>(entries[i]));
  }
  for (std::size_t i = 0; i < count; ++i) {
    fetch(*entries[i], sizeof(Mapping));
  }
  for (std::size_t i = 0; i < count; ++i) {
    fetch((*entries[i])->handle, sizeof(Handle));
  }
}

}  // namespace nofrag
