// The headers from C++11: they compile without warnings and every call is noexcept.
#include <nofrag/headroom.h>
#include <nofrag/nofrag.h>

static_assert(noexcept(nofrag_malloc(1, 0, nullptr)), "the edge is noexcept");
static_assert(noexcept(nofrag_free(nullptr)), "the edge is noexcept");

int main() {
  nofrag_config config = NOFRAG_CONFIG_INIT;
  config.conf = "driver:sim:h100-80g";
  if (nofrag_init(&config) != NOFRAG_OK) {
    return 1;
  }
  void* block = nofrag_malloc(4096, 0, nullptr);
  return block != nullptr && nofrag_free(block) == NOFRAG_OK ? 0 : 1;
}
