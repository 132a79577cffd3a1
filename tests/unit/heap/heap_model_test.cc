// The heap alone against a slow model: who owns each 512 bytes of each handle, and which stream freed it
// last. What every mapping must show follows from that. `heap_test --gtest_filter=HeapModel.*`.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "driver/simulated/simulated_driver.h"
#include "heap/range_heap.h"

namespace nofrag {
namespace {

constexpr Bytes kUnit{512};
constexpr Bytes kGranule{4096};
constexpr std::size_t kUnitsAGranule = 8;
constexpr std::size_t kGranules = 24;  // of a region
constexpr VirtAddr kBase{std::uint64_t{0x4000000000}};
constexpr std::size_t kRegions = 6;

std::uint64_t running_seed = 0;

void on_abort(int) {
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(running_seed));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

struct Unit {
  const Block* owner = nullptr;  // live or pending
  StreamClock* clock = nullptr;  // of the last free; nullptr = clean
  Tick tick = 0;
};

struct ModelHandle {
  Handle* handle = nullptr;
  bool lost = false;
  std::vector<Unit> units;
  std::map<StreamClock*, Tick> uses;  // the newest free of each stream
};

struct ModelMapping {
  ModelHandle* handle = nullptr;
  std::size_t region = 0;
  std::size_t granule = 0;
  bool stuck = false;
  [[nodiscard]] std::size_t granules() const { return handle->units.size() / kUnitsAGranule; }
};

struct ModelBlock {
  Block* block = nullptr;
  bool deferred = false;
  Tick tick = 0;  // of a deferred one
};

struct Variant {
  RangeHeap::Sharing sharing = RangeHeap::Sharing::kShared;
  std::size_t streams = 1;
  bool exact = false;  // streams complete all they have, or nothing
  std::uint32_t aliases = 8;
};

class HeapModel {
 public:
  HeapModel(std::uint64_t seed, const Variant& variant) : random_(seed), variant_(variant) {
    driver_.set_completion(Completion::kByHand);
    context_.park_after = 1 + seed % 4;
    context_.park_after_a_mapping = 0;
    context_.park_with_several = true;
    heap_ = std::make_unique<RangeHeap>(context_, variant.sharing);
    regions_.resize(kRegions);
    make_table();
    add_region(0);
    for (std::size_t i = 0; i < variant.streams; ++i) {
      streams_.clock(stream(i));
    }
  }

  ~HeapModel() {
    while (!blocks_.empty()) {
      free_block(blocks_.size() - 1);
    }
    while (!handles_.empty()) {
      remove(handles_.begin());
    }
    heap_->check();
    EXPECT_EQ(heap_->mapped(), Bytes(0));
    EXPECT_EQ(heap_->used(), Bytes(0));
    EXPECT_EQ(context_.idle_bytes, Bytes(0));
  }

  void step() {
    const std::uint64_t dice = below(100);
    if (dice < 30) {
      allocate();
    } else if (dice < 36) {
      take_somewhere();
    } else if (dice < 58) {
      if (!blocks_.empty()) {
        free_block(below(blocks_.size()));
      }
    } else if (dice < 61) {
      if (!blocks_.empty()) {
        defer(blocks_[below(blocks_.size())]);
      }
    } else if (dice < 69) {
      attach();
    } else if (dice < 81) {
      alias();
    } else if (dice < 86) {
      drop();
    } else if (dice < 89) {
      detach();
    } else if (dice < 92) {
      change_regions();
    } else {
      complete(streams_.clock(stream(below(variant_.streams))));
    }
    heap_->check();
  }

  // Every byte of every region; at times of what was parked too.
  void compare() {
    compare_handles();
    compare_regions();
    if (below(4) == 0) {
      const Bytes longest = heap_->largest_free_run();
      heap_->wake_all();
      ASSERT_TRUE(heap_->largest_free_run() == longest ||
                  (!variant_.exact && variant_.streams > 1));
      compare_regions();
    }
  }

  std::uint64_t shadowed = 0;  // units seen as shadows
  std::uint64_t parked = 0;    // units seen as parked
  std::uint64_t spanning = 0;  // blocks over several mappings
  std::uint64_t served = 0;

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  static StreamId stream(std::size_t i) { return StreamId(0x100 * (i + 1)); }
  [[nodiscard]] bool shared() const { return variant_.sharing == RangeHeap::Sharing::kShared; }

  void add_region(std::size_t index) {
    regions_[index] = &heap_->add_region({kBase + kMiB * index, kGranule * kGranules}, index == 0);
  }

  // The mapping at a granule, or nullptr.
  const ModelMapping* mapping_at(std::size_t region, std::size_t granule) const {
    const int index = table_[region][granule];
    return index < 0 ? nullptr : &mappings_[static_cast<std::size_t>(index)];
  }
  void make_table() {
    for (auto& row : table_) {
      row.fill(-1);
    }
    for (std::size_t i = 0; i < mappings_.size(); ++i) {
      const ModelMapping& m = mappings_[i];
      for (std::size_t g = 0; g < m.granules(); ++g) {
        int& entry = table_[m.region][m.granule + g];
        EXPECT_EQ(entry, -1) << "two mappings at one address";
        entry = static_cast<int>(i);
      }
    }
  }
  [[nodiscard]] bool unbacked(std::size_t region, std::size_t granule, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (granule + i >= kGranules || mapping_at(region, granule + i) != nullptr) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::size_t region_of(const Block& block) const {
    return static_cast<std::size_t>(std::find(regions_.begin(), regions_.end(), block.region) -
                                    regions_.begin());
  }
  // visit(handle, unit) for the block's units in order.
  template <typename Visitor>
  void for_each_unit(const Block& block, Visitor&& visit) {
    const std::size_t region = region_of(block);
    for (VirtAddr at = block.address; at < block.end(); at = at + kUnit) {
      const Bytes offset = at - regions_[region]->range.address;
      const ModelMapping* m = mapping_at(region, offset / kGranule);
      ASSERT_NE(m, nullptr) << "a block over unbacked addresses";
      ASSERT_FALSE(m->stuck);
      visit(*m->handle, m->handle->units[offset / kUnit - m->granule * kUnitsAGranule]);
    }
  }

  void note_allocated(Block* block) {
    ++served;
    const ModelHandle* last = nullptr;
    std::size_t parts = 0;
    for_each_unit(*block, [&](ModelHandle& handle, Unit& unit) {
      EXPECT_EQ(unit.owner, nullptr) << "bytes handed out twice";
      EXPECT_FALSE(handle.lost);
      parts += &handle != last ? 1U : 0U;
      last = &handle;
      unit = {block, nullptr, 0};
    });
    spanning += parts > 1 ? 1U : 0U;
    blocks_.push_back({block});
  }

  // May `clock` have the unit without a wait?
  [[nodiscard]] bool usable(const Unit& unit, const StreamClock& clock) const {
    return unit.owner == nullptr && (unit.clock == nullptr || unit.clock == &clock);
  }

  // Is there a run of one mark that long?
  [[nodiscard]] bool has_run(std::size_t units, const StreamClock& clock) const {
    for (std::size_t region = 0; region < kRegions; ++region) {
      std::size_t run = 0;
      const StreamClock* mark = nullptr;
      for (std::size_t i = 0; i < kGranules * kUnitsAGranule && regions_[region] != nullptr; ++i) {
        const ModelMapping* m = mapping_at(region, i / kUnitsAGranule);
        const Unit* unit = m == nullptr || m->stuck || m->handle->lost
                               ? nullptr
                               : &m->handle->units[i - m->granule * kUnitsAGranule];
        if (unit == nullptr || !usable(*unit, clock)) {
          run = 0;
          continue;
        }
        run = run != 0 && unit->clock == mark ? run + 1 : 1;
        mark = unit->clock;
        if (run >= units) {
          return true;
        }
      }
    }
    return false;
  }

  void allocate() {
    const std::size_t units = 1 + below(std::uint64_t{1} << below(8));
    StreamClock& clock = streams_.clock(stream(below(variant_.streams)));
    Block* block = heap_->allocate(kUnit * units, kUnit * units, clock);
    if (block != nullptr) {
      for_each_unit(*block, [&](ModelHandle&, const Unit& unit) {
        EXPECT_TRUE(unit.clock == nullptr || unit.clock == &clock || unit.clock->done(unit.tick))
            << "memory of another stream that is not done";
        EXPECT_TRUE(shared() || unit.clock == nullptr || unit.clock == &clock);
      });
      EXPECT_EQ(block->size, kUnit * units);
      note_allocated(block);
    } else if (variant_.exact && variant_.streams > 1) {
      EXPECT_FALSE(has_run(units, clock)) << "a free run was not found";
    }
  }

  // At any place that is free, whatever its marks.
  void take_somewhere() {
    const std::size_t units = 1 + below(40);
    StreamClock& clock = streams_.clock(stream(below(variant_.streams)));
    const auto placement = heap_->find_placement(kUnit * units, clock, RangeHeap::Scope::kAny);
    if (placement.has_value() && placement->missing.is_zero()) {
      note_allocated(heap_->take(*placement, kUnit * units, clock));
    }
  }

  void free_block(std::size_t index) {
    const ModelBlock freed = blocks_[index];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    StreamClock* clock = freed.block->clock;
    const Tick tick = freed.deferred ? freed.tick : clock->stamp();
    const bool clean = shared() && clock->done(tick);
    for_each_unit(*freed.block, [&](ModelHandle& handle, Unit& unit) {
      EXPECT_EQ(unit.owner, freed.block);
      unit = {nullptr, clean ? nullptr : clock, tick};
      Tick& newest = handle.uses[clock];
      newest = std::max(newest, tick);
    });
    heap_->free(freed.block, tick);
  }

  // It stays allocated; the work that its free must wait for is that of now.
  void defer(ModelBlock& block) {
    if (!block.deferred) {
      block.block->state = BlockState::kPending;
      block.deferred = true;
      block.tick = block.block->clock->stamp();
    }
  }

  void attach() {
    const std::size_t region = below(kRegions);
    const std::size_t granule = below(kGranules);
    const std::size_t count = 1 + below(4);
    if (regions_[region] == nullptr || !unbacked(region, granule, count)) {
      return;
    }
    const VirtAddr address = regions_[region]->range.address + kGranule * granule;
    const PhysicalHandle physical{HandleId{++last_id_}, kGranule * count};
    auto handle = std::make_unique<ModelHandle>();
    handle->units.resize(count * kUnitsAGranule);
    if (below(12) == 0) {
      heap_->attach_lost(*regions_[region], address, physical);
      handle->lost = true;
      handle->handle = heap_->lost().back();
    } else {
      handle->handle = heap_->attach(*regions_[region], address, physical);
    }
    mappings_.push_back({handle.get(), region, granule, false});
    make_table();
    handles_.push_back(std::move(handle));
  }

  void alias() {
    if (handles_.empty()) {
      return;
    }
    ModelHandle* handle = handles_[below(handles_.size())].get();
    const std::size_t region = below(kRegions);
    const std::size_t granule = below(kGranules);
    const std::size_t count = handle->units.size() / kUnitsAGranule;
    if (handle->lost || regions_[region] == nullptr || !unbacked(region, granule, count) ||
        handle->handle->mapping_count >= variant_.aliases) {
      return;
    }
    for (const ModelMapping& m : mappings_) {
      if (m.handle == handle && m.region == region) {
        return;
      }
    }
    const VirtAddr address = regions_[region]->range.address + kGranule * granule;
    const bool stuck = below(12) == 0;
    if (stuck) {
      heap_->alias_stuck(*regions_[region], address, handle->handle);
    } else {
      heap_->alias(*regions_[region], address, handle->handle);
    }
    mappings_.push_back({handle, region, granule, stuck});
    make_table();
  }

  // Through which nothing is allocated, and not the last one.
  [[nodiscard]] bool droppable(const ModelMapping& m) {
    if (m.stuck) {
      return true;
    }
    if (m.handle->lost || m.handle->handle->mapping_count < 2) {
      return false;
    }
    for (const Unit& unit : m.handle->units) {
      if (unit.owner != nullptr && region_of(*unit.owner) == m.region) {
        return false;
      }
    }
    return true;
  }
  void drop_mapping(std::size_t index) {
    const ModelMapping m = mappings_[index];
    const VirtAddr address = regions_[m.region]->range.address + kGranule * m.granule;
    heap_->drop(RangeHeap::mapping_at(*regions_[m.region], address));
    mappings_.erase(mappings_.begin() + static_cast<std::ptrdiff_t>(index));
    make_table();
  }
  void drop() {
    if (!mappings_.empty()) {
      const std::size_t index = below(mappings_.size());
      if (droppable(mappings_[index])) {
        drop_mapping(index);
      }
    }
  }

  void detach() {
    if (handles_.empty()) {
      return;
    }
    const auto chosen = handles_.begin() + static_cast<std::ptrdiff_t>(below(handles_.size()));
    const bool idle = std::all_of((*chosen)->units.begin(),
                                  (*chosen)->units.end(),
                                  [](const Unit& unit) { return unit.owner == nullptr; });
    if (idle) {
      remove(chosen);
    }
  }
  void remove(std::vector<std::unique_ptr<ModelHandle>>::iterator chosen) {
    ModelHandle* handle = chosen->get();
    for (std::size_t i = mappings_.size(); i-- > 0;) {
      if (mappings_[i].handle == handle &&
          (mappings_[i].stuck || handle->handle->mapping_count > 1)) {
        drop_mapping(i);
      }
    }
    const PhysicalHandle gone =
        handle->lost ? heap_->detach_lost(handle->handle) : heap_->detach(handle->handle);
    EXPECT_EQ(gone.size, kUnit * handle->units.size());
    std::erase_if(mappings_, [handle](const ModelMapping& m) { return m.handle == handle; });
    make_table();
    handles_.erase(chosen);
  }

  void change_regions() {
    const std::size_t index = 1 + below(kRegions - 1);
    if (regions_[index] == nullptr) {
      add_region(index);
    } else if (unbacked(index, 0, kGranules)) {
      heap_->remove_region(*regions_[index]);
      regions_[index] = nullptr;
      EXPECT_EQ(context_.block_at(kBase + kMiB * index), nullptr);
    }
  }

  void complete(StreamClock& clock) {
    if (variant_.exact || below(2) == 0) {
      ASSERT_TRUE(streams_.mark(clock).ok());
    }
    if (variant_.exact || below(2) == 0) {
      driver_.complete_stream(clock.stream);
      streams_.poll(clock);
      heap_->clean_done(clock);
    }
    for (const auto& handle : handles_) {
      for (Unit& unit : handle->units) {
        if (shared() && unit.clock == &clock && clock.done(unit.tick)) {
          unit.clock = nullptr;
        }
      }
    }
    if (below(8) == 0) {
      heap_->clean_all();
      for (const auto& handle : handles_) {
        for (Unit& unit : handle->units) {
          unit.clock = nullptr;
        }
      }
    }
  }

  // What one unit of a region looks like.
  void compare_unit(const Block& block, VirtAddr address, const ModelMapping* m) {
    if (m == nullptr || m->stuck || m->handle->lost) {
      ASSERT_EQ(block.state, m == nullptr ? BlockState::kUnbacked : BlockState::kLost);
      return;
    }
    const Bytes offset = address - regions_[m->region]->range.address;
    const Unit& unit = m->handle->units[offset / kUnit - m->granule * kUnitsAGranule];
    if (block.state == BlockState::kParked) {
      ASSERT_NE(m->region, 0U) << "the home region is parked";
      ASSERT_TRUE(unit.owner == nullptr || region_of(*unit.owner) != m->region);
      const VirtAddr front = regions_[m->region]->range.address + kGranule * m->granule;
      ASSERT_NE(front, m->handle->handle->first_address());
      ++parked;
    } else if (unit.owner == &block) {
      ASSERT_TRUE(block.state == BlockState::kLive || block.state == BlockState::kPending);
    } else if (unit.owner != nullptr) {
      ASSERT_EQ(block.state, BlockState::kShadow);
      ++shadowed;
    } else {
      ASSERT_EQ(block.state, BlockState::kFree);
      if (variant_.exact && variant_.streams > 1) {
        ASSERT_EQ(block.clock, unit.clock);
      }
      // Never clean too early; too late only where it merged with what is late.
      ASSERT_TRUE(unit.clock == nullptr || block.clock == unit.clock) << "a mark was lost";
      ASSERT_TRUE(unit.clock == nullptr || block.tick >= unit.tick) << "a mark became earlier";
    }
  }

  void compare_handles() {
    Bytes mapped;
    Bytes used;
    Bytes idle;
    for (const auto& handle : handles_) {
      const auto taken = static_cast<std::size_t>(
          std::count_if(handle->units.begin(), handle->units.end(), [&handle](const Unit& unit) {
            return unit.owner != nullptr || handle->lost;
          }));
      ASSERT_EQ(handle->handle->used, kUnit * taken);
      mapped += kUnit * handle->units.size();
      used += kUnit * taken;
      idle += taken == 0 ? kUnit * handle->units.size() : Bytes(0);
      compare_ends(*handle);
      compare_uses(*handle);
    }
    ASSERT_EQ(heap_->mapped(), mapped);
    ASSERT_EQ(heap_->used(), used);
    ASSERT_EQ(context_.idle_bytes, idle);
    ASSERT_EQ(heap_->mapped_in_use(), mapped - idle);
  }

  void compare_regions() {
    for (std::size_t region = 0; region < kRegions; ++region) {
      if (regions_[region] == nullptr) {
        continue;
      }
      for (const Block* b = regions_[region]->first; b != nullptr; b = b->next) {
        ASSERT_EQ(context_.block_at(b->address), b);
        ASSERT_EQ(context_.block_at(b->end() - Bytes(1)), b);
        for (VirtAddr at = b->address; at < b->end(); at = at + kUnit) {
          const Bytes offset = at - regions_[region]->range.address;
          compare_unit(*b, at, mapping_at(region, offset / kGranule));
        }
      }
    }
  }

  void compare_ends(const ModelHandle& handle) {
    std::size_t front = 0;
    std::size_t back = 0;
    const std::size_t count = handle.units.size();
    while (!handle.lost && front < count && handle.units[front].owner == nullptr) {
      ++front;
    }
    while (!handle.lost && back < count && handle.units[count - 1 - back].owner == nullptr) {
      ++back;
    }
    const RangeHeap::Ends ends = heap_->free_ends(*handle.handle);
    ASSERT_EQ(ends.front, kUnit * front);
    ASSERT_EQ(ends.back, kUnit * back);
  }

  // Somewhere among the handle's mappings every stream's last free is remembered until it is done.
  void compare_uses(const ModelHandle& handle) {
    std::map<const StreamClock*, Tick> seen;
    for (const Mapping* m = handle.handle->mappings; m != nullptr; m = m->next) {
      m->last_uses.all_of([&seen](const StreamClock& clock, Tick tick) {
        seen[&clock] = std::max(seen[&clock], tick);
        return true;
      });
    }
    for (const auto& [clock, tick] : handle.uses) {
      if (!clock->done(tick)) {
        ASSERT_EQ(seen[clock], tick) << "work on a handle was forgotten";
      }
    }
  }

  std::mt19937_64 random_;
  Variant variant_;
  SimulatedDriver driver_{SimulatedDeviceSpec{}};
  Streams streams_{driver_, DeviceOrdinal(0)};
  HeapContext context_{streams_, kGranule};
  std::unique_ptr<RangeHeap> heap_;
  std::vector<Region*> regions_;
  std::vector<std::unique_ptr<ModelHandle>> handles_;
  std::vector<ModelMapping> mappings_;
  std::array<std::array<int, kGranules>, kRegions> table_{};  // into mappings_, by granule
  std::vector<ModelBlock> blocks_;
  std::uint64_t last_id_ = 0;
};

class HeapModelTest : public testing::TestWithParam<Variant> {};

TEST_P(HeapModelTest, EveryMappingShowsTheSameBytes) {
  constexpr std::uint64_t kSeeds = 10;
  constexpr int kSteps = 1000;
  std::signal(SIGABRT, on_abort);
  std::uint64_t shadowed = 0;
  std::uint64_t parked = 0;
  std::uint64_t spanning = 0;
  std::uint64_t served = 0;
  for (running_seed = 1; running_seed <= kSeeds; ++running_seed) {
    SCOPED_TRACE("seed " + std::to_string(running_seed));
    HeapModel model(running_seed, GetParam());
    for (int step = 0; step < kSteps; ++step) {
      model.step();
      if (step % 4 == 0) {
        model.compare();
      }
      ASSERT_FALSE(HasFailure()) << "step " << step;
    }
    shadowed += model.shadowed;
    parked += model.parked;
    spanning += model.spanning;
    served += model.served;
  }
  std::signal(SIGABRT, SIG_DFL);
  std::printf("%llu blocks, %llu of them over several mappings; %llu units shadowed, %llu parked\n",
              static_cast<unsigned long long>(served),
              static_cast<unsigned long long>(spanning),
              static_cast<unsigned long long>(shadowed),
              static_cast<unsigned long long>(parked));
  EXPECT_GT(served, kSeeds * kSteps / 20);
  EXPECT_GT(spanning, served / 50);
  EXPECT_EQ(shadowed > 0, GetParam().aliases > 1);
  EXPECT_EQ(parked > 1000, GetParam().aliases > 1);
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         HeapModelTest,
                         testing::Values(Variant{RangeHeap::Sharing::kShared, 1, false, 8},
                                         Variant{RangeHeap::Sharing::kShared, 2, true, 8},
                                         Variant{RangeHeap::Sharing::kShared, 3, false, 8},
                                         Variant{RangeHeap::Sharing::kShared, 3, true, 2},
                                         Variant{RangeHeap::Sharing::kShared, 2, true, 1},
                                         Variant{RangeHeap::Sharing::kPrivate, 3, true, 8},
                                         Variant{RangeHeap::Sharing::kPrivate, 2, false, 3}));

}  // namespace
}  // namespace nofrag
