#include "index/free_index.h"

#include <bit>

namespace nofrag {

std::uint32_t FreeIndex::bin_of(Bytes size) {
  const std::uint64_t units = size / kUnit;
  if (units < kSubBins) {
    return static_cast<std::uint32_t>(units);
  }
  const auto exponent = static_cast<std::uint32_t>(std::bit_width(units)) - 1;
  const auto sub = static_cast<std::uint32_t>(units >> (exponent - kSubBits)) & (kSubBins - 1);
  return (exponent - kSubBits + 1) * kSubBins + sub;
}

void FreeIndex::put_in_bin(std::uint32_t bin, FreeNode* node) {
  NOFRAG_CHECK(bin < kBins, "free run larger than the index can hold");
  bins_[bin].insert(node, pool_);
  occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
}

void FreeIndex::take_from_bin(std::uint32_t bin, const FreeNode* node) {
  bins_[bin].erase(node, pool_);
  if (bins_[bin].empty()) {
    occupied_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
  }
}

void FreeIndex::insert(FreeNode* node) {
  put_in_bin(bin_of(node->size), node);
  if (node->size > kBestFitMax) {
    by_address_.insert(node, pool_);
  }
  bytes_ += node->size;
  ++count_;
}

void FreeIndex::remove(FreeNode* node) {
  take_from_bin(bin_of(node->size), node);
  if (node->size > kBestFitMax) {
    by_address_.erase(node, pool_);
  }
  bytes_ -= node->size;
  --count_;
}

void FreeIndex::change(FreeNode* node, VirtAddr address, Bytes size) {
  const FreeNode to{address, size};
  const std::uint32_t bin = bin_of(node->size);
  const std::uint32_t new_bin = bin_of(size);
  const bool was_long = node->size > kBestFitMax;
  const bool is_long = size > kBestFitMax;
  if (bin == new_bin) {
    bins_[bin].change(node, to, pool_);
  } else {
    take_from_bin(bin, node);
  }
  if (was_long && is_long) {
    by_address_.change(node, to, pool_);
  } else if (was_long) {
    by_address_.erase(node, pool_);
  }
  bytes_ = bytes_ - node->size + size;
  *node = to;
  if (bin != new_bin) {
    put_in_bin(new_bin, node);
  }
  if (is_long && !was_long) {
    by_address_.insert(node, pool_);
  }
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

std::uint32_t FreeIndex::last_bin_below(std::uint32_t to) const {
  for (std::uint32_t word = (to + 63) / 64; word-- > 0;) {
    std::uint64_t bits = occupied_[word];
    if (word == to / 64) {
      bits &= ~(~std::uint64_t{0} << (to % 64));
    }
    if (bits != 0) {
      return word * 64 + 63 - static_cast<std::uint32_t>(std::countl_zero(bits));
    }
  }
  return kBins;
}

FreeNode* FreeIndex::find(Bytes size) const {
  if (size > kBestFitMax) {
    return by_address_.first_fit(size);
  }
  // The request's own bin may hold runs shorter than the request; those of every bin above fit.
  const std::uint32_t own = bin_of(size);
  std::uint32_t bin = next_bin(own);
  if (bin == own) {
    if (FreeNode* node = bins_[bin].first_fit(size)) {
      return node;
    }
    bin = next_bin(own + 1);
  }
  return bin < kBins ? bins_[bin].first_fit(size) : nullptr;
}

FreeNode* FreeIndex::largest() const {
  const std::uint32_t bin = last_bin_below(kBins);
  return bin < kBins ? bins_[bin].first_fit(bins_[bin].longest()) : nullptr;
}

void FreeIndex::check() const {
  Bytes bytes;
  std::uint64_t count = 0;
  std::uint64_t large = 0;
  for (std::uint32_t bin = 0; bin < kBins; ++bin) {
    const bool occupied = (occupied_[bin / 64] >> (bin % 64) & 1) != 0;
    NOFRAG_CHECK(occupied == !bins_[bin].empty(), "bitmap bit differs from its bin");
    bins_[bin].check();
    bins_[bin].all_of([&](const FreeNode* node) {
      NOFRAG_CHECK(bin_of(node->size) == bin, "free run in the wrong bin");
      bytes += node->size;
      ++count;
      large += node->size > kBestFitMax ? 1U : 0U;
      return true;
    });
  }
  NOFRAG_CHECK(bytes == bytes_ && count == count_, "free index totals differ from its trees");
  by_address_.check();
  by_address_.all_of([&](const FreeNode* node) {
    NOFRAG_CHECK(node->size > kBestFitMax, "a short run among the long ones");
    --large;
    return true;
  });
  NOFRAG_CHECK(large == 0, "a large free run is in one tree only");
}

}  // namespace nofrag
