/* Copies between memory of two GPUs, and between each and the host while the other is current. One line a finding, no
 * addresses: two runs, with and without the preload, must print the same. On the fake driver; on GPUs
 * tests/gpu/preload/across_devices.cu does more of it.
 *
 * usage: across WAY [late|how|at-once|elsewhere]     late: the second GPU's memory is allocated after the first copies;
 * at-once: by several threads; elsewhere: in streams of other contexts and of a third GPU; how: only over the fake driver
 * and under the preload: which of its calls the copies became. Exit 1: not those they should */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

#define MIB ((size_t)1 << 20)

static struct api cu;
static way_function way;
static CUcontext contexts[2];
static CUstream streams[2];
static CUdeviceptr blocks[2];
static const size_t size = 3 * MIB;

static void line(const char* what, long long value) {
  printf("%s: %lld\n", what, value);
}

#define CALL(symbol, parameters) ((CUresult(*) parameters)found(#symbol))

static void* found(const char* symbol) {
  void* address = way(symbol);
  if (address == NULL) {
    fprintf(stderr, "no %s\n", symbol);
    exit(3);
  }
  return address;
}

static void on(int device) {
  cu.set_current(contexts[device]);
}

/* Does the block of `device` hold that value, as its own device sees it? */
static int holds(int device, unsigned char value) {
  unsigned char bytes[2] = {0, 0};
  on(device);
  return cu.read(bytes, blocks[device], 1) == CUDA_SUCCESS &&
         cu.read(bytes + 1, blocks[device] + size - 1, 1) == CUDA_SUCCESS && bytes[0] == value &&
         bytes[1] == value;
}

static CUDA_MEMCPY3D box(int from, CUmemorytype type) {
  CUDA_MEMCPY3D wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.srcMemoryType = wanted.dstMemoryType = type;
  wanted.srcDevice = blocks[from];
  wanted.dstDevice = blocks[1 - from];
  wanted.WidthInBytes = wanted.srcPitch = wanted.dstPitch = 4096;
  wanted.Height = wanted.srcHeight = wanted.dstHeight = size / 4096 / 2;
  wanted.Depth = 2;
  return wanted;
}

static CUDA_MEMCPY2D rectangle(int from, CUmemorytype type) {
  CUDA_MEMCPY2D wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.srcMemoryType = wanted.dstMemoryType = type;
  wanted.srcDevice = blocks[from];
  wanted.dstDevice = blocks[1 - from];
  wanted.WidthInBytes = wanted.srcPitch = wanted.dstPitch = 4096;
  wanted.Height = size / 4096;
  return wanted;
}

enum { kCopies = 16 };

/* Copy number `which` of the block of `from` to the other one. */
static CUresult copy(int which, int from, int current) {
  CUdeviceptr to = blocks[1 - from];
  CUdeviceptr source = blocks[from];
  CUstream stream = streams[current];
  size_t bytes = size;
  CUDA_MEMCPY2D flat =
      rectangle(from, which % 2 == 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED);
  CUDA_MEMCPY3D deep = box(from, which % 2 == 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED);
  CUDA_MEMCPY3D_BATCH_OP operation;
  CUgraphNodeParams node;
  switch (which) {
    case 0:
      return CALL(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))(to, source, size);
    case 1:
      return CALL(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))(
          to, source, size, stream);
    case 2:
      return CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))(to, source, size);
    case 3:
      return CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))(
          to, source, size, stream);
    case 4:
    case 5:
      return CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D*))(&flat);
    case 6:
      return CALL(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D*))(&flat);
    case 7:
      return CALL(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D*, CUstream))(&flat, stream);
    case 8:
    case 9:
      return CALL(cuMemcpy3D_v2, (const CUDA_MEMCPY3D*))(&deep);
    case 10:
    case 11:
      return CALL(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D*, CUstream))(&deep, stream);
    case 12:
      return CALL(cuMemcpyBatchAsync_v2,
                  (CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t, CUstream))(
          &to, &source, &bytes, 1, NULL, NULL, 0, stream);
    case 13:
      memset(&operation, 0, sizeof operation);
      operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
      operation.src.op.ptr.ptr = source;
      operation.dst.op.ptr.ptr = to;
      operation.extent.width = size;
      operation.extent.height = operation.extent.depth = 1;
      return CALL(cuMemcpy3DBatchAsync_v2,
                  (size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream))(
          1, &operation, 0, stream);
    case 14:
      return CALL(
          cuGraphAddMemcpyNode,
          (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_MEMCPY3D*, CUcontext))(
          NULL, NULL, NULL, 0, &deep, contexts[current]);
    default:
      memset(&node, 0, sizeof node);
      node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
      node.memcpy.copyCtx = contexts[current];
      node.memcpy.copyParams = deep;
      return CALL(
          cuGraphAddNode_v2,
          (CUgraphNode*, CUgraph, const CUgraphNode*, const void*, size_t, CUgraphNodeParams*))(
          NULL, NULL, NULL, NULL, 0, &node);
  }
}

static void allocate(int device) {
  on(device);
  line("alloc", cu.alloc(&blocks[device], size));
}

/* The first copy that is refused lets the GPUs in, so each gets blocks of its own, after a reset. */
static void again(int late) {
  for (int device = 0; device < 2; ++device) {
    cu.reset(device);
    line("retain", cu.retain(&contexts[device], device));
    on(device);
    line("stream", cu.stream_create(&streams[device], CU_STREAM_NON_BLOCKING));
    if (device == 0 || !late) {
      allocate(device);
    }
  }
  if (late) {
    unsigned char byte = 0;
    on(1);
    line("read while the other is current", cu.read(&byte, blocks[0], 1));
    allocate(1);
  }
}

static void between(int which, int from, int current, int captured) {
  on(from);
  cu.fill(blocks[from], (unsigned char)(3 + which), size);
  on(1 - from);
  cu.fill(blocks[1 - from], 1, size);
  on(current);
  CUgraph graph = NULL;
  if (captured) {
    line("begin", cu.begin_capture(streams[current], CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  printf(
      "copy %d from %d, current %d: %d\n", which, from, current, (int)copy(which, from, current));
  if (captured) {
    line("end", cu.end_capture(streams[current], &graph));
  }
  line("arrived", holds(1 - from, (unsigned char)(3 + which)));
}

static void with_the_host(int device) {
  static unsigned char host[3 * MIB];
  on(1 - device);
  memset(host, 9, size);
  line("to the device",
       CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))(blocks[device], host, size));
  line("arrived", holds(device, 9));
  on(1 - device);
  memset(host, 11, size);
  line("to the device, stream",
       CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))(
           blocks[device], host, size, streams[device]));
  line("arrived", holds(device, 11));
  on(1 - device);
  line("to the host",
       CALL(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))(
           host, blocks[device], size, streams[1 - device]));
  line("byte", host[size - 1]);
  line("nowhere", cu.read(host, 0x10, 1));
}

/* How often the fake driver's entry was called. */
static unsigned long calls(const char* entry) {
  unsigned long (*count)(const char*) = NULL;
  *(void**)&count = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_calls");
  return count != NULL ? count(entry) : 0;
}

/* What the default streams were given since it was last asked. */
static const char* order(void) {
  const char* (*given)(void) = NULL;
  *(void**)&given = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_order");
  return given != NULL ? given() : "";
}

struct counts {
  unsigned long access, peer, peer_async, records, waits, synchronizes;
};

static struct counts counted(void) {
  order();
  const struct counts now = {calls("cuMemSetAccess"),
                             calls("cuMemcpyPeer"),
                             calls("cuMemcpyPeerAsync"),
                             calls("cuEventRecord"),
                             calls("cuStreamWaitEvent"),
                             calls("cuCtxSynchronize")};
  return now;
}

/* Since `before` so many more of each; access < 0: at least one more. `in_order`: what the default streams were given
 * ("0>1": device 1's waits for what device 0's was given until then); NULL: whatever. */
static void expect(const char* what,
                   struct counts before,
                   int peer,
                   int peer_async,
                   int fences,
                   int access,
                   const char* in_order) {
  char seen[200];
  snprintf(seen, sizeof seen, "%s", order());
  const struct counts now = counted();
  const unsigned long given = now.access - before.access;
  if (now.peer - before.peer != (unsigned long)peer ||
      now.peer_async - before.peer_async != (unsigned long)peer_async ||
      now.records - before.records != (unsigned long)fences ||
      now.waits - before.waits != (unsigned long)fences ||
      now.synchronizes != before.synchronizes ||
      (access < 0 ? given == 0 : given != (unsigned long)access) ||
      (in_order != NULL && strcmp(seen, in_order) != 0)) {
    fprintf(stderr,
            "%s: %lu named, %lu of them in streams, %lu and %lu events, access given %lu times, "
            "waited %lu times; in order: %s\n",
            what,
            now.peer - before.peer,
            now.peer_async - before.peer_async,
            now.records - before.records,
            now.waits - before.waits,
            given,
            now.synchronizes - before.synchronizes,
            seen);
    exit(1);
  }
}

static void how(void) {
  static unsigned char host[3 * MIB];
  CUDA_MEMCPY2D flat;
  CUgraph graph = NULL;
  again(0);
  on(0);
  struct counts before = counted();
  line("copy", copy(2, 0, 0));
  expect("between, default stream", before, 1, 0, 0, 0, "");
  before = counted();
  line("copy", copy(3, 0, 0));
  expect("between, in a stream", before, 0, 1, 0, 0, "");
  before = counted();
  on(1);
  line("copy",
       CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))(blocks[0], blocks[0] + MIB, MIB));
  expect("on the other", before, 1, 0, 0, 0, "");
  on(0);
  before = counted();
  line("copy",
       CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))(blocks[0], blocks[0] + MIB, MIB));
  expect("at home", before, 0, 0, 0, 0, "copy 0 ");
  before = counted();
  line("copy", CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))(blocks[1], host, size));
  expect("to the other, default stream", before, 0, 0, 2, 0, "0>1 copy 1 1>0 ");
  before = counted();
  line("copy",
       CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))(
           blocks[1], host, size, streams[0]));
  expect("to the other, in a stream", before, 0, 0, 0, -1, "");
  flat = rectangle(0, CU_MEMORYTYPE_DEVICE);
  before = counted();
  line("copy", CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D*))(&flat));
  expect("a rectangle between", before, 0, 0, 2, -1, "1>0 copy 0 0>1 ");
  before = counted();
  line("copy", CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D*))(&flat)); /* with access, too, in order */
  expect("another", before, 0, 0, 2, 0, "1>0 copy 0 0>1 ");
  again(0);
  on(0);
  before = counted();
  line("begin", cu.begin_capture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  line("copy", CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))(blocks[1], host, size));
  expect("to the other, while another stream is captured", before, 0, 0, 2, 0, "0>1 copy 1 1>0 ");
  before = counted();
  line("copy", copy(3, 0, 0));
  line("end", cu.end_capture(streams[0], &graph));
  expect("between, captured", before, 0, 0, 0, -1, "");
  before = counted();
  line("copy", copy(2, 0, 0));
  expect("between, with access", before, 1, 0, 0, 0, "");
  CUDA_MEMCPY3D deep = box(0, CU_MEMORYTYPE_DEVICE);
  again(0);
  on(0);
  before = counted();
  for (int node = 12; node < kCopies; ++node) {
    line("copy", copy(node, 0, 0));
  }
  line("node", CALL(cuGraphMemcpyNodeSetParams, (CUgraphNode, const CUDA_MEMCPY3D*))(NULL, &deep));
  line("node",
       CALL(cuGraphExecMemcpyNodeSetParams,
            (CUgraphExec, CUgraphNode, const CUDA_MEMCPY3D*, CUcontext))(
           NULL, NULL, &deep, contexts[0]));
  expect("batches and nodes", before, 0, 0, 0, -1, NULL);
  /* Nobody tells on which GPU an array lies: refused at home, it may be on any. */
  void (*fail)(const char*, unsigned long, int) = NULL;
  *(void**)&fail = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_fail");
  again(0);
  on(0);
  before = counted();
  fail("cuMemcpyDtoA_v2", 1, CUDA_ERROR_INVALID_VALUE);
  line("array",
       CALL(cuMemcpyDtoA_v2, (CUarray, size_t, CUdeviceptr, size_t))(NULL, 0, blocks[0], MIB));
  expect("to an array", before, 0, 0, 0, -1, NULL);
}

/* Threads whose first copies are refused at the same time. */
static pthread_barrier_t together;

static void* copy_in_a_stream(void* given) {
  static unsigned char host[64 * 1024];
  CUresult* result = given;
  on(1);
  pthread_barrier_wait(&together);
  *result = CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))(
      blocks[0], host, sizeof host, streams[1]);
  return NULL;
}

static void at_once(void) {
  enum { kThreads = 8, kRounds = 30 };
  for (int round = 0; round < kRounds; ++round) {
    pthread_t threads[kThreads];
    CUresult results[kThreads];
    again(0);
    pthread_barrier_init(&together, NULL, kThreads);
    for (int i = 0; i < kThreads; ++i) {
      pthread_create(&threads[i], NULL, copy_in_a_stream, &results[i]);
    }
    int refused = 0;
    for (int i = 0; i < kThreads; ++i) {
      pthread_join(threads[i], NULL);
      refused += results[i] != CUDA_SUCCESS;
    }
    pthread_barrier_destroy(&together);
    line("refused", refused);
  }
}

/* Streams of contexts that are not primary, streams of a third device, and a copy in an exit handler. */
static void elsewhere(void) {
  static unsigned char host[64 * 1024];
  CUcontext own = NULL;
  CUcontext third = NULL;
  CUstream stream = NULL;
  CUgraph graph = NULL;
  again(0);
  line("context", cu.context_create(&own, 0, 1));
  line("stream", cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  on(0);
  line("its stream",
       CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))(
           blocks[0], host, sizeof host, stream));
  line("destroy", cu.context_destroy(own));
  again(0);
  line("third", cu.retain(&third, 2));
  cu.set_current(third);
  line("stream", cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  on(0);
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  line("captured on the third",
       CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))(
           blocks[1], host, sizeof host, stream));
  line("end", cu.end_capture(stream, &graph));
}

static void at_exit(void) {
  unsigned char byte = 0;
  on(0);
  line("at exit", cu.read(&byte, blocks[1], 1));
}

int main(int count, char** words) {
  if (count < 2 || (way = way_named(words[1])) == NULL) {
    fprintf(stderr, "usage: across WAY [late]\n");
    return 2;
  }
  const int late = count > 2 && strcmp(words[2], "late") == 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  load_api(&cu, words[1]);
  line("init", cu.init(0));
  if (count > 2 && !late) {
    (strcmp(words[2], "how") == 0 ? how : strcmp(words[2], "at-once") == 0 ? at_once : elsewhere)();
    return 0;
  }
  atexit(at_exit);
  for (int which = 0; which < kCopies; ++which) {
    again(late);
    between(which, which % 2, which / 2 % 2, which == 1 || which == 7);
    between(which, 1 - which % 2, which / 2 % 2, 0);
  }
  for (int device = 0; device < 2; ++device) {
    again(late);
    with_the_host(device);
  }
  on(1);
  line("free", cu.free(blocks[0]));
  return 0;
}
