// A C++ program without PyTorch: a failed allocation is a std::runtime_error of its own runtime.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "torch_plugin/hooks.h"

int main() {
  try {
    nofrag_torch_alloc(std::size_t{100} << 20, 0, nullptr);
  } catch (const std::runtime_error& error) {
    const char* start = "CUDA out of memory. Tried to allocate 100.00 MiB.";
    if (std::strncmp(error.what(), start, std::strlen(start)) == 0) {
      return 0;
    }
    std::fprintf(stderr, "message: %s\n", error.what());
  }
  return 1;
}
