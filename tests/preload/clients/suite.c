/* What a program can see of cuMemAlloc and its relations, one line a finding, no addresses: two runs, with and
 * without the preload, must print the same. Runs on the fake driver and on a GPU.
 *
 * usage: suite WAY [GROUP...]     groups: see the table at the end; none = all but reset, release, second and peers */
#include <stdio.h>
#include <string.h>

#include "api.h"

#define MIB ((size_t)1 << 20)

static struct api cu;
static CUcontext context;

static void line(const char* what, long long value) {
  printf("%s: %lld\n", what, value);
}

static void start(void) {
  line("init", cu.init(0));
  line("retain", cu.retain(&context, 0));
  line("set current", cu.set_current(context));
}

static int bytes_are(CUdeviceptr pointer, size_t size, unsigned char value) {
  unsigned char read[64];
  const size_t at[] = {0, size / 2, size - sizeof read};
  for (int i = 0; i < 3; ++i) {
    const size_t begin = size < sizeof read ? 0 : at[i];
    const size_t count = size < sizeof read ? size : sizeof read;
    if (cu.read(read, pointer + begin, count) != CUDA_SUCCESS) {
      return 0;
    }
    for (size_t k = 0; k < count; ++k) {
      if (read[k] != value) {
        return 0;
      }
    }
  }
  return 1;
}

static void show_pointer(CUdeviceptr base, size_t size) {
  CUdeviceptr found = 0;
  size_t found_size = 0;
  line("range", cu.range(&found, &found_size, base + size / 2));
  line("range base", found == base);
  line("range size", (long long)found_size);
  line("range of base alone", cu.range(&found, NULL, base));
  line("range of size alone", cu.range(NULL, &found_size, base));
  CUcontext owner = NULL;
  unsigned type = 0;
  unsigned managed = 9;
  int ordinal = -1;
  int ipc = -1;
  CUdeviceptr start_address = 0;
  size_t range_size = 0;
  CUdeviceptr device_pointer = 0;
  line("attribute context", cu.attribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, base));
  CUcontext current = NULL;
  cu.get_current(&current);
  line("context is the current one", owner == current);
  line("attribute type", cu.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base));
  line("type", type);
  line("attribute managed", cu.attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, base));
  line("managed", managed);
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&ordinal, &ipc, &start_address, &range_size, &device_pointer, &owner};
  line("attributes", cu.attributes(6, names, values, base + size / 2));
  line("ordinal", ordinal);
  line("legacy IPC", ipc);
  line("range start", start_address == base);
  line("range size", (long long)range_size);
  line("device pointer", device_pointer == base + size / 2);
  line("context in the batch", owner == current);
}

static void show_no_pointer(CUdeviceptr pointer) {
  CUdeviceptr base = 0;
  size_t size = 0;
  unsigned type = 7;
  CUcontext owner = NULL;
  line("dead: range", cu.range(&base, &size, pointer));
  line("dead: attribute", cu.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &owner};
  line("dead: attributes", cu.attributes(2, names, values, pointer));
  line("dead: type", type);
  line("dead: context", owner != NULL);
}

static void sizes(void) {
  CUdeviceptr p = 0;
  line("size 0", cu.alloc(&p, 0));
  line("no place for the pointer", cu.alloc(NULL, 16));
  const size_t all[] = {1, 100, 512, 4096, 100000, 3 * MIB, 64 * MIB};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    line("size", (long long)all[i]);
    line("alloc", cu.alloc(&p, all[i]));
    line("aligned", p % 256 == 0);
    show_pointer(p, all[i]);
    line("free", cu.free(p));
  }
}

static void frees(void) {
  CUdeviceptr p = 0;
  line("alloc", cu.alloc(&p, MIB));
  line("free inside", cu.free(p + 512));
  line("free", cu.free(p));
  line("free again", cu.free(p));
  show_no_pointer(p);
  line("free of nothing", cu.free(0));
  line("free of a number", cu.free(0x123456000));
  line("free of a host address", cu.free((CUdeviceptr)(size_t)&p));
}

static void contents(void) {
  enum { kBlocks = 48 };
  CUdeviceptr blocks[kBlocks] = {0};
  size_t size_of[kBlocks] = {0};
  unsigned random = 12345;
  int wrong = 0;
  int failed = 0;
  for (int step = 0; step < 2000; ++step) {
    random = random * 1103515245u + 12345u;
    const int i = (int)(random >> 16) % kBlocks;
    if (blocks[i] != 0) {
      wrong += !bytes_are(blocks[i], size_of[i], (unsigned char)(i + 1));
      failed += cu.free(blocks[i]) != CUDA_SUCCESS;
      blocks[i] = 0;
    } else {
      size_of[i] = (size_t)1 << (8 + (random >> 8) % 15);
      failed += cu.alloc(&blocks[i], size_of[i]) != CUDA_SUCCESS;
      failed += cu.fill(blocks[i], (unsigned char)(i + 1), size_of[i]) != CUDA_SUCCESS;
      failed += cu.synchronize() != CUDA_SUCCESS;
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    failed += cu.free(blocks[i]) != CUDA_SUCCESS;
  }
  line("wrong bytes", wrong);
  line("failed calls", failed);
}

static void pitches(void) {
  const size_t widths[] = {1, 100, 512, 513, 5000, 100001};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; ++i) {
    CUdeviceptr p = 0;
    size_t pitch = 0;
    line("alloc", cu.alloc_pitch(&p, &pitch, widths[i], 37, 4));
    line("pitch", (long long)pitch);
    line("free", cu.free(p));
  }
  CUdeviceptr p = 0;
  size_t pitch = 0;
  line("no width", cu.alloc_pitch(&p, &pitch, 0, 4, 4));
  line("no height", cu.alloc_pitch(&p, &pitch, 4, 0, 4));
  line("element of 3", cu.alloc_pitch(&p, &pitch, 4, 4, 3));
}

static void streams(void) {
  CUstream a = NULL;
  CUstream b = NULL;
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  line("stream", cu.stream_create(&a, CU_STREAM_NON_BLOCKING));
  line("stream", cu.stream_create(&b, CU_STREAM_DEFAULT));
  line("size 0", cu.alloc_async(&p, 0, a));
  line("alloc", cu.alloc_async(&p, 5 * MIB, a));
  line("fill", cu.fill(p, 7, 5 * MIB));
  line("on the default stream", cu.alloc_async(&q, 1000, NULL));
  line("per thread", cu.free_async_ptsz(q, NULL));
  line("per thread", cu.alloc_async_ptsz(&q, 1000, NULL));
  line("on the other stream", cu.free_async(p, b));
  line("free", cu.free_async(q, NULL));
  line("wait", cu.synchronize());
  line("free again", cu.free_async(p, b));
  line("alloc", cu.alloc_async(&p, MIB, a));
  line("stream wait", cu.stream_synchronize(a));
  line("free without a stream", cu.free(p));
  line("alloc", cu.alloc(&p, MIB));
  line("free of it on a stream", cu.free_async(p, a));
  line("wait", cu.synchronize());
  line("free again", cu.free(p));
  line("alloc", cu.alloc_async(&p, 2 * MIB, a));
  line("destroy", cu.stream_destroy(a));
  line("free after its stream", cu.free_async(p, NULL));
  line("destroy", cu.stream_destroy(b));
  line("wait", cu.synchronize());
}

static void pools(void) {
  CUmemoryPool pool = NULL;
  CUmemoryPool own = NULL;
  unsigned long long before = 0;
  unsigned long long now = 0;
  CUdeviceptr p = 0;
  line("pool", cu.default_pool(&pool, 0));
  line("used", cu.pool_get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &before));
  line("alloc", cu.alloc_from_pool(&p, 4 * MIB, pool, NULL));
  line("used", cu.pool_get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now));
  line("more", (long long)(now - before));
  line("reserved", cu.pool_get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now));
  line("reserved at least", now >= 4 * MIB);
  CUmemoryPool of = NULL;
  line("attribute pool", cu.attribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
  line("is the default one", of == pool);
  line("free", cu.free_async(p, NULL));
  line("wait", cu.synchronize());
  line("used", cu.pool_get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now));
  line("as before", now == before);
  now = 0;
  line("start the mark again", cu.pool_set(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &now));
  line("trim", cu.pool_trim(pool, 0));
  CUmemPoolProps properties;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  line("own pool", cu.pool_create(&own, &properties));
  line("alloc", cu.alloc_from_pool(&p, MIB, own, NULL));
  line("free", cu.free_async(p, NULL));
  line("make it the device's", cu.set_pool(0, own));
  line("alloc", cu.alloc_async(&p, MIB, NULL));
  line("used", cu.pool_get(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now));
  line("of the own pool", now >= MIB);
  line("free", cu.free_async(p, NULL));
  line("back", cu.set_pool(0, pool));
  line("wait", cu.synchronize());
}

static void memory(void) {
  size_t free_before = 0;
  size_t free_now = 0;
  size_t total = 0;
  CUdeviceptr p = 0;
  line("info", cu.info(&free_before, &total));
  line("free within total", free_before <= total);
  line("alloc", cu.alloc(&p, 128 * MIB));
  line("info", cu.info(&free_now, &total));
  line("less", free_before - free_now >= 126 * MIB && free_before - free_now <= 160 * MIB);
  line("free", cu.free(p));
  line("info", cu.info(&free_now, &total));
  line("nearly as before", free_now + 34 * MIB >= free_before);
  line("a PiB", cu.alloc(&p, (size_t)1 << 50));
  line("as much as a number holds", cu.alloc(&p, ~(size_t)0));
  line("all that is said to be free", cu.alloc(&p, free_now / (2 * MIB) * (2 * MIB) * 31 / 32));
  line("free", cu.free(p));
  line("alloc", cu.alloc(&p, MIB));
  line("free", cu.free(p));
  line("managed", cu.alloc_managed(&p, MIB, CU_MEM_ATTACH_GLOBAL));
  line("free", cu.free(p));
}

static void contexts(void) {
  CUcontext second = NULL;
  CUcontext none = NULL;
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  line("alloc", cu.alloc(&p, MIB));
  line("create", cu.context_create(&second, 0, 0));
  line("alloc", cu.alloc(&q, MIB));
  show_pointer(q, MIB);
  line("free of the first's", cu.free(p));
  line("alloc", cu.alloc(&p, MIB));
  line("free", cu.free(p));
  line("destroy", cu.context_destroy(second));
  line("set current", cu.set_current(context));
  line("free of the destroyed's", cu.free(q));
  line("alloc", cu.alloc(&p, MIB));
  line("no context", cu.set_current(none));
  line("alloc", cu.alloc(&q, MIB));
  line("set current", cu.set_current(context));
  line("free", cu.free(p));
}

static void captures(void) {
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUdeviceptr before = 0;
  CUdeviceptr p = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  line("stream", cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  line("alloc", cu.alloc(&before, MIB));
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  line("alloc", cu.alloc(&p, MIB));
  line("end", cu.end_capture(stream, &graph));
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  line("free", cu.free(before));
  line("end", cu.end_capture(stream, &graph));
  line("free", cu.free(before));
  line("alloc", cu.alloc(&before, MIB));
  line("relax", cu.exchange_mode(&mode));
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  line("alloc", cu.alloc(&p, MIB));
  line("free", cu.free(before));
  line("free again", cu.free(before));
  line("end", cu.end_capture(stream, &graph));
  line("free", cu.free(p));
  line("begin", cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  line("alloc in the graph", cu.alloc_async(&p, 3 * MIB, stream));
  line("free in the graph", cu.free_async(p, stream));
  line("end", cu.end_capture(stream, &graph));
  line("instantiate", cu.instantiate(&exec, graph, 0));
  line("launch", cu.launch_graph(exec, stream));
  line("wait", cu.stream_synchronize(stream));
  line("launch", cu.launch_graph(exec, stream));
  line("wait", cu.stream_synchronize(stream));
  line("back", cu.exchange_mode(&mode));
  line("destroy", cu.stream_destroy(stream));
}

static void reset(void) {
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  line("alloc", cu.alloc(&p, MIB));
  line("alloc", cu.alloc_async(&q, MIB, NULL));
  line("reset", cu.reset(0));
  line("retain", cu.retain(&context, 0));
  line("set current", cu.set_current(context));
  line("free of before", cu.free(p));
  line("free of before", cu.free(q));
  show_no_pointer(p);
  for (int i = 0; i < 3; ++i) {
    line("alloc", cu.alloc(&q, MIB));
    line("free", cu.free(q));
    line("reset", cu.reset(0));
    line("retain", cu.retain(&context, 0));
    line("set current", cu.set_current(context));
  }
}

static void release(void) {
  CUdeviceptr p = 0;
  unsigned flags = 0;
  int active = -1;
  line("alloc", cu.alloc(&p, MIB));
  line("retain", cu.retain(&context, 0));
  line("release", cu.release(0));
  line("free", cu.free(p));
  line("alloc", cu.alloc(&p, MIB));
  line("release", cu.release(0));
  line("state", cu.primary_state(0, &flags, &active));
  line("active", active);
  line("retain", cu.retain(&context, 0));
  line("set current", cu.set_current(context));
  line("free of before", cu.free(p));
  line("alloc", cu.alloc(&p, MIB));
  line("free", cu.free(p));
}

/* Fills and reads as a kernel of the current context's device would. */
static void used_by_current(CUdeviceptr p) {
  unsigned char byte = 0;
  line("fill", cu.fill(p, 7, 64));
  line("read", cu.read(&byte, p, 1));
  line("byte", byte);
}

/* Given in a context of its own, not in its device's primary one. */
static void peers_of_a_made_context(void) {
  CUcontext own = NULL;
  CUdeviceptr p = 0;
  line("reset of the second", cu.reset(1));
  line("set current", cu.set_current(context));
  line("alloc on the first", cu.alloc(&p, 6 * MIB));
  line("create on the second", cu.context_create(&own, 0, 1));
  line("it may use the first's", cu.enable_peer(context, 0));
  used_by_current(p);
  line("destroy", cu.context_destroy(own));
  line("set current", cu.set_current(context));
  line("free", cu.free(p));
}

/* Peer access to what was allocated before it was given, after, and on a device that had nothing then. */
static void peers(void) {
  CUcontext other = NULL;
  CUdeviceptr before = 0;
  CUdeviceptr after = 0;
  CUdeviceptr there = 0;
  line("retain", cu.retain(&other, 1));
  line("alloc on the first", cu.alloc(&before, 3 * MIB));
  line("the first may use the second's", cu.enable_peer(other, 0));
  line("set current", cu.set_current(other));
  line("the second may use the first's", cu.enable_peer(context, 0));
  used_by_current(before);
  line("alloc on the second", cu.alloc(&there, 5 * MIB));
  line("set current", cu.set_current(context));
  used_by_current(there);
  line("alloc on the first", cu.alloc(&after, 40 * MIB));
  line("set current", cu.set_current(other));
  used_by_current(after);
  line("free", cu.free(before));
  line("free", cu.free(after));
  line("free", cu.free(there));
  peers_of_a_made_context();
  line("set current", cu.set_current(context));
  line("release", cu.release(1));
}

/* The second device beside the first: memory of each, freed while the other is the current one. */
static void second(void) {
  CUcontext other = NULL;
  CUdeviceptr here = 0;
  CUdeviceptr there = 0;
  line("retain", cu.retain(&other, 1));
  line("alloc on the first", cu.alloc(&here, 3 * MIB));
  line("set current", cu.set_current(other));
  line("alloc on the second", cu.alloc(&there, 5 * MIB));
  line("free of the first's", cu.free(here));
  line("again", cu.free(here));
  line("set current", cu.set_current(context));
  line("free of the second's", cu.free(there));
  line("again", cu.free(there));
  line("release", cu.release(1));
}

int main(int count, char** words) {
  static const struct {
    const char* name;
    void (*run)(void);
    int asked_only;
  } groups[] = {{"sizes", sizes, 0},
                {"frees", frees, 0},
                {"contents", contents, 0},
                {"pitches", pitches, 0},
                {"streams", streams, 0},
                {"pools", pools, 0},
                {"memory", memory, 0},
                {"contexts", contexts, 0},
                {"captures", captures, 0},
                {"reset", reset, 1},
                {"release", release, 1},
                {"second", second, 1},
                {"peers", peers, 1}};
  if (count < 2) {
    fprintf(stderr, "usage: suite WAY [GROUP...]\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  load_api(&cu, words[1]);
  start();
  int ran = 0;
  for (size_t i = 0; i < sizeof groups / sizeof groups[0]; ++i) {
    int wanted = count == 2 && !groups[i].asked_only;
    for (int k = 2; k < count; ++k) {
      wanted = wanted || strcmp(words[k], groups[i].name) == 0;
    }
    if (wanted) {
      printf("-- %s\n", groups[i].name);
      groups[i].run();
      ++ran;
    }
  }
  return ran > 0 ? 0 : 2;
}
