// prefetch_to_write: a cache line that will be written soon is fetched as this processor's own.
//
// To read a line that another processor wrote and then to write it is two journeys between them; to fetch it
// for writing is one. (__builtin_prefetch(p, 1) fetches it for reading, where the compiler must allow for
// processors without the instruction; those that lack it take it for no operation.)
// Owns: nothing. Layer: base. Threads: any. Failure: none, whatever the address. Cost: one instruction.
#pragma once

namespace nofrag {

inline void prefetch_to_write(const void* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(address));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace nofrag
