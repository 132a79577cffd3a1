/* The loader's rules under our dlsym and dlopen, in a program that has no driver. Exit 0: they hold. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

const char* first_through_next(void);
const char* first_cu_through_next(void);
void* first_opens_target(void);

#define EXPECT(condition)                                     \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

int main(void) {
  /* RTLD_NEXT means what comes after the caller, a library of the program's. */
  EXPECT(first_through_next()[0] == '2');
  EXPECT(first_cu_through_next()[0] == '2');
  /* A library's own RUNPATH serves what it opens. */
  EXPECT(first_opens_target() != NULL);
  /* Whoever asks whether CUDA is there must not find us. */
  dlerror();
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
  EXPECT(dlerror() != NULL);
  EXPECT(dlsym(RTLD_NEXT, "cuMemAlloc_v2") == NULL && dlerror() != NULL);
  EXPECT(dlsym(RTLD_DEFAULT, "cuInit") == NULL && dlsym(RTLD_DEFAULT, "malloc") != NULL);
  EXPECT(dlopen("libno-such-library.so", RTLD_NOW) == NULL && dlerror() != NULL);
  EXPECT(dlopen("libno-such-library.so", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror() != NULL);
  void* self = dlopen(NULL, RTLD_NOW);
  EXPECT(self != NULL && dlsym(self, "main_symbol_that_is_not") == NULL);
  EXPECT(dlsym(self, "printf") != NULL && dlclose(self) == 0);
  return 0;
}
