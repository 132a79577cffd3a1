// native_stack: which calls the calling thread is inside of, as addresses.
//
// Owns: nothing. Layer: trace. Units: addresses of code, innermost call first; each is an address inside the call
// instruction (what a caller returns to, minus 1), so that it lies in the function that called.
// Invariants: reads the unwind tables that the loader knows of, and nothing else; takes no lock of ours, allocates
// nothing. libtorch and its like keep no frame pointers, so tables it must be.
// Threads: any. Failure: code without a table (made at run time, say) ends the stack there.
// Cost: about 0.3 us a frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nofrag {

// Addresses from begin to end.
struct CodeRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] bool holds(std::uint64_t address) const {
    return address >= begin && address < end;
  }
  bool operator==(const CodeRange&) const = default;
};

// How many of `frames` it filled. Leading frames in `skipped` are left out. *cut: there were more than had room.
std::size_t native_stack(std::span<std::uint64_t> frames, CodeRange skipped, bool* cut);

}  // namespace nofrag
