// The calls of platform.h without a GPU: what tests set is current, what is asked is noted.
//
// Owns: nothing. Layer: tests. Threads: the current device and stream are the thread's, the notes everybody's.
// Failure: none. Invariants: streams are numbers that no GPU knows.
#pragma once

#include <string>
#include <vector>

#include "torch_plugin/native/platform.h"

namespace nofrag::test {

struct FakePlatform {
  int device = 0;
  cudaStream_t stream = nullptr;
};

FakePlatform& current();
// "copy_async 4096", "peer 0->1 4096", "enable 0->1", "record 7", ...
std::vector<std::string>& notes();
// Events are done when told so; before, they are running, and wait() makes them done.
void finish_events();
// From now on no event can be recorded, and of those that were nothing is known: as if a capture had them.
void refuse_events(bool refused);
// Those that are there, and how often any was recorded, asked about or waited for.
std::size_t event_count();
std::size_t event_calls();

inline cudaStream_t stream_number(std::uintptr_t number) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a name, never followed
  return reinterpret_cast<cudaStream_t>(number * 64);
}

}  // namespace nofrag::test
