/* A program that links libnofrag.so before the driver, and is not preloaded: its calls are the driver's. */
#include <cuda.h>
#include <stdio.h>

#include <nofrag/nofrag.h>

unsigned long fake_cuda_calls(const char* name);

int main(void) {
  CUcontext context = NULL;
  CUdeviceptr pointer = 0;
  nofrag_block_info info = {.struct_size = sizeof info};
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&pointer, 4096) != CUDA_SUCCESS) {
    fputs("the driver's calls fail\n", stderr);
    return 1;
  }
  if (nofrag_find((void*)(size_t)pointer, &info) == NOFRAG_OK ||
      cuMemFree(pointer) != CUDA_SUCCESS || fake_cuda_calls("cuMemAlloc_v2") != 1 ||
      fake_cuda_calls("cuMemFree_v2") != 1) {
    fputs("the calls were taken over\n", stderr);
    return 1;
  }
  return 0;
}
