/* A stand-in for libnofrag_torch_2_11.so: its entry points, and nothing behind them. */
#include <stdlib.h>

#define SHOWN __attribute__((visibility("default")))

static int installed = 0;

SHOWN const char* nofrag_torch_native_version(void) {
  return "2.11";
}

SHOWN int nofrag_torch_native_install(void) {
  if (getenv("NATIVE_DOUBLE_FAILS") != NULL) {
    return 1;
  }
  ++installed;
  return 0;
}

SHOWN int nofrag_torch_native_installed(void) {
  return installed;
}

SHOWN const char* nofrag_torch_native_error(void) {
  return "an allocator is\nin use already";
}
