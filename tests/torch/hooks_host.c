/* Stands for the Python interpreter: a C program that opens everything with RTLD_LOCAL.
 * usage: hooks_host LIBNOFRAG [LIBTORCH]   Without LIBTORCH there is no C++ runtime to throw in,
 * and a failed allocation can only be NULL. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* need(void* address, const char* what) {
  if (address == NULL) {
    fprintf(stderr, "hooks_host: %s: %s\n", what, dlerror());
    exit(2);
  }
  return address;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    return 2;
  }
  void* torch = argc > 2 ? need(dlopen(argv[2], RTLD_LAZY | RTLD_LOCAL), argv[2]) : NULL;
  void* nofrag = need(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), argv[1]);
  static const char* const kNames[] = {"nofrag_torch_alloc",
                                       "nofrag_torch_free",
                                       "nofrag_torch_begin_allocate_to_pool",
                                       "nofrag_torch_end_allocate_to_pool",
                                       "nofrag_torch_release_pool"};
  void* hooks[5];
  for (int i = 0; i < 5; ++i) {
    hooks[i] = need(dlsym(nofrag, kNames[i]), kNames[i]);
  }
  if (torch != NULL) {
    int (*run)(void**) =
        (int (*)(void**))need(dlsym(torch, "torch_double_run"), "torch_double_run");
    return run(hooks) == 0 ? 0 : 1;
  }
  void* (*alloc)(size_t, int, void*) = (void* (*)(size_t, int, void*))hooks[0];
  return alloc((size_t)100 << 20, 0, NULL) == NULL && alloc((size_t)1 << 20, 0, NULL) != NULL ? 0
                                                                                              : 1;
}
