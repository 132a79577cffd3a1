#include "base/object_pool.h"

#include <sys/mman.h>

namespace nofrag {

void* map_host_pages(std::size_t bytes) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

void unmap_host_pages(void* address, std::size_t bytes) {
  ::munmap(address, bytes);
}

}  // namespace nofrag
