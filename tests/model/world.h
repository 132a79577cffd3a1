// World: runs a program against the allocator and a slow, obvious model of what must be true.
//
// Owns: a simulated driver, an allocator on it and the model: the live blocks with their canaries,
// pools, captured graphs. Layer: tests. Every live block's bytes hold its own tag, written by a
// kernel of its stream when it was allocated; kernels carry the tag as owner, so that the simulated
// driver reports two blocks' unordered work on the same bytes. Threads: none. Failure: the first
// thing that is wrong is kept in failure(); later instructions do nothing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "counting_driver.h"
#include "device/device_allocator.h"
#include "program.h"

namespace nofrag::model {

class World {
 public:
  explicit World(const Config& config);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  void run(const Instruction& instruction);
  // Ends captures, frees everything, destroys the allocator and looks for leaks. `all_returns`: a trim
  // of the empty allocator must leave nothing.
  void finish(bool all_returns = true);

  [[nodiscard]] bool ok() const { return failure_.empty(); }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t served() const { return served_; }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  [[nodiscard]] MappingCounts counts() const { return counting_.counts(); }
  [[nodiscard]] SimulatedDriver& driver() { return driver_; }
  [[nodiscard]] DeviceAllocator& allocator() { return *allocator_; }

 private:
  struct Live {
    VirtAddr address;
    Bytes size;
    std::uint64_t stream = 0;
    std::uint64_t tag = 0;
    bool written = false;          // its bytes hold the tag
    bool in_graph = false;         // its kernels belong to a captured graph
    std::uint64_t generation = 0;  // of the stream that had the name then
  };
  struct Node {
    VirtAddr address;
    Bytes size;
    std::uint64_t tag = 0;
  };
  // Pinned addresses: what was written there last stays readable, whatever became of the block.
  struct Pinned {
    VirtAddr address;
    Bytes size;
    Bytes inside;  // the address that was given
  };
  enum class PoolState : unsigned char { kNone, kFilling, kCapturing, kIdle };
  struct ModelPool {
    PoolState state = PoolState::kNone;
    std::uint64_t stream = 0;
    std::uint64_t replay_stream = 0;
    bool graph = false;
    int uses = 0;
    std::vector<Node> nodes;
  };

  void fail(std::string what);
  void expect(bool condition, const char* what);
  void allocate(std::uint64_t size, std::uint64_t stream, const ModelPool* pool, PoolKey key);
  void take_block(const Result<VirtAddr>& address, std::uint64_t size, std::uint64_t stream);
  void pin(const Live& block, std::uint64_t where);
  void unpin(std::size_t index);
  void note_allocated(VirtAddr address, std::uint64_t size, std::uint64_t stream, ModelPool* graph);
  void free_block(std::size_t index);
  void record_stream(Live& block, std::uint64_t stream);
  void check_canary(const Live& block);
  void check_all();
  void check_stats();
  void pool_instruction(const Instruction& instruction);
  void begin_pool(std::uint64_t number, std::uint64_t stream, bool capture);
  void end_pool(std::uint64_t number);
  bool end_graphs(ModelPool& pool);
  void replay(ModelPool& pool);
  void release_pool(std::uint64_t number);
  void environment_instruction(const Instruction& instruction);

  [[nodiscard]] bool capturing(std::uint64_t stream) const;
  // The stream it was allocated on is destroyed: nothing is queued for it there any more.
  [[nodiscard]] bool gone(const Live& block) const {
    return block.generation != generations_[block.stream];
  }
  [[nodiscard]] static StreamId stream_id(std::uint64_t stream) {
    return StreamId(0x1000 + 0x10 * stream);
  }
  [[nodiscard]] static PoolKey key(std::uint64_t number) { return {1, number + 1}; }

  Config config_;
  SimulatedDriver driver_;
  CountingDriver counting_{driver_};
  std::unique_ptr<DeviceAllocator> allocator_;
  std::vector<Live> live_;
  std::vector<Pinned> pinned_;
  std::map<std::uint64_t, std::uint64_t> extents_;  // live blocks: begin -> end
  std::vector<ModelPool> pools_;
  std::vector<std::uint64_t> generations_;  // of each stream name: how many streams had it before
  std::vector<EventId> own_events_;         // of the program, whose destruction a fault refused
  Bytes live_bytes_;
  Bytes requested_bytes_;
  std::map<std::uint64_t, std::uint64_t> requested_;  // tag -> bytes asked for
  std::uint64_t next_tag_ = 1;
  std::uint64_t served_ = 0;
  std::uint64_t refused_ = 0;
  std::string failure_;
};

}  // namespace nofrag::model
