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
// Events are done when told so; before, finished() says no, and wait() makes them so.
void finish_events();

inline cudaStream_t stream_number(std::uintptr_t number) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a name, never followed
  return reinterpret_cast<cudaStream_t>(number * 64);
}

}  // namespace nofrag::test
