// Two GPUs: which work a copy between them, or between one and the host, waits for, and which waits for it. Nothing is
// synchronized in between, so what is not ordered shows. Each fact is 1 (in order) or 0; what is in no order by its
// nature (copies in streams; default streams of each thread on different devices) is not printed. With and without the
// preload they must be the same. 77 with fewer than two GPUs.
//
// usage: device_order [peers]     peers: peer access is switched on first
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kWords = std::size_t{64} << 20;
constexpr std::size_t kBytes = kWords * 4;
constexpr std::uint64_t kLong = 25'000'000;  // ns that work lasts which a copy may have to wait for

std::uint32_t* block[2];  // on each device
std::uint32_t* out[2];
std::uint32_t* pinned;
std::uint32_t* pageable;
unsigned* wrong;
cudaStream_t own[2];

__global__ void fill(std::uint32_t* words,
                     std::size_t count,
                     std::uint32_t value,
                     std::uint64_t wait) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < wait);
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = value;
  }
}

__global__ void move(std::uint32_t* to, const std::uint32_t* from, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    to[i] = from[count - 1 - i];  // from the end, which is copied last
  }
}

__global__ void compare(const std::uint32_t* words,
                        std::size_t count,
                        std::uint32_t value,
                        unsigned* different) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (words[i] != value) {
      atomicAdd(different, 1U);
    }
  }
}

void settle() {
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    cudaDeviceSynchronize();
  }
}

void set_now(int device, std::uint32_t* words, std::uint32_t value) {
  cudaSetDevice(device);
  fill<<<128, 256>>>(words, kWords, value, 0);
  cudaDeviceSynchronize();
}

int all(int device, const std::uint32_t* words, std::uint32_t value) {
  cudaSetDevice(device);
  *wrong = 0;
  compare<<<128, 256>>>(words, kWords, value, wrong);
  return cudaDeviceSynchronize() == cudaSuccess && *wrong == 0 ? 1 : 0;
}

int all_on_host(const std::uint32_t* words, std::uint32_t value) {
  for (std::size_t i = 0; i < kWords; ++i) {
    if (words[i] != value) {
      return 0;
    }
  }
  return 1;
}

void start(int device, std::uint32_t* words, std::uint32_t value, std::uint64_t wait) {
  cudaSetDevice(device);
  fill<<<128, 256>>>(words, kWords, value, wait);
}

// Are default streams of different devices in order with a copy that concerns both?
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool kAcross = false;
#else
constexpr bool kAcross = true;
#endif

void line(const std::string& what, const char* fact, int value, bool in_order = true) {
  if (in_order) {
    std::printf("%s: %s: %d\n", what.c_str(), fact, value);
  }
}

using Copy = std::function<cudaError_t(int from, int current)>;

void between(const std::string& name, const Copy& copy, bool null_stream) {
  for (int current = 0; current < 2; ++current) {
    const int from = 0;
    const int to = 1;
    const std::string what = name + ", current " + std::to_string(current);
    set_now(from, block[from], 1);
    set_now(to, block[to], 0);
    start(from, block[from], 2, kLong);
    cudaSetDevice(current);
    const auto begin = std::chrono::steady_clock::now();
    const cudaError_t result = copy(from, current);
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    settle();
    line(what, "result", result);
    line(what,
         "after the source's work",
         all(to, block[to], 2),
         null_stream && (kAcross || current == from));
    line(what, "the host waited", waited > 0.010 ? 1 : 0, null_stream && kAcross);
    set_now(from, block[from], 2);
    start(to, block[to], 3, kLong);
    cudaSetDevice(current);
    copy(from, current);
    settle();
    line(what,
         "after the destination's work",
         all(to, block[to], 2),
         null_stream && (kAcross || current == to));
    set_now(from, block[from], 2);
    set_now(to, block[to], 0);
    cudaSetDevice(current);
    copy(from, current);
    start(from, block[from], 5, 0);
    settle();
    line(what,
         "before the source's work",
         all(to, block[to], 2),
         null_stream && (kAcross || current == from));
    set_now(from, block[from], 2);
    set_now(to, block[to], 0);
    cudaSetDevice(current);
    copy(from, current);
    cudaSetDevice(to);
    move<<<128, 256>>>(out[to], block[to], kWords);
    settle();
    line(what,
         "before the destination's work",
         all(to, out[to], 2),
         null_stream && (kAcross || current == to));
  }
}

// Of memory of the second device, with the first or the second current.
void to_device(const std::string& name,
               std::uint32_t* host,
               const std::function<cudaError_t(int current)>& copy,
               bool null_stream) {
  std::fill_n(host, kWords, 2U);
  for (int current = 0; current < 2; ++current) {
    const std::string what = name + ", current " + std::to_string(current);
    start(1, block[1], 3, kLong);
    cudaSetDevice(current);
    const auto begin = std::chrono::steady_clock::now();
    const cudaError_t result = copy(current);
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    settle();
    line(what, "result", result);
    line(what,
         "after the device's work",
         all(1, block[1], 2),
         null_stream && (kAcross || current == 1));
    line(what, "the host waited", waited > 0.020 ? 1 : 0, null_stream && kAcross);
    set_now(1, block[1], 0);
    cudaSetDevice(current);
    copy(current);
    cudaSetDevice(1);
    move<<<128, 256>>>(out[1], block[1], kWords);
    settle();
    line(what,
         "before the device's work",
         all(1, out[1], 2),
         null_stream && (kAcross || current == 1));
  }
}

void to_host(const std::string& name,
             std::uint32_t* host,
             const std::function<cudaError_t(int current)>& copy,
             bool null_stream) {
  for (int current = 0; current < 2; ++current) {
    const std::string what = name + ", current " + std::to_string(current);
    std::fill_n(host, kWords, 0U);
    set_now(1, block[1], 1);
    start(1, block[1], 2, kLong);
    cudaSetDevice(current);
    const cudaError_t result = copy(current);
    settle();
    line(what, "result", result);
    line(what,
         "after the device's work",
         all_on_host(host, 2),
         null_stream && (kAcross || current == 1));
    set_now(1, block[1], 2);
    cudaSetDevice(current);
    copy(current);
    start(1, block[1], 5, 0);
    settle();
    line(what,
         "before the device's work",
         all_on_host(host, 2),
         null_stream && (kAcross || current == 1));
  }
}

// Both blocks are on the second device.
void within(const std::string& name,
            const std::function<cudaError_t(int current)>& copy,
            bool null_stream) {
  for (int current = 0; current < 2; ++current) {
    const std::string what = name + ", current " + std::to_string(current);
    set_now(1, block[1], 1);
    start(1, block[1], 2, kLong);
    cudaSetDevice(current);
    const cudaError_t result = copy(current);
    settle();
    line(what, "result", result);
    line(what,
         "after the device's work",
         all(1, out[1], 2),
         null_stream && (kAcross || current == 1));
    set_now(1, block[1], 2);
    set_now(1, out[1], 0);
    cudaSetDevice(current);
    copy(current);
    start(1, block[1], 5, 0);
    settle();
    line(what,
         "before the device's work",
         all(1, out[1], 2),
         null_stream && (kAcross || current == 1));
  }
}

// The first device's memory is not named, but it is current: its default stream is where the copy belongs.
void after_the_current_ones_work() {
  std::fill_n(pinned, kWords, 2U);
  start(0, block[0], 3, kLong);
  cudaSetDevice(0);
  const auto begin = std::chrono::steady_clock::now();
  cudaMemcpy(block[1], pinned, kBytes, cudaMemcpyHostToDevice);
  const double waited =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  settle();
  line("to the device", "after the current one's work", waited > 0.020 ? 1 : 0, kAcross);
  set_now(1, block[1], 7);
  std::fill_n(pinned, kWords, 0U);
  cudaSetDevice(0);
  cudaMemcpyAsync(pinned, block[1], kBytes, cudaMemcpyDeviceToHost, nullptr);
  move<<<128, 256>>>(block[0], pinned, kWords);  // it reads what the copy writes
  settle();
  line("to the host", "before the current one's work", all(0, block[0], 7));
}

void sets() {
  for (int current = 0; current < 2; ++current) {
    const std::string what = "set, current " + std::to_string(current);
    start(1, block[1], 2, kLong);
    cudaSetDevice(current);
    const cudaError_t result = cudaMemset(block[1], 1, kBytes);
    settle();
    line(what, "result", result);
    if (result == cudaSuccess) {
      line(what, "after the device's work", all(1, block[1], 0x01010101U), kAcross || current == 1);
    }
    cudaGetLastError();
  }
}

// Memory of the second device is freed while work of the first that was begun before still uses it.
void frees(bool peers) {
  const auto waits =
      [](const std::string& what, int current, const std::function<void(std::uint32_t*)>& work) {
        std::uint32_t* freed = nullptr;
        cudaSetDevice(1);
        cudaMalloc(&freed, kBytes);
        set_now(1, freed, 4);
        set_now(0, block[0], 0);
        cudaSetDevice(0);
        work(freed);
        cudaSetDevice(current);
        const auto begin = std::chrono::steady_clock::now();
        const cudaError_t result = cudaFree(freed);
        const double waited =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        std::uint32_t* next = nullptr;
        cudaSetDevice(1);
        cudaMalloc(&next, kBytes);  // likely the same memory
        fill<<<128, 256>>>(next, kWords, 9, 0);
        settle();
        line(what, "result", result);
        line(what, "free waits", waited > 0.015 ? 1 : 0);
        line(what, "what was freed arrived", all(0, block[0], 4));
        cudaFree(next);
      };
  for (int current = 0; current < 2; ++current) {
    const std::string suffix = ", current " + std::to_string(current);
    waits("freed under a copy in a stream" + suffix, current, [](std::uint32_t* freed) {
      fill<<<1, 32, 0, own[0]>>>(out[0], 32, 1, kLong);
      cudaMemcpyAsync(block[0], freed, kBytes, cudaMemcpyDeviceToDevice, own[0]);
    });
    waits("freed under a copy" + suffix, current, [](std::uint32_t* freed) {
      fill<<<1, 32>>>(out[0], 32, 1, kLong);
      cudaMemcpyAsync(block[0], freed, kBytes, cudaMemcpyDeviceToDevice, nullptr);
    });
    if (peers) {
      waits("freed under a kernel in a stream" + suffix, current, [](std::uint32_t* freed) {
        fill<<<1, 32, 0, own[0]>>>(out[0], 32, 1, kLong);
        move<<<128, 256, 0, own[0]>>>(block[0], freed, kWords);
      });
      waits("freed under a kernel" + suffix, current, [](std::uint32_t* freed) {
        fill<<<1, 32>>>(out[0], 32, 1, kLong);
        move<<<128, 256>>>(block[0], freed, kWords);
      });
    }
  }
}

double seconds(const std::function<void()>& work) {
  settle();
  cudaSetDevice(0);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    work();
  }
  settle();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 10;
}

// On stderr, because it is no fact to compare.
void speeds(bool peers) {
  const double large = seconds(
      [] { cudaMemcpyAsync(block[1], block[0], kBytes, cudaMemcpyDeviceToDevice, own[0]); });
  const double small = seconds([] {
    for (int i = 0; i < 100; ++i) {
      cudaMemcpyAsync(block[1], block[0], 4096, cudaMemcpyDeviceToDevice, own[0]);
    }
  });
  const double up = seconds([] { cudaMemcpy(block[1], pinned, 4096, cudaMemcpyHostToDevice); });
  const double home = seconds([] {
    for (int i = 0; i < 100; ++i) {
      cudaMemcpyAsync(out[0], block[0], 4096, cudaMemcpyDeviceToDevice, own[0]);
    }
  });
  std::fprintf(
      stderr,
      "SPEED %s: between GPUs %.1f GB/s, 4 KiB %.2f us; to the other %.2f us; within one %.2f us\n",
      peers ? "peers" : "plain",
      static_cast<double>(kBytes) / large / 1e9,
      small * 1e4,
      up * 1e6,
      home * 1e4);
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("needs two GPUs\n");
    return 77;
  }
  const bool peers = argc > 1 && std::strcmp(argv[1], "peers") == 0;
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    if (peers) {
      line("peer access", "result", cudaDeviceEnablePeerAccess(1 - device, 0));
    }
    if (cudaMalloc(&block[device], kBytes) != cudaSuccess ||
        cudaMalloc(&out[device], kBytes) != cudaSuccess ||
        cudaStreamCreateWithFlags(&own[device], cudaStreamNonBlocking) != cudaSuccess) {
      return 1;
    }
  }
  if (cudaMallocHost(&pinned, kBytes) != cudaSuccess ||
      cudaMallocManaged(&wrong, 4) != cudaSuccess) {
    return 1;
  }
  pageable = new std::uint32_t[kWords];
  for (int warm = 0; warm < 2; ++warm) {  // code is loaded, and access given where it has to be
    set_now(warm, block[warm], 0);
    move<<<128, 256>>>(out[warm], block[warm], kWords);
    all(warm, block[warm], 0);
    cudaMemcpy(block[1 - warm], block[warm], kBytes, cudaMemcpyDefault);
    settle();
  }
  between(
      "cudaMemcpy",
      [](int f, int) { return cudaMemcpy(block[1 - f], block[f], kBytes, cudaMemcpyDefault); },
      true);
  between(
      "cudaMemcpyAsync",
      [](int f, int) {
        return cudaMemcpyAsync(block[1 - f], block[f], kBytes, cudaMemcpyDeviceToDevice, nullptr);
      },
      true);
  between(
      "cudaMemcpyAsync in a stream",
      [](int f, int c) {
        return cudaMemcpyAsync(block[1 - f], block[f], kBytes, cudaMemcpyDeviceToDevice, own[c]);
      },
      false);
  between(
      "cudaMemcpy2D",
      [](int f, int) {
        return cudaMemcpy2D(
            block[1 - f], 4096, block[f], 4096, 4096, kBytes / 4096, cudaMemcpyDeviceToDevice);
      },
      true);
  between(
      "cudaMemcpyPeer",
      [](int f, int) { return cudaMemcpyPeer(block[1 - f], 1 - f, block[f], f, kBytes); },
      true);
  between(
      "cudaMemcpyPeerAsync in a stream",
      [](int f, int c) {
        return cudaMemcpyPeerAsync(block[1 - f], 1 - f, block[f], f, kBytes, own[c]);
      },
      false);
  within(
      "within the other",
      [](int) { return cudaMemcpy(out[1], block[1], kBytes, cudaMemcpyDeviceToDevice); },
      true);
  within(
      "within the other, async",
      [](int) { return cudaMemcpyAsync(out[1], block[1], kBytes, cudaMemcpyDefault, nullptr); },
      true);
  within(
      "within the other, in a stream",
      [](int c) {
        return cudaMemcpyAsync(out[1], block[1], kBytes, cudaMemcpyDeviceToDevice, own[c]);
      },
      false);
  within(
      "within the other, 2D",
      [](int) {
        return cudaMemcpy2D(
            out[1], 4096, block[1], 4096, 4096, kBytes / 4096, cudaMemcpyDeviceToDevice);
      },
      true);
  after_the_current_ones_work();
  if (peers) {
    sets();  // without, they are refused
  }
  frees(peers);
  speeds(peers);
  for (const bool locked : {false, true}) {
    std::uint32_t* const host = locked ? pinned : pageable;
    const std::string suffix = locked ? ", pinned" : ", pageable";
    to_device(
        "to the device" + suffix,
        host,
        [&](int) { return cudaMemcpy(block[1], host, kBytes, cudaMemcpyHostToDevice); },
        true);
    to_device(
        "to the device, async" + suffix,
        host,
        [&](int) {
          return cudaMemcpyAsync(block[1], host, kBytes, cudaMemcpyHostToDevice, nullptr);
        },
        true);
    to_device(
        "to the device, in a stream" + suffix,
        host,
        [&](int c) {
          return cudaMemcpyAsync(block[1], host, kBytes, cudaMemcpyHostToDevice, own[c]);
        },
        false);
    to_host(
        "to the host" + suffix,
        host,
        [&](int) { return cudaMemcpy(host, block[1], kBytes, cudaMemcpyDeviceToHost); },
        true);
    to_host(
        "to the host, async" + suffix,
        host,
        [&](int) {
          return cudaMemcpyAsync(host, block[1], kBytes, cudaMemcpyDeviceToHost, nullptr);
        },
        true);
    to_host(
        "to the host, in a stream" + suffix,
        host,
        [&](int c) {
          return cudaMemcpyAsync(host, block[1], kBytes, cudaMemcpyDeviceToHost, own[c]);
        },
        false);
  }
  return 0;
}
