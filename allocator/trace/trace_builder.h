// TraceBuilder: takes events one by one, refuses those that contradict the ones before, and makes
// the Trace.
//
// Owns: the Trace under construction and the table from the recorder's block names to ours. Every
// reader goes through it, so no format can bring in a trace that breaks Trace's invariants.
// Layer: trace. Units: as in trace.h. Threads: none. Failure: add() returns false and fills
// problem(); the builder must not be used further. Cost: O(1) an event, one probe of a hash table.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

// Where an event stands in its file, for messages that point back at an earlier one.
enum class TraceUnit : unsigned char { kLine, kEvent };

class TraceBuilder {
 public:
  // A csv event with 0-based index n stands on line n + first_line; other formats count events.
  explicit TraceBuilder(TraceUnit unit, std::uint64_t first_line = 0)
      : unit_(unit), first_line_(first_line) {}

  [[nodiscard]] bool add_allocation(std::uint64_t time_us,
                                    std::uint64_t id,
                                    std::uint64_t size,
                                    std::uint64_t stream);
  // The size must be that of the allocation, or 0: recorders of frees often know only the address.
  [[nodiscard]] bool add_free(std::uint64_t time_us,
                              std::uint64_t id,
                              std::uint64_t size,
                              std::uint64_t stream);
  // The same for formats that name the block by number and imply its size.
  [[nodiscard]] bool add_free_of_block(std::uint64_t time_us,
                                       std::uint64_t block,
                                       std::uint64_t stream);

  struct Problem {
    std::string found;
    std::string expected;
  };
  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] std::uint64_t event_count() const { return trace_.events.size(); }
  [[nodiscard]] std::uint64_t block_count() const { return trace_.allocations; }

  // The finished trace. The builder is empty afterwards.
  [[nodiscard]] Trace finish(TraceFormat format);

 private:
  struct Slot {
    std::uint64_t id = 0;
    std::uint32_t block_plus_one = 0;  // 0 = empty slot
  };
  static constexpr std::uint32_t kLive = UINT32_MAX;

  bool refuse(std::string found, std::string expected);
  bool check_time(std::uint64_t time_us);
  bool append_free(std::uint64_t time_us, std::uint32_t block, std::uint64_t stream);
  bool intern_stream(std::uint64_t stream, std::uint32_t* number);
  Slot& find_slot(std::uint64_t id);
  void grow_table();
  [[nodiscard]] std::string place(std::uint32_t event) const;
  [[nodiscard]] std::string name(std::uint32_t block) const;

  TraceUnit unit_;
  std::uint64_t first_line_;
  Trace trace_;
  Problem problem_;
  std::vector<Slot> table_;
  std::vector<std::uint32_t> allocated_at_;  // event index, by block
  std::vector<std::uint32_t> freed_at_;      // event index or kLive, by block
  std::unordered_map<std::uint64_t, std::uint32_t> stream_numbers_;
  std::uint64_t last_stream_ = 0;  // nearly every event has its predecessor's stream
  std::uint32_t last_stream_number_ = UINT32_MAX;
  Bytes live_;
};

}  // namespace nofrag
