#include "index/free_index.h"

#include <bit>

namespace nofrag {
namespace {

constexpr std::uint32_t kSubBits = 3;  // 8 bins a doubling
constexpr std::uint32_t kSubBins = 1U << kSubBits;

}  // namespace

std::uint32_t FreeIndex::bin_of(Bytes size) {
  const std::uint64_t units = size.count() / kUnit.count();
  if (units < kSubBins) {
    return static_cast<std::uint32_t>(units);
  }
  const auto exponent = static_cast<std::uint32_t>(std::bit_width(units)) - 1;
  const auto sub = static_cast<std::uint32_t>(units >> (exponent - kSubBits)) & (kSubBins - 1);
  return (exponent - kSubBits + 1) * kSubBins + sub;
}

void FreeIndex::insert(FreeNode* node) {
  const std::uint32_t bin = bin_of(node->size);
  NOFRAG_CHECK(bin < kBins, "free run larger than the index can hold");
  FreeNode* head = heads_[bin];
  node->previous_in_bin = nullptr;
  node->next_in_bin = head;
  if (head != nullptr) {
    head->previous_in_bin = node;
  }
  heads_[bin] = node;
  occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  bytes_ += node->size;
  ++count_;
}

void FreeIndex::remove(FreeNode* node) {
  const std::uint32_t bin = bin_of(node->size);
  if (node->previous_in_bin != nullptr) {
    node->previous_in_bin->next_in_bin = node->next_in_bin;
  } else {
    NOFRAG_CHECK(heads_[bin] == node, "free run is not in the bin of its size");
    heads_[bin] = node->next_in_bin;
    if (node->next_in_bin == nullptr) {
      occupied_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
    }
  }
  if (node->next_in_bin != nullptr) {
    node->next_in_bin->previous_in_bin = node->previous_in_bin;
  }
  node->previous_in_bin = nullptr;
  node->next_in_bin = nullptr;
  bytes_ -= node->size;
  --count_;
}

std::uint32_t FreeIndex::next_bin(std::uint32_t from) const {
  if (from >= kBins) {
    return kBins;
  }
  std::uint32_t word = from / 64;
  std::uint64_t bits = occupied_[word] & (~std::uint64_t{0} << (from % 64));
  while (bits == 0) {
    if (++word == kWords) {
      return kBins;
    }
    bits = occupied_[word];
  }
  return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
}

FreeNode* FreeIndex::best_in_bin(std::uint32_t bin, Bytes size) const {
  FreeNode* best = nullptr;
  int looked_at = 0;
  for (FreeNode* node = heads_[bin]; node != nullptr && looked_at < kScan;
       node = node->next_in_bin, ++looked_at) {
    if (node->size < size) {
      continue;
    }
    if (best == nullptr || node->size < best->size ||
        (node->size == best->size && node->address < best->address)) {
      best = node;
    }
  }
  return best;
}

FreeNode* FreeIndex::lowest_from_bin(std::uint32_t bin, Bytes size) const {
  FreeNode* lowest = nullptr;
  int looked_at = 0;
  for (std::uint32_t b = next_bin(bin); b < kBins && looked_at < kAddressScan;
       b = next_bin(b + 1)) {
    for (FreeNode* node = heads_[b]; node != nullptr && looked_at < kAddressScan;
         node = node->next_in_bin, ++looked_at) {
      if (node->size >= size && (lowest == nullptr || node->address < lowest->address)) {
        lowest = node;
      }
    }
  }
  return lowest;
}

FreeNode* FreeIndex::find(Bytes size) const {
  const std::uint32_t bin = bin_of(size);
  if (size > kBestFitMax) {
    return lowest_from_bin(bin, size);
  }
  // The request's own bin may hold runs shorter than the request; every bin above fits.
  std::uint32_t candidate = next_bin(bin);
  if (candidate == bin) {
    if (FreeNode* node = best_in_bin(bin, size)) {
      return node;
    }
    candidate = next_bin(bin + 1);
  }
  return candidate < kBins ? best_in_bin(candidate, size) : nullptr;
}

FreeNode* FreeIndex::largest() const {
  for (std::uint32_t word = kWords; word-- > 0;) {
    if (occupied_[word] == 0) {
      continue;
    }
    const std::uint32_t bin =
        word * 64 + 63 - static_cast<std::uint32_t>(std::countl_zero(occupied_[word]));
    FreeNode* largest = heads_[bin];
    for (FreeNode* node = heads_[bin]; node != nullptr; node = node->next_in_bin) {
      if (node->size > largest->size) {
        largest = node;
      }
    }
    return largest;
  }
  return nullptr;
}

void FreeIndex::check() const {
  Bytes bytes;
  std::uint64_t count = 0;
  for (std::uint32_t bin = 0; bin < kBins; ++bin) {
    const bool occupied = (occupied_[bin / 64] >> (bin % 64) & 1) != 0;
    NOFRAG_CHECK(occupied == (heads_[bin] != nullptr), "bitmap bit differs from its list");
    const FreeNode* previous = nullptr;
    for (const FreeNode* node = heads_[bin]; node != nullptr; node = node->next_in_bin) {
      NOFRAG_CHECK(bin_of(node->size) == bin, "free run in the wrong bin");
      NOFRAG_CHECK(node->previous_in_bin == previous, "broken bin list");
      previous = node;
      bytes += node->size;
      ++count;
    }
  }
  NOFRAG_CHECK(bytes == bytes_ && count == count_, "free index totals differ from its lists");
}

}  // namespace nofrag
