/* What the clients share whose contexts end and begin again: the context, and how they tell what they find.
 * Layer: tests. Included by one file of a program, as the last header. Threads: any. Failure: check ends the program with 4. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

static struct api cu;

/* A finding; at once, since the program may be killed or fork. */
static void line(const char* what, long long value) {
  printf("%s: %lld\n", what, value);
  fflush(stdout);
}

static void check(int good, const char* what) {
  if (!good) {
    fprintf(stderr, "not so: %s\n", what);
    exit(4);
  }
}
#define MUST(condition) check(condition, #condition)

static int take_context(void) {
  CUcontext context = NULL;
  const int result = cu.retain(&context, 0);
  return result != CUDA_SUCCESS ? result : (int)cu.set_current(context);
}

static int end(const char* how) {
  return strcmp(how, "reset") == 0 ? cu.reset(0) : cu.release(0);
}

/* One hold on the context as before: a reset leaves the old one. */
static int begin_again(const char* how) {
  const int result = take_context();
  return result == CUDA_SUCCESS && strcmp(how, "reset") == 0 ? (int)cu.release(0) : result;
}
