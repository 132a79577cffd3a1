// PieceIndex against a look at all pieces.
#include "driver/simulated/piece_index.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/units.h"

namespace nofrag {
namespace {

bool overlap(const PhysicalPiece& a, const PhysicalPiece& b) {
  return a.handle == b.handle && a.begin < b.end && b.begin < a.end;
}

class PieceIndexTest : public testing::Test {
 protected:
  // Of every size from one byte to `doublings` doublings of that, in handles of 64 MiB.
  PhysicalPiece random_piece(unsigned doublings) {
    const std::uint64_t size = 1 + random_() % (std::uint64_t{1} << random_() % (doublings + 1));
    const std::uint64_t begin = random_() % ((64 * kMiB).count() - size + 1);
    return {1 + random_() % 3, begin, begin + size};
  }
  void add(const PhysicalPiece& piece) {
    index_.add(static_cast<std::uint32_t>(pieces_.size()), piece);
    pieces_.push_back(piece);
  }
  // How many were looked at for it.
  std::size_t compare(const PhysicalPiece& asked) {
    std::set<std::uint32_t> found;
    const std::size_t looks =
        index_.for_each(asked, [&](std::uint32_t kernel) { found.insert(kernel); });
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
      EXPECT_EQ(overlap(pieces_[i], asked), found.count(i) == 1)
          << "a piece of " << pieces_[i].end - pieces_[i].begin << " bytes";
    }
    return looks;
  }

  std::mt19937_64 random_{1};
  PieceIndex index_;
  std::vector<PhysicalPiece> pieces_;
};

TEST_F(PieceIndexTest, EveryPieceThatOverlapsIsFound) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 600; ++i) {
      add(random_piece(26));
      compare(random_piece(26));
    }
    index_.clear();
    pieces_.clear();
    EXPECT_EQ(compare(random_piece(26)), 0U);
  }
}

TEST_F(PieceIndexTest, NeighboursDoNotOverlapAndAreFoundAtTheEdge) {
  for (std::uint64_t size = 1; size <= (8 * kMiB).count(); size *= 2) {
    pieces_.clear();
    index_.clear();
    for (std::uint64_t i = 0; i < 4; ++i) {
      add({1, i * size, (i + 1) * size});
    }
    compare({1, 2 * size - 1, 2 * size});
    compare({1, 2 * size, 2 * size + 1});
    compare({1, 0, 4 * size});
    EXPECT_EQ(compare({2, 0, size}), 0U) << "another handle";
  }
}

TEST_F(PieceIndexTest, SmallPiecesAreFoundWithoutALookAtAll) {
  constexpr std::size_t kPieces = 20000;
  for (std::size_t i = 0; i < kPieces; ++i) {
    add(random_piece(14));
  }
  std::size_t looks = 0;
  for (int i = 0; i < 50; ++i) {
    looks += compare(random_piece(14));
  }
  EXPECT_LT(looks / 50, kPieces / 1000);
}

TEST_F(PieceIndexTest, ALargePieceLooksAtWhatItsHandleHas) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    add({1 + i % 2, i * 1000, i * 1000 + 500});
  }
  EXPECT_EQ(compare({1, 0, (64 * kMiB).count()}), 50U);
}

}  // namespace
}  // namespace nofrag
