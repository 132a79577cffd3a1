// AddressMap: how full the addresses of a run are at chosen moments, in cells.
//
// Owns: the areas, the moments and a byte a cell and moment. Addresses that no block of the run ever used are left
// out where they are many; what remains is cut into at most kMostCells cells of one size. Layer: cli. Units: bytes.
// Invariants: a cell's level is 0 only if nothing lies in it, 255 only if it is full. Threads: none. Failure: none.
// Cost: one sort of the blocks, one pass over the events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace nofrag {

class AddressMap {
 public:
  static constexpr std::size_t kMostCells = 4096;

  // `addresses` by block, 0 = never placed. Only the first `events` events happened. `moments` ascend: numbers
  // of events that have happened.
  AddressMap(const Trace& trace,
             const std::vector<std::uint64_t>& addresses,
             std::uint64_t events,
             const std::vector<std::uint64_t>& moments);

  struct Area {
    std::uint64_t address = 0;
    std::uint64_t cells = 0;
  };
  struct Moment {
    std::uint64_t events = 0;
    std::uint64_t time_us = 0;
    Bytes live;
    std::uint64_t blocks = 0;
    std::string levels;  // a byte a cell
  };
  [[nodiscard]] const std::vector<Area>& areas() const { return areas_; }
  [[nodiscard]] const std::vector<Moment>& moments() const { return moments_; }
  [[nodiscard]] std::uint64_t cell_bytes() const { return cell_bytes_; }

 private:
  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
  };
  void find_areas(const Trace& trace,
                  const std::vector<std::uint64_t>& addresses,
                  std::uint64_t events);
  void change(std::uint64_t address, std::uint64_t size, bool add);
  void add_moment(const Trace& trace, std::uint64_t events);

  std::vector<Area> areas_;
  std::vector<std::uint64_t> first_cell_;  // by area
  std::uint64_t cell_bytes_ = 0;
  std::vector<std::uint64_t> used_;  // bytes, by cell
  std::vector<Moment> moments_;
  Bytes live_;
  std::uint64_t blocks_ = 0;
};

}  // namespace nofrag
