/* Prints for each entry which library a way leads to. usage: where WAY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "ways.h"

static void show(way_function way, const char* symbol) {
  Dl_info info;
  void* address = way(symbol);
  const char* library = "-";
  if (address != NULL && dladdr(address, &info) != 0) {
    const char* slash = strrchr(info.dli_fname, '/');
    library = slash != NULL ? slash + 1 : info.dli_fname;
  }
  printf("%s %s\n", symbol, library);
}

int main(int count, char** words) {
  const way_function way = count == 2 ? way_named(words[1]) : NULL;
  if (way == NULL) {
    fprintf(stderr, "usage: where WAY\n");
    return 2;
  }
#define NOFRAG_HOOK(symbol) show(way, #symbol);
#define NOFRAG_RETRY(symbol, ...) show(way, #symbol);
#define NOFRAG_ACROSS(symbol, ...) show(way, #symbol);
#include ENTRIES
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
  return 0;
}
