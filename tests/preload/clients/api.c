#define _GNU_SOURCE
#include "api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* must(void* address, const char* way, const char* symbol) {
  if (address == NULL) {
    fprintf(stderr, "%s does not find %s\n", way, symbol);
    exit(3);
  }
  return address;
}

void load_api(struct api* api, const char* name) {
  const way_function way = way_named(name);
  if (way == NULL) {
    fprintf(stderr, "there is no way %s\n", name);
    exit(3);
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
#define FIND(symbol, member, parameters) *(void**)&api->member = must(way(#symbol), name, #symbol);
  API_FUNCTIONS(FIND)
#undef FIND
#define FIND(symbol, member, parameters) \
  *(void**)&api->member = must(dlsym(library, #symbol), "the library", #symbol);
  API_PLAIN_FUNCTIONS(FIND)
#undef FIND
}
