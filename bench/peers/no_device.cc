// No device: streams are numbers. With nofrag on its simulated driver the program then runs anywhere,
// which is how it is tested.
#include "peers/peer.h"

namespace nofrag::bench {

bool open_device(std::string* /*why*/) {
  return true;
}

void use_device() {}

std::vector<void*> make_streams(std::size_t count) {
  static std::vector<char> handles;
  handles.resize(count + 3);  // 0, 1 and 2 would be special streams, but nobody looks inside
  std::vector<void*> streams;
  for (std::size_t i = 0; i < count; ++i) {
    streams.push_back(&handles[i + 3]);
  }
  return streams;
}

std::uint64_t device_bytes_in_use() {
  return 0;
}

}  // namespace nofrag::bench
