/* Blocks of cuMemAllocAsync that outlive their context. usage: ended WAY MODE
 * MODE: reset release before captures many broken exit threads fork
 *
 * They are freed late, once each, by when others are in use: reset, release, before (for a GPU, too), captures, many,
 * broken and exit print a line a finding, the same with and without the preload. broken, threads, fork: only over the
 * fake driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "ends.h"

#define MIB ((size_t)1 << 20)
#define BLOCKS 6
static const size_t sizes[BLOCKS] = {MIB, 1000, 40 * MIB, 5 * MIB, 600, 3 * MIB};

/* The same sizes in the same order: what is given out from addresses that were given back comes where it was. */
static void take_blocks(CUdeviceptr* blocks, int first_byte) {
  for (int i = 0; i < BLOCKS; ++i) {
    MUST(cu.alloc_async(&blocks[i], sizes[i], NULL) == CUDA_SUCCESS);
    MUST(cu.fill(blocks[i], (unsigned char)(first_byte + i), sizes[i]) == CUDA_SUCCESS);
  }
  MUST(cu.synchronize() == CUDA_SUCCESS);
}

static int bytes_are(CUdeviceptr pointer, size_t size, int value) {
  for (size_t at = 0; at < size; at += size / 5) {
    unsigned char byte = 0;
    if (cu.read(&byte, pointer + at, 1) != CUDA_SUCCESS || byte != value) {
      return 0;
    }
  }
  return 1;
}

static void free_late(CUdeviceptr pointer, int in_a_stream) {
  line("free inside", cu.free(pointer + 512));
  line("free late", in_a_stream ? cu.free_async(pointer, NULL) : cu.free(pointer));
  line("free again", cu.free(pointer));
  line("free again in a stream", cu.free_async(pointer, NULL));
}

static void ask_of(CUdeviceptr pointer) {
  CUdeviceptr base = 0;
  size_t size = 0;
  int type = 0;
  line("range", cu.range(&base, &size, pointer));
  line("type", cu.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
}

static void outlive(const char* how) {
  CUdeviceptr old[2][BLOCKS];
  CUdeviceptr fresh[BLOCKS];
  CUdeviceptr more[BLOCKS];
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr plain = 0;
    take_blocks(old[round], 10 * round);
    line("alloc", cu.alloc(&plain, MIB));
    line(how, end(how));
    line("free in the ended context", cu.free(old[round][0]));
    line("free in it in a stream", cu.free_async(old[round][0], NULL));
    cu.set_current(NULL);
    line("free in no context in a stream", cu.free_async(old[round][0], NULL));
    line("free in no context", cu.free(old[round][0]));
    line("context", begin_again(how));
    line("free again", cu.free(old[round][0]));
    line("free of what ended", cu.free(plain));
    line("free of it in a stream", cu.free_async(plain, NULL));
    ask_of(plain);
  }
  take_blocks(fresh, 100);
  for (int i = 1; i < BLOCKS; ++i) {
    free_late(old[0][i], i % 2);
    free_late(old[1][i], i % 3 == 0);
  }
  take_blocks(more, 200); /* where a block that was freed by mistake would be */
  for (int i = 0; i < BLOCKS; ++i) {
    CUdeviceptr base = 0;
    size_t size = 0;
    line("range", cu.range(&base, &size, fresh[i] + sizes[i] / 2));
    line("its begin", base == fresh[i]);
    line("bytes as written", bytes_are(fresh[i], sizes[i], 100 + i));
    line("free", cu.free_async(fresh[i], NULL));
    line("wait", cu.synchronize());
    line("free again", cu.free_async(fresh[i], NULL));
    line("more: bytes as written", bytes_are(more[i], sizes[i], 200 + i));
    line("more: free", cu.free(more[i]));
  }
}

/* What was freed before the end is not freed late. */
static void freed_before(void) {
  CUdeviceptr blocks[BLOCKS];
  take_blocks(blocks, 1);
  for (int i = 0; i + 1 < BLOCKS; ++i) {
    line("free", cu.free_async(blocks[i], NULL));
  }
  line("reset", cu.reset(0));
  line("context", take_context());
  for (int i = 0; i < BLOCKS; ++i) {
    free_late(blocks[i], i % 2);
  }
}

/* A program that resets a context in which calls fail, to mend it; nofrag has given up by then. */
static void broken(void) {
  enum { FAULTS = 64 };
  void (*fail)(const char*, unsigned long, int) = NULL;
  unsigned long long (*held)(int) = NULL;
  unsigned long (*violations)(void) = NULL;
  CUdeviceptr blocks[BLOCKS];
  CUdeviceptr plain = 0;
  CUdeviceptr more = 0;
  *(void**)&fail = dlsym(RTLD_DEFAULT, "fake_cuda_fail");
  *(void**)&held = dlsym(RTLD_DEFAULT, "fake_cuda_physical_in_use");
  *(void**)&violations = dlsym(RTLD_DEFAULT, "fake_cuda_violations");
  MUST(fail != NULL && held != NULL && violations != NULL);
  take_blocks(blocks, 1);
  line("alloc", cu.alloc(&plain, 5 * MIB));
  for (int i = 0; i < FAULTS; ++i) {
    fail("cuMemCreate", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  line("alloc", cu.alloc(&more, 200 * MIB));
  const unsigned long long before = held(0);
  line("reset", cu.reset(0));
  line("the plain ones went", held(0) + 205 * MIB <= before);
  line("context", take_context());
  line("free of what ended", cu.free(plain));
  line("free of the other", cu.free(more));
  for (int i = 0; i < BLOCKS; ++i) {
    free_late(blocks[i], i % 2);
  }
  line("held", (long long)held(0));
  line("alloc", cu.alloc(&plain, MIB));
  line("free", cu.free(plain));
  line("violations", (long long)violations());
}

static void captures(void) {
  CUdeviceptr blocks[BLOCKS];
  CUstream stream = NULL;
  CUstream other = NULL;
  CUgraph graph = NULL;
  take_blocks(blocks, 1);
  line("reset", cu.reset(0));
  line("context", take_context());
  MUST(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  MUST(cu.stream_create(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  line("free in the graph", cu.free_async(blocks[0], stream));
  line("free beside it", cu.free_async(blocks[0], other));
  line("free again", cu.free_async(blocks[0], other));
  line("free", cu.free(blocks[1]));
  line("free again", cu.free(blocks[1]));
  line("end", cu.end_capture(stream, &graph));
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  line("free where it is not allowed", cu.free(blocks[2]));
  line("end", cu.end_capture(stream, &graph));
  line("free", cu.free(blocks[2]));
  line("free again", cu.free(blocks[2]));
  /* Freed in a capture that ends with its context: freed. */
  take_blocks(blocks, 1);
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  line("free", cu.free(blocks[3]));
  line("reset", cu.reset(0));
  line("context", take_context());
  line("free again", cu.free(blocks[3]));
  line("free of another", cu.free(blocks[4]));
}

/* More contexts than the preload keeps addresses for. */
static void many(void) {
  enum { ROUNDS = 20 };
  CUdeviceptr old[ROUNDS][BLOCKS];
  for (int round = 0; round < ROUNDS; ++round) {
    take_blocks(old[round], 1);
    line("reset", cu.reset(0));
    line("context", take_context());
  }
  CUdeviceptr fresh[BLOCKS];
  take_blocks(fresh, 100);
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < BLOCKS; ++i) {
      line("free late", i % 2 == 0 ? cu.free(old[round][i]) : cu.free_async(old[round][i], NULL));
      line("free again", cu.free(old[round][i]));
    }
  }
  for (int i = 0; i < BLOCKS; ++i) {
    line("bytes as written", bytes_are(fresh[i], sizes[i], 100 + i));
    line("free", cu.free(fresh[i]));
  }
}

static CUdeviceptr left;

static void free_at_exit(void) {
  line("free at exit", cu.free(left));
  line("free again", cu.free(left));
}

static void at_exit(void) {
  MUST(cu.alloc_async(&left, MIB, NULL) == CUDA_SUCCESS);
  line("reset", cu.reset(0));
  line("context", take_context());
}

/* Of all who free a block late at the same time, one is told that he did. */
enum { THREADS = 4, RACED = 300 };
static CUdeviceptr raced[RACED];
static int freed_by[THREADS];

static void* free_all(void* number) {
  const int i = *(const int*)number;
  MUST(take_context() == CUDA_SUCCESS);
  for (int k = 0; k < RACED; ++k) {
    const int result = (i + k) % 2 == 0 ? cu.free(raced[k]) : cu.free_async(raced[k], NULL);
    MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    freed_by[i] += result == CUDA_SUCCESS;
  }
  return NULL;
}

static void threads(void) {
  static const int numbers[THREADS] = {0, 1, 2, 3};
  pthread_t workers[THREADS];
  for (int round = 0; round < 10; ++round) {
    int freed = 0;
    for (int k = 0; k < RACED; ++k) {
      MUST(cu.alloc_async(&raced[k], 1000, NULL) == CUDA_SUCCESS);
    }
    MUST(cu.reset(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
    for (int i = 0; i < THREADS; ++i) {
      freed_by[i] = 0;
      MUST(pthread_create(&workers[i], NULL, free_all, (void*)&numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; ++i) {
      pthread_join(workers[i], NULL);
      freed += freed_by[i];
    }
    MUST(freed == RACED);
  }
}

/* The child's calls are the driver's; what it does changes nothing here. */
static void forks(void) {
  CUdeviceptr p = 0;
  int status = 1;
  MUST(cu.alloc_async(&p, MIB, NULL) == CUDA_SUCCESS);
  MUST(cu.reset(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    _exit(cu.free(p) != CUDA_SUCCESS && cu.free_async(p, NULL) != CUDA_SUCCESS ? 0 : 1);
  }
  MUST(waitpid(child, &status, 0) == child && status == 0);
  MUST(cu.free(p) == CUDA_SUCCESS && cu.free(p) == CUDA_ERROR_INVALID_VALUE);
}

int main(int count, char** words) {
  const char* const what = count == 3 ? words[2] : "";
  if (strcmp(what, "exit") == 0) {
    atexit(free_at_exit);
  }
  if (count == 3) {
    load_api(&cu, words[1]);
    MUST(cu.init(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
  }
  if (strcmp(what, "reset") == 0 || strcmp(what, "release") == 0) {
    outlive(what);
  } else if (strcmp(what, "before") == 0) {
    freed_before();
  } else if (strcmp(what, "broken") == 0) {
    broken();
  } else if (strcmp(what, "captures") == 0) {
    captures();
  } else if (strcmp(what, "many") == 0) {
    many();
  } else if (strcmp(what, "exit") == 0) {
    at_exit();
  } else if (strcmp(what, "threads") == 0) {
    threads();
  } else if (strcmp(what, "fork") == 0) {
    forks();
  } else {
    fprintf(stderr,
            "usage: ended WAY reset|release|before|captures|many|broken|exit|threads|fork\n");
    return 2;
  }
  return 0;
}
