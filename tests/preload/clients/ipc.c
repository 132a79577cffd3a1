/* Two processes share a block by legacy IPC. usage: [IPC_CHILD_DEVICE=N] [IPC_OTHER_DEVICE=N] ipc WAY [SIZE]
 *
 * The parent starts its child (by fork and exec, before it touches the driver), allocates neighbours and the
 * block, fills them, and sends the handle through a pipe; the child opens it twice, reads it, asks about it and
 * closes it. One line a finding, from both, in a fixed order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "api.h"

static struct api cu;

static void line(const char* what, long long value) {
  printf("%s: %lld\n", what, value);
  fflush(stdout);
}

static void context(const char* way, int device) {
  CUcontext made = NULL;
  load_api(&cu, way);
  if (cu.init(0) != CUDA_SUCCESS || cu.retain(&made, device) != CUDA_SUCCESS ||
      cu.set_current(made) != CUDA_SUCCESS) {
    fprintf(stderr, "no context\n");
    exit(3);
  }
}

static void must_move(ssize_t moved, size_t size) {
  if (moved != (ssize_t)size) {
    exit(4);
  }
}

/* What only the fake driver can show: a closing that fails leaves the memory open; one during a capture that allows
 * it is one, although the memory can only be unmapped later. */
static int other_closings(CUdeviceptr* pointer, CUipcMemHandle handle) {
  void (*fail)(const char*, unsigned long, int) = NULL;
  *(void**)&fail = dlsym(RTLD_DEFAULT, "fake_cuda_fail");
  if (fail == NULL) {
    return 1;
  }
  fail("cuCtxSynchronize", 1, CUDA_ERROR_LAUNCH_FAILED);
  CUstream stream = NULL;
  CUgraph graph = NULL;
  unsigned char byte = 0;
  if (cu.ipc_close(*pointer) != CUDA_ERROR_LAUNCH_FAILED ||
      cu.read(&byte, *pointer, 1) != CUDA_SUCCESS ||
      cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS ||
      cu.ipc_close(*pointer) != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
    return 0;
  }
  cu.end_capture(stream, &graph); /* lost: the driver was asked */
  if (cu.read(&byte, *pointer, 1) != CUDA_SUCCESS ||
      cu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS ||
      cu.ipc_close(*pointer) != CUDA_SUCCESS || cu.ipc_close(*pointer) == CUDA_SUCCESS ||
      cu.end_capture(stream, &graph) != CUDA_SUCCESS) {
    return 0;
  }
  if (cu.ipc_open(pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) {
    return 0;
  }
  /* Half undone, it is nobody's: who opens it again gets a whole one. */
  CUdeviceptr again = 0;
  fail("cuMemAddressFree", 1, CUDA_ERROR_UNKNOWN);
  if (cu.ipc_close(*pointer) != CUDA_ERROR_UNKNOWN ||
      cu.ipc_open(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS ||
      again == *pointer || cu.read(&byte, again, 1) != CUDA_SUCCESS || byte != 42 ||
      cu.ipc_close(*pointer) != CUDA_SUCCESS) {
    return 0;
  }
  *pointer = again;
  return 1;
}

/* What is imported for one device is read and copied while another is current. */
static void from_another_device(CUdeviceptr imported, size_t size) {
  const char* const device = getenv("IPC_OTHER_DEVICE");
  CUcontext home = NULL;
  CUcontext other = NULL;
  CUdeviceptr copy = 0;
  unsigned char byte = 0;
  if (device == NULL) {
    return;
  }
  line("child: current", cu.get_current(&home));
  line("child: other", cu.retain(&other, atoi(device)) | cu.set_current(other));
  if (getenv("IPC_PEERS") != NULL && *getenv("IPC_PEERS") != 0) {
    /* Then as kernels of the other device see it. */
    line("child: peers", cu.enable_peer(home, 0));
    line("child: fill", cu.fill(imported + size - 512, 42, 512));
  }
  line("child: read", cu.read(&byte, imported + size - 1, 1));
  line("child: byte", byte);
  line("child: alloc", cu.alloc(&copy, size));
  line("child: copy", cu.copy(copy, imported, size) | cu.synchronize());
  byte = 0;
  line("child: read", cu.read(&byte, copy + size - 1, 1));
  line("child: byte", byte);
  line("child: back", cu.set_current(home));
  line("child: copy", cu.copy(imported, copy, size) | cu.synchronize());
  line("child: free", cu.free(copy));
}

static int child(const char* way, size_t size, int from, int to) {
  CUipcMemHandle handle;
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  CUdeviceptr base = 0;
  size_t found = 0;
  unsigned char byte = 0;
  must_move(read(from, &handle, sizeof handle), sizeof handle);
  const char* const device = getenv("IPC_CHILD_DEVICE");
  context(way, device != NULL ? atoi(device) : 0);
  line("child: open", cu.ipc_open(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  line("child: open again", cu.ipc_open(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  line("child: same place", first == second);
  line("child: range", cu.range(&base, &found, first + size / 2));
  line("child: base", base == first);
  line("child: size", found == size);
  line("child: read", cu.read(&byte, first, 1));
  line("child: byte", byte);
  line("child: read the last", cu.read(&byte, first + size - 1, 1));
  line("child: byte", byte);
  from_another_device(first, size);
  line("child: free", cu.free(first));
  line("child: close", cu.ipc_close(first));
  line("child: read", cu.read(&byte, first, 1));
  line("child: closings that fail, or come during a capture", other_closings(&first, handle));
  line("child: read", cu.read(&byte, first, 1));
  line("child: close", cu.ipc_close(first));
  line("child: close a third time", cu.ipc_close(first) != CUDA_SUCCESS);
  must_move(write(to, "d", 1), 1);
  must_move(read(from, &handle, sizeof handle), sizeof handle);
  line("child: open what was freed",
       cu.ipc_open(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  memset(&handle, 0x5a, sizeof handle);
  line("child: open nonsense",
       cu.ipc_open(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  return 0;
}

int main(int count, char** words) {
  if (count < 2) {
    fprintf(stderr, "usage: ipc WAY [SIZE]\n");
    return 2;
  }
  const size_t size = count > 2 ? strtoull(words[2], NULL, 10) : (size_t)5 << 20;
  if (count == 5) {
    return child(words[1], size, atoi(words[3]), atoi(words[4]));
  }
  int there[2];
  int back[2];
  if (pipe(there) != 0 || pipe(back) != 0) {
    return 3;
  }
  const pid_t pid = vfork();
  if (pid == 0) {
    char sizes[32];
    char from[16];
    char to[16];
    snprintf(sizes, sizeof sizes, "%zu", size);
    snprintf(from, sizeof from, "%d", there[0]);
    snprintf(to, sizeof to, "%d", back[1]);
    execl("/proc/self/exe", words[0], words[1], sizes, from, to, (char*)NULL);
    _exit(127);
  }
  context(words[1], 0);
  CUdeviceptr around[4] = {0};
  CUdeviceptr block = 0;
  CUipcMemHandle handle;
  CUipcMemHandle again;
  line("neighbours", cu.alloc(&around[0], 3000) | cu.alloc(&around[1], 1 << 20));
  line("block", cu.alloc(&block, size));
  line("neighbours", cu.alloc(&around[2], 3000) | cu.alloc(&around[3], 1 << 20));
  line("fill", cu.fill(block, 42, size) | cu.synchronize());
  line("handle", cu.ipc_get(&handle, block));
  line("handle", cu.ipc_get(&again, block));
  line("same", memcmp(&handle, &again, sizeof handle) == 0);
  CUdeviceptr own = 0;
  line("open one's own", cu.ipc_open(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  must_move(write(there[1], &handle, sizeof handle), sizeof handle);
  char done = 0;
  if (read(back[0], &done, 1) != 1) {
    line("the child ended early", 1);
    return 1;
  }
  line("free", cu.free(block));
  line("handle of what was freed", cu.ipc_get(&again, block) != CUDA_SUCCESS);
  must_move(write(there[1], &handle, sizeof handle), sizeof handle);
  int status = 0;
  waitpid(pid, &status, 0);
  line("child's status", status);
  for (int i = 0; i < 4; ++i) {
    line("free", cu.free(around[i]));
  }
  return status == 0 ? 0 : 1;
}
