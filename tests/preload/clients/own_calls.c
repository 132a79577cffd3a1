/* A program that calls nofrag itself, under the preload too: its first call starts nofrag, which looks for the driver through
 * the loader's functions that the preload stands before. */
#include <stdio.h>

#include <nofrag/nofrag.h>

int main(void) {
  void* block = nofrag_malloc(1 << 20, 0, NULL);
  const char* why = "";
  if (block == NULL) {
    nofrag_last_error(&why);
  }
  printf("allocated: %d %s\n", block != NULL, why);
  printf("freed: %d\n", (int)nofrag_free(block));
  return block == NULL;
}
