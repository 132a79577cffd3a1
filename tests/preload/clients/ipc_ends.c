/* Blocks shared by legacy IPC, and the end of a context. usage: ipc_ends WAY reset|release|exporter|failures|threads
 *
 * The parent exports three blocks and its child opens them. reset, release: the child's context ends so while it has
 * them open; exporter: the parent's does, before the child opens them. failures, threads: only over the fake driver
 * (failing calls; other threads that open and close meanwhile). One line a finding. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "ends.h"

#define BLOCKS 3
static const size_t sizes[BLOCKS] = {(size_t)5 << 20, 1000, (size_t)40 << 20};

static CUipcMemHandle handles[BLOCKS];
static CUdeviceptr blocks[BLOCKS];

static int open_block(CUdeviceptr* pointer, int i) {
  return cu.ipc_open(pointer, handles[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* What the block's first byte holds; below 0: it cannot be read. */
static int byte_of(CUdeviceptr pointer) {
  unsigned char byte = 0;
  const int result = cu.read(&byte, pointer, 1);
  return result == CUDA_SUCCESS ? byte : -result;
}

static void open_all(void) {
  for (int i = 0; i < BLOCKS; ++i) {
    line("open", open_block(&blocks[i], i));
    line("byte", byte_of(blocks[i]));
  }
}

static void show_ended(void) {
  for (int i = 0; i < BLOCKS; ++i) {
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned type = 0;
    line("range", cu.range(&base, &size, blocks[i]));
    line("attribute", cu.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, blocks[i]));
    line("read", byte_of(blocks[i]));
    line("free", cu.free(blocks[i]));
    line("free in a stream", cu.free_async(blocks[i], NULL));
    line("close", cu.ipc_close(blocks[i]));
    line("close again", cu.ipc_close(blocks[i]));
  }
}

/* Twice: what the first end left behind would be found by the second. */
static void importer_ends(const char* how) {
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr again = 0;
    open_all();
    line("open again", open_block(&again, 0));
    line("same place", again == blocks[0]);
    line("write", cu.fill(blocks[2], 44, sizes[2])); /* not waited for */
    line(how, end(how));
    line("close in the ended context", cu.ipc_close(blocks[0]));
    line("context", begin_again(how));
    show_ended();
    open_all();
    for (int i = 0; i < BLOCKS; ++i) {
      line("close", cu.ipc_close(blocks[i]));
      line("close again", cu.ipc_close(blocks[i]));
    }
    cu.set_current(NULL);
    line("close without a context", cu.ipc_close(blocks[0]));
    line("context", take_context());
    line("one hold less", cu.release(0)); /* of the two */
  }
}

/* ---- over the fake driver */

static void (*fail)(const char*, unsigned long, int);
static unsigned long long (*held)(int);
static unsigned long (*violations)(void);
static void (*slow_reset)(unsigned);

static int find_controls(void) {
  *(void**)&fail = dlsym(RTLD_DEFAULT, "fake_cuda_fail");
  *(void**)&held = dlsym(RTLD_DEFAULT, "fake_cuda_physical_in_use");
  *(void**)&violations = dlsym(RTLD_DEFAULT, "fake_cuda_violations");
  *(void**)&slow_reset = dlsym(RTLD_DEFAULT, "fake_cuda_slow_reset");
  return fail != NULL && slow_reset != NULL && held != NULL && violations != NULL;
}

static void must_open_all(void) {
  for (int i = 0; i < BLOCKS; ++i) {
    MUST(open_block(&blocks[i], i) == CUDA_SUCCESS && byte_of(blocks[i]) == 42 + i);
  }
}

/* A context ends although it cannot be waited for, or its imports not unmapped: they end with it, and nothing stays. */
static void failures(void) {
  static const struct {
    const char* name;
    unsigned long nth;
  } steps[] = {
      {"cuCtxSynchronize", 1}, {"cuMemUnmap", 1}, {"cuMemUnmap", 2}, {"cuMemAddressFree", 1}};
  static const char* const ways[] = {"reset", "release"};
  const unsigned long long before = held(0);
  for (size_t i = 0; i < 2 * sizeof steps / sizeof steps[0]; ++i) {
    must_open_all();
    MUST(held(0) > before && cu.fill(blocks[2], 44, sizes[2]) == CUDA_SUCCESS);
    fail(steps[i / 2].name, steps[i / 2].nth, CUDA_ERROR_UNKNOWN);
    MUST(end(ways[i % 2]) == CUDA_SUCCESS && held(0) == before);
    MUST(begin_again(ways[i % 2]) == CUDA_SUCCESS);
    MUST(cu.ipc_close(blocks[0]) == CUDA_ERROR_INVALID_VALUE);
  }
  /* Closed during a capture, which ends with the context: mapped until then, and no longer counted after it. */
  CUstream stream = NULL;
  CUdeviceptr p = 0;
  must_open_all();
  MUST(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  MUST(cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  MUST(cu.ipc_close(blocks[0]) == CUDA_SUCCESS && cu.ipc_close(blocks[0]) != CUDA_SUCCESS);
  MUST(end("reset") == CUDA_SUCCESS && held(0) == before && take_context() == CUDA_SUCCESS);
  must_open_all();
  for (int i = 0; i < BLOCKS; ++i) {
    MUST(cu.ipc_close(blocks[i]) == CUDA_SUCCESS);
  }
  MUST(held(0) == before && cu.alloc(&p, 1000) == CUDA_SUCCESS && cu.free(p) == CUDA_SUCCESS);
  MUST(violations() == 0);
}

enum { THREADS = 3, ROUNDS = 60 };

static void* close_all(void* unused) {
  (void)unused;
  MUST(take_context() == CUDA_SUCCESS);
  for (int i = 0; i < BLOCKS; ++i) {
    cu.ipc_close(blocks[i]); /* before the reset or after it */
  }
  MUST(cu.release(0) == CUDA_SUCCESS);
  return NULL;
}

static int over; /* atomic */

static void* open_and_close(void* number) {
  const int i = *(const int*)number;
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
    CUdeviceptr pointer = 0;
    size_t size = 0;
    MUST(take_context() == CUDA_SUCCESS);
    if (open_block(&pointer, i) == CUDA_SUCCESS) {
      cu.range(NULL, &size, pointer);
      cu.ipc_close(pointer);
    }
    cu.release(0);
  }
  return NULL;
}

static void* open_late(void* context) {
  CUdeviceptr pointer = 0;
  MUST(cu.set_current(context) == CUDA_SUCCESS);
  usleep(20 * 1000);
  MUST(open_block(&pointer, 0) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return NULL;
}

/* Who opens while a context ends gets nothing in it. */
static void open_during_the_end(void) {
  pthread_t worker;
  CUcontext context = NULL;
  MUST(cu.get_current(&context) == CUDA_SUCCESS);
  slow_reset(100);
  MUST(pthread_create(&worker, NULL, open_late, context) == 0);
  MUST(cu.reset(0) == CUDA_SUCCESS);
  pthread_join(worker, NULL);
  slow_reset(0);
  MUST(take_context() == CUDA_SUCCESS);
}

/* Closings and openings on other threads while contexts end; after it, imports are as ever and nothing is left. */
static void threads(void) {
  pthread_t workers[THREADS];
  static const int numbers[THREADS] = {0, 1, 2};
  const unsigned long long before = held(0);
  must_open_all();
  open_during_the_end();
  MUST(held(0) == before);
  for (int round = 0; round < ROUNDS; ++round) {
    must_open_all();
    MUST(pthread_create(&workers[0], NULL, close_all, NULL) == 0);
    MUST(cu.reset(0) == CUDA_SUCCESS);
    pthread_join(workers[0], NULL);
    MUST(take_context() == CUDA_SUCCESS);
    MUST(held(0) == before && cu.ipc_close(blocks[0]) == CUDA_ERROR_INVALID_VALUE);
  }
  for (int i = 0; i < THREADS; ++i) {
    MUST(pthread_create(&workers[i], NULL, open_and_close, (void*)&numbers[i]) == 0);
  }
  for (int round = 0; round < ROUNDS; ++round) {
    MUST(cu.reset(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
    usleep(500);
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(workers[i], NULL);
  }
  MUST(cu.reset(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS && held(0) == before);
  must_open_all();
  MUST(end("reset") == CUDA_SUCCESS && held(0) == before && violations() == 0);
}

/* ---- the two processes */

static void move(ssize_t moved, size_t size) {
  MUST(moved == (ssize_t)size);
}

static int child(const char* what, int from, int to) {
  char dropped = 0;
  move(read(from, handles, sizeof handles), sizeof handles);
  MUST(cu.init(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
  if (strcmp(what, "exporter") == 0) {
    open_all();
    for (int i = 0; i < BLOCKS; ++i) {
      line("close", cu.ipc_close(blocks[i]));
    }
    move(write(to, "o", 1), 1);
    move(read(from, &dropped, 1), 1);
    for (int i = 0; i < BLOCKS; ++i) {
      line("open what ended", open_block(&blocks[i], i) != CUDA_SUCCESS);
    }
    move(read(from, handles, sizeof handles), sizeof handles);
    open_all();
  } else if (strcmp(what, "failures") == 0 || strcmp(what, "threads") == 0) {
    MUST(find_controls());
    (strcmp(what, "threads") == 0 ? threads : failures)();
  } else {
    importer_ends(what);
  }
  return 0;
}

static void export_all(int to) {
  CUdeviceptr mine[BLOCKS];
  for (int i = 0; i < BLOCKS; ++i) {
    MUST(cu.alloc(&mine[i], sizes[i]) == CUDA_SUCCESS);
    MUST(cu.fill(mine[i], (unsigned char)(42 + i), sizes[i]) == CUDA_SUCCESS);
    MUST(cu.synchronize() == CUDA_SUCCESS && cu.ipc_get(&handles[i], mine[i]) == CUDA_SUCCESS);
  }
  move(write(to, handles, sizeof handles), sizeof handles);
}

int main(int count, char** words) {
  if (count < 3) {
    fprintf(stderr, "usage: ipc_ends WAY reset|release|exporter|failures|threads\n");
    return 2;
  }
  load_api(&cu, words[1]);
  if (count == 5) {
    return child(words[2], atoi(words[3]), atoi(words[4]));
  }
  int there[2];
  int back[2];
  MUST(pipe(there) == 0 && pipe(back) == 0);
  const pid_t pid = vfork(); /* before this process touches the driver */
  if (pid == 0) {
    char from[16];
    char to[16];
    snprintf(from, sizeof from, "%d", there[0]);
    snprintf(to, sizeof to, "%d", back[1]);
    execl("/proc/self/exe", words[0], words[1], words[2], from, to, (char*)NULL);
    _exit(127);
  }
  close(there[0]);
  close(back[1]);
  MUST(cu.init(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
  export_all(there[1]);
  char opened = 0;
  if (strcmp(words[2], "exporter") == 0 && read(back[0], &opened, 1) == 1) {
    MUST(cu.reset(0) == CUDA_SUCCESS && take_context() == CUDA_SUCCESS);
    move(write(there[1], "d", 1), 1);
    export_all(there[1]);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  line("child's status", status);
  return status == 0 ? 0 : 1;
}
