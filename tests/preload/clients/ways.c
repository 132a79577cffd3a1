#define _GNU_SOURCE
#include "ways.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void* next_symbol(const char* name);

/* Weak: a driver library may be older than the list. */
#define NOFRAG_HOOK(symbol) \
  extern const char linked_##symbol[] __asm__(#symbol) __attribute__((weak));
#define NOFRAG_RETRY(symbol, ...) \
  extern const char linked_##symbol[] __asm__(#symbol) __attribute__((weak));
#define NOFRAG_ACROSS(symbol, ...) \
  extern const char linked_##symbol[] __asm__(#symbol) __attribute__((weak));
#include ENTRIES
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS

static void* by_link(const char* symbol) {
  static const struct {
    const char* name;
    const char* address;
  } linked[] = {
#define NOFRAG_HOOK(symbol) {#symbol, linked_##symbol},
#define NOFRAG_RETRY(symbol, ...) {#symbol, linked_##symbol},
#define NOFRAG_ACROSS(symbol, ...) {#symbol, linked_##symbol},
#include ENTRIES
#undef NOFRAG_HOOK
#undef NOFRAG_RETRY
#undef NOFRAG_ACROSS
  };
  for (size_t i = 0; i < sizeof linked / sizeof linked[0]; ++i) {
    if (strcmp(linked[i].name, symbol) == 0) {
      return (void*)(size_t)linked[i].address;
    }
  }
  return NULL;
}

static void* driver(void) {
  return dlopen("libcuda.so.1", RTLD_NOW);
}

static void* by_dlsym(const char* symbol) {
  return dlsym(driver(), symbol);
}

static void* by_default(const char* symbol) {
  return dlsym(RTLD_DEFAULT, symbol);
}

static void* by_next(const char* symbol) {
  return next_symbol(symbol);
}

/* "cuMemAllocAsync_ptsz" is "cuMemAllocAsync" with flag 2, "cuMemcpy_ptds" likewise; a version suffix is asked for by trying versions. */
void* find_by_proc_address(const char* symbol, int entry_version, int nested) {
  static const int versions[] = {
      13000, 12080, 12050, 12020, 12000, 11040, 11030, 11000, 10010, 10000, 7000, 4010, 3020, 2000};
  typedef int (*first)(const char*, void**, int, unsigned long long);
  typedef int (*second)(const char*, void**, int, unsigned long long, int*);
  void* entry = dlsym(driver(), entry_version == 1 ? "cuGetProcAddress" : "cuGetProcAddress_v2");
  if (nested) {
    ((second)entry)("cuGetProcAddress", &entry, 12000, 0, NULL);
  }
  char base[128];
  strncpy(base, symbol, sizeof base - 1);
  base[sizeof base - 1] = 0;
  unsigned long long flags = 0;
  char* suffix = strstr(base, "_pt");
  if (suffix != NULL) {
    *suffix = 0;
    flags = 2;
  }
  const size_t length = strlen(base);
  if (length > 3 && base[length - 3] == '_' && base[length - 2] == 'v') {
    base[length - 3] = 0;
  }
  void* wanted = by_dlsym(symbol);
  for (size_t i = 0; i < sizeof versions / sizeof versions[0]; ++i) {
    void* found = NULL;
    int status = 0;
    const int result = entry_version == 1
                           ? ((first)entry)(base, &found, versions[i], flags)
                           : ((second)entry)(base, &found, versions[i], flags, &status);
    if (result == 0 && found != NULL && found == wanted) {
      return found;
    }
  }
  return NULL;
}

static void* by_proc1(const char* symbol) {
  return find_by_proc_address(symbol, 1, 0);
}
static void* by_proc2(const char* symbol) {
  return find_by_proc_address(symbol, 2, 0);
}
static void* by_proc_nested(const char* symbol) {
  return find_by_proc_address(symbol, 2, 1);
}

static void* from_plugin(const char* symbol, int flags) {
  static void* plugin = NULL;
  typedef void* (*finder)(const char*);
  if (plugin == NULL) {
    plugin = dlopen(getenv("PRELOAD_PLUGIN"), RTLD_NOW | RTLD_LOCAL | flags);
    if (plugin == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      exit(3);
    }
  }
  finder find;
  *(void**)&find = dlsym(plugin, "plugin_symbol");
  return find(symbol);
}

static void* by_private(const char* symbol) {
  return from_plugin(symbol, 0);
}
static void* by_deepbind(const char* symbol) {
  return from_plugin(symbol, RTLD_DEEPBIND);
}

way_function way_named(const char* name) {
  static const struct {
    const char* name;
    way_function way;
  } ways[] = {{"link", by_link},
              {"dlsym", by_dlsym},
              {"default", by_default},
              {"next", by_next},
              {"proc1", by_proc1},
              {"proc2", by_proc2},
              {"proc-nested", by_proc_nested},
              {"private", by_private},
              {"deepbind", by_deepbind}};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
    if (strcmp(ways[i].name, name) == 0) {
      return ways[i].way;
    }
  }
  return NULL;
}

const char* usual_way(void) {
  const char* const way = getenv("PRELOAD_WAY");
  return way != NULL ? way : "dlsym";
}
