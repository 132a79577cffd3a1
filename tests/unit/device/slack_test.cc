// How much more than its peak a job may hold before free memory is composed: small jobs more, large ones hardly any.
#include <random>

#include "device_fixture.h"

namespace nofrag {
namespace {

class SlackTest : public DeviceFixture {
 protected:
  struct Held {
    double over_peak = 0;     // reserved over the peak of what was allocated
    std::ptrdiff_t late = 0;  // mappings in the second half of the job
  };

  // Steps of changing sizes: each makes blocks of `most` at most, frees some on the way, and the rest
  // but five, which lie about until the next ones are chosen.
  Held job(Bytes device, Bytes most, const Options& options) {
    start(device, options);
    work_is_done_at_once();
    std::mt19937 random(20);
    Held held;
    std::vector<VirtAddr> kept;
    for (int step = 0; step < 300; ++step) {
      const std::uint64_t shape = 40 + random() % 60;
      std::vector<VirtAddr> blocks = std::move(kept);
      kept.clear();
      for (int i = 0; i < 48; ++i) {
        const Bytes size(most.count() * shape / 100 * (1 + random() % 64) / 64);
        blocks.push_back(allocate(size));
        if (i % 3 == 2) {
          free(blocks[blocks.size() - 2]);
          blocks.erase(blocks.end() - 2);
        }
      }
      std::shuffle(blocks.begin(), blocks.end(), random);
      for (const VirtAddr block : blocks) {
        if (kept.size() < 5) {
          kept.push_back(block);
        } else {
          free(block);
        }
      }
      const std::ptrdiff_t maps = count(recorder_->take(), "map");
      held.late += step >= 150 ? maps : 0;
    }
    const DeviceStats stats = allocator_->stats();
    held.over_peak = static_cast<double>(stats.peak_reserved.count()) /
                     static_cast<double>(stats.peak_allocated.count());
    return held;
  }
};

TEST_F(SlackTest, ASmallJobStopsComposing) {
  Options strict;
  strict.reserve_slack = 0.01;
  const Held as_asked = job(64 * kGiB, 40 * kMiB, strict);
  const Held balanced = job(64 * kGiB, 40 * kMiB, {});
  EXPECT_LE(as_asked.over_peak, 1.06) << "an option given is kept to";
  EXPECT_GT(as_asked.late, 20) << "else there is nothing to be saved here";
  EXPECT_LT(balanced.late, as_asked.late / 4);
  EXPECT_LE(balanced.over_peak, 1.34);
}

// Holes that no request fits, so that each request is new memory as long as that is allowed, and then a composition.
TEST_F(SlackTest, TheMoreAJobHasTheLessItMayHoldBeside) {
  constexpr Bytes kStep = 16 * kMiB;
  const struct {
    Bytes peak, more;
  } cases[] = {
      {240 * kMiB, 80 * kMiB},                      // a third of it
      {1 * kGiB, 128 * kMiB - 16 * kMiB},           // a 512th of 64 GiB less a 64th of it
      {4 * kGiB, 128 * kMiB - 64 * kMiB},           //
      {7 * kGiB, Bytes((7 * kGiB).count() / 100)},  // as a large job
  };
  for (const auto& [peak, more] : cases) {
    start(64 * kGiB, Options{});
    work_is_done_at_once();
    std::vector<VirtAddr> blocks;
    for (Bytes sum; sum < peak; sum += 8 * kMiB) {
      blocks.push_back(allocate(8 * kMiB));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      free(blocks[i]);
    }
    for (Bytes sum; sum + kStep <= Bytes(peak.count() / 2) && sum < 4 * more; sum += kStep) {
      ASSERT_FALSE(allocate(kStep).is_null());
    }
    const Bytes beside = allocator_->stats().peak_reserved - peak;
    EXPECT_LE(beside, more) << peak.count();
    EXPECT_GT(beside + kStep, more) << peak.count();
  }
}

TEST_F(SlackTest, ALargeJobHoldsWhatItDid) {
  Options strict;
  strict.reserve_slack = 0.01;
  // More than an eighth of the device.
  const Held as_asked = job(4 * kGiB, 64 * kMiB, strict);
  const Held balanced = job(4 * kGiB, 64 * kMiB, {});
  EXPECT_GT(8 * allocator_->stats().peak_allocated, 4 * kGiB);
  EXPECT_LE(balanced.over_peak, as_asked.over_peak + 0.01);
}

TEST_F(SlackTest, ALeanPolicyGivesNone) {
  Options lean;
  lean.policy = Policy::kLean;
  EXPECT_LE(job(64 * kGiB, 24 * kMiB, lean).over_peak, 1.05);
}

}  // namespace
}  // namespace nofrag
