// ThreadId: a number for the calling thread that no other thread of the process ever has.
//
// Layer: base. pthread and kernel ids come back after a thread ends; these never do, so a stream
// that died with its thread is never mistaken for another thread's.
// Threads: any. Cost: one thread-local read; one atomic increment a thread.
#pragma once

#include <cstdint>
#include <string>

namespace nofrag {

// Never 0.
std::uint64_t this_thread_id();

// What a thread of this process, by the kernel's id, is called; empty if it has ended.
std::string kernel_thread_name(std::uint64_t kernel_id);

}  // namespace nofrag
