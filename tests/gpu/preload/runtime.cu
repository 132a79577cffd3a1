// What a program of the CUDA runtime can see of its memory, one line a finding and no addresses: runs with and
// without the preload print the same. Built with the static and the shared runtime, and for per-thread default
// streams.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

void line(const char* what, long long value) {
  std::printf("%s: %lld\n", what, value);
}

// The call's answer, and what the runtime then remembers as the last error.
void call(const char* what, cudaError_t result) {
  std::printf("%s: %d, last error %d\n",
              what,
              static_cast<int>(result),
              static_cast<int>(cudaGetLastError()));
}

__global__ void fill(unsigned* words, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = seed * 2654435761u + static_cast<unsigned>(i);
  }
}

__global__ void verify(const unsigned* words,
                       std::size_t count,
                       unsigned seed,
                       unsigned long long* wrong) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (words[i] != seed * 2654435761u + static_cast<unsigned>(i)) {
      atomicAdd(wrong, 1ULL);
    }
  }
}

struct Random {
  unsigned state;
  unsigned next() { return state = state * 1664525u + 1013904223u; }
};

// Blocks that come and go on one stream, plain and stream-ordered by turns; each is checked before it goes.
unsigned long long churn(unsigned seed, int steps, cudaStream_t stream, int* failed) {
  struct Block {
    unsigned* words = nullptr;
    std::size_t count = 0;
    unsigned seed = 0;
    bool ordered = false;
  };
  std::vector<Block> blocks(40);
  Random random{seed};
  unsigned long long* wrong = nullptr;
  *failed += cudaMalloc(&wrong, sizeof *wrong) != cudaSuccess;
  *failed += cudaMemsetAsync(wrong, 0, sizeof *wrong, stream) != cudaSuccess;
  const auto release = [&](Block& block) {
    verify<<<64, 256, 0, stream>>>(block.words, block.count, block.seed, wrong);
    *failed +=
        (block.ordered ? cudaFreeAsync(block.words, stream) : cudaFree(block.words)) != cudaSuccess;
    block.words = nullptr;
  };
  for (int step = 0; step < steps; ++step) {
    Block& block = blocks[(random.next() >> 8) % blocks.size()];
    if (block.words != nullptr) {
      release(block);
      continue;
    }
    block.count = (std::size_t{1} << (4 + (random.next() >> 9) % 18)) + (random.next() >> 9) % 1000;
    block.seed = random.next();
    block.ordered = (random.next() >> 9) % 2 != 0;
    void* made = nullptr;
    *failed += (block.ordered ? cudaMallocAsync(&made, block.count * 4, stream)
                              : cudaMalloc(&made, block.count * 4)) != cudaSuccess;
    block.words = static_cast<unsigned*>(made);
    fill<<<64, 256, 0, stream>>>(block.words, block.count, block.seed);
  }
  for (Block& block : blocks) {
    if (block.words != nullptr) {
      release(block);
    }
  }
  unsigned long long found = 0;
  *failed +=
      cudaMemcpyAsync(&found, wrong, sizeof found, cudaMemcpyDeviceToHost, stream) != cudaSuccess;
  *failed += cudaStreamSynchronize(stream) != cudaSuccess;
  *failed += cudaFree(wrong) != cudaSuccess;
  return found;
}

void errors() {
  void* p = nullptr;
  void* q = nullptr;
  call("malloc 0", cudaMalloc(&p, 0));
  line("null", p == nullptr);
  call("free null", cudaFree(nullptr));
  call("malloc", cudaMalloc(&p, 1000));
  call("free inside", cudaFree(static_cast<char*>(p) + 256));
  call("free", cudaFree(p));
  call("free again", cudaFree(p));
  int host = 0;
  call("free of a host address", cudaFree(&host));
  call("malloc a PiB", cudaMalloc(&p, std::size_t{1} << 50));
  call("malloc async a PiB", cudaMallocAsync(&p, std::size_t{1} << 50, nullptr));
  call("malloc async", cudaMallocAsync(&p, 1 << 20, nullptr));
  call("synchronize", cudaDeviceSynchronize());
  call("free of it", cudaFree(p));
  call("malloc", cudaMalloc(&q, 1 << 20));
  call("free async of it", cudaFreeAsync(q, nullptr));
  call("synchronize", cudaDeviceSynchronize());
  call("free again", cudaFree(q));
  call("malloc async 0", cudaMallocAsync(&p, 0, nullptr));
}

void attributes(const char* what, const void* p) {
  cudaPointerAttributes found{};
  std::printf("%s\n", what);
  call("attributes", cudaPointerGetAttributes(&found, p));
  line("type", found.type);
  line("device", found.device);
  line("device pointer is it", found.devicePointer == p);
  line("host pointer", found.hostPointer != nullptr);
}

void kinds() {
  void* p = nullptr;
  std::size_t pitch = 0;
  call("malloc", cudaMalloc(&p, 12345));
  attributes("plain", p);
  call("free", cudaFree(p));
  attributes("freed", p);
  call("pitch", cudaMallocPitch(&p, &pitch, 1001, 77));
  line("pitch", static_cast<long long>(pitch));
  call("memset 2D", cudaMemset2D(p, pitch, 1, 1001, 77));
  call("free", cudaFree(p));
  cudaPitchedPtr volume{};
  call("3D", cudaMalloc3D(&volume, make_cudaExtent(333, 44, 5)));
  line("pitch", static_cast<long long>(volume.pitch));
  call("free", cudaFree(volume.ptr));
  call("async", cudaMallocAsync(&p, 4321, nullptr));
  attributes("stream-ordered", p);
  call("free async", cudaFreeAsync(p, nullptr));
  call("managed", cudaMallocManaged(&p, 1 << 20));
  attributes("managed", p);
  static_cast<int*>(p)[5] = 7;
  call("free", cudaFree(p));
  call("host", cudaMallocHost(&p, 1 << 20));
  attributes("host", p);
  call("free host", cudaFreeHost(p));
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  call("array", cudaMallocArray(&array, &format, 128, 64));
  call("free array", cudaFreeArray(array));
  std::vector<char> registered(1 << 16);
  call("register", cudaHostRegister(registered.data(), registered.size(), 0));
  call("unregister", cudaHostUnregister(registered.data()));
}

// One copy in each direction and between blocks, and a symbol.
__device__ int symbol[16];
void copies() {
  void* p = nullptr;
  void* q = nullptr;
  std::vector<int> from(100000);
  std::vector<int> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<int>(i);
  }
  const std::size_t bytes = from.size() * sizeof(int);
  call("malloc", cudaMalloc(&p, bytes));
  call("malloc", cudaMalloc(&q, bytes));
  call("there", cudaMemcpy(p, from.data(), bytes, cudaMemcpyHostToDevice));
  call("across", cudaMemcpy(q, p, bytes, cudaMemcpyDeviceToDevice));
  call("default", cudaMemcpy(to.data(), q, bytes, cudaMemcpyDefault));
  line("equal", from == to);
  call("symbol", cudaMemcpyToSymbol(symbol, p, sizeof symbol, 0, cudaMemcpyDeviceToDevice));
  call("free", cudaFree(p));
  call("free", cudaFree(q));
}

void graphs() {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  unsigned* kept = nullptr;
  unsigned* inside = nullptr;
  unsigned long long* wrong = nullptr;
  const std::size_t count = 1 << 20;
  call("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  call("malloc", cudaMalloc(&kept, count * 4));
  call("malloc", cudaMalloc(&wrong, sizeof *wrong));
  call("memset", cudaMemset(wrong, 0, sizeof *wrong));
  call("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  call("malloc async in it", cudaMallocAsync(reinterpret_cast<void**>(&inside), count * 4, stream));
  fill<<<64, 256, 0, stream>>>(inside, count, 5);
  fill<<<64, 256, 0, stream>>>(kept, count, 6);
  verify<<<64, 256, 0, stream>>>(inside, count, 5, wrong);
  call("free async in it", cudaFreeAsync(inside, stream));
  call("end", cudaStreamEndCapture(stream, &graph));
  call("instantiate", cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 20; ++i) {
    void* between = nullptr;
    if (cudaMalloc(&between, (i + 1) << 18) != cudaSuccess ||
        cudaGraphLaunch(exec, stream) != cudaSuccess || cudaFree(between) != cudaSuccess) {
      call("a round", cudaGetLastError());
    }
  }
  verify<<<64, 256, 0, stream>>>(kept, count, 6, wrong);
  unsigned long long found = 1;
  call("synchronize", cudaStreamSynchronize(stream));
  call("result", cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
  line("wrong words", static_cast<long long>(found));
  call("malloc in a global capture",
       (cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
        cudaMalloc(reinterpret_cast<void**>(&inside), 1000)));
  call("end", cudaStreamEndCapture(stream, &graph));
  call("destroy", cudaGraphExecDestroy(exec));
  call("free", cudaFree(kept));
  call("free", cudaFree(wrong));
  call("destroy", cudaStreamDestroy(stream));
}

void work() {
  int failed = 0;
  cudaStream_t stream = nullptr;
  call("stream", cudaStreamCreate(&stream));
  line("wrong words", static_cast<long long>(churn(1, 4000, stream, &failed)));
  line("on the default stream", static_cast<long long>(churn(2, 4000, nullptr, &failed)));
  std::vector<std::thread> threads;
  std::vector<unsigned long long> wrong(4);
  std::vector<int> failures(4);
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      cudaStream_t own = nullptr;
      failures[i] += cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) != cudaSuccess;
      wrong[i] = churn(10 + i, 2000, own, &failures[i]);
      failures[i] += cudaStreamDestroy(own) != cudaSuccess;
    });
  }
  for (unsigned i = 0; i < 4; ++i) {
    threads[i].join();
    failed += failures[i];
    line("of a thread", static_cast<long long>(wrong[i]));
  }
  line("failed calls", failed);
  call("destroy", cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  call("free 0", cudaFree(nullptr));
  errors();
  kinds();
  copies();
  graphs();
  work();
  void* p = nullptr;
  call("malloc", cudaMalloc(&p, 1 << 20));
  call("reset", cudaDeviceReset());
  call("free of before", cudaFree(p));
  call("malloc", cudaMalloc(&p, 1 << 20));
  call("free", cudaFree(p));
  errors();
  int failed = 0;
  line("wrong words", static_cast<long long>(churn(3, 1000, nullptr, &failed)));
  line("failed calls", failed);
  return 0;
}
