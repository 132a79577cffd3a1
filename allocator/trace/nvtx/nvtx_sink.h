// NvtxSink: tells NVIDIA's tools what the allocator does, through NVTX (header only; nothing is linked).
//
// Ranges in the domain "nofrag" around work that takes driver calls, for profilers. On demand the memory
// extension too: each mapping is a heap and each live block a region of it, so that compute-sanitizer reports
// accesses to memory of ours that no block has.
// Owns: the table of mappings and blocks that it told of. Layer: trace. Units: bytes.
// Invariants: a region is what a block's owner asked for, cut where mappings meet; no region outlives its heap.
// Threads: any; the tables have a lock of their own. Failure: none; without a tool every call does nothing.
// Cost: without a tool a load and a branch a range; with memory(), two searches a block.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "base/event_sink.h"

struct nvtxDomainRegistration_st;
struct nvtxMemHeap_v1;

namespace nofrag {

class NvtxSink final : public EventSink {
 public:
  // Was this library built with NVTX's headers?
  static bool available();

  // `memory`: tell of mappings and blocks too.
  explicit NvtxSink(bool memory);
  NvtxSink(const NvtxSink&) = delete;
  NvtxSink& operator=(const NvtxSink&) = delete;
  ~NvtxSink() = default;

  void on_event(const AllocatorEvent& event) override;
  [[nodiscard]] bool concurrent() const override { return true; }
  void on_work_begin(const char* name) override;
  void on_work_end() override;

 private:
  struct Heap {
    std::uint64_t size = 0;
    nvtxMemHeap_v1* handle = nullptr;
  };

  template <typename Visitor>
  void for_each_part(std::uint64_t address, std::uint64_t size, Visitor&& visit) const;
  void add_block(std::uint64_t address, std::uint64_t size);
  void remove_block(std::uint64_t address);
  void add_mapping(std::uint64_t address, std::uint64_t size);
  void remove_mapping(std::uint64_t address);

  const bool memory_;
  nvtxDomainRegistration_st* domain_ = nullptr;
  std::mutex mutex_;
  std::map<std::uint64_t, Heap> heaps_;            // Sync: mutex_; mappings, by address
  std::map<std::uint64_t, std::uint64_t> blocks_;  // Sync: mutex_; sizes, by address
};

}  // namespace nofrag
