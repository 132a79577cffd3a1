// Two GPUs without peer access: copies between blocks and CUDA arrays (whose device nobody tells), each on either device,
// with either device current: the error, how many words are wrong, and which work in the default streams they are in
// order with (1 or 0; nothing is synchronized in between). With and without the preload they must be the same. 77 with
// fewer than two GPUs.
//
// usage: across_arrays
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace {

constexpr std::size_t kWidth = 32768;  // of a row, in bytes
constexpr std::size_t kRows = 8192;
constexpr std::size_t kBytes = kWidth * kRows;
constexpr std::size_t kWords = kBytes / 4;
constexpr std::size_t kHigh = kRows / 4;     // rows of a slice of an array of three dimensions
constexpr std::size_t kLine = 65536;         // bytes of an array of one dimension
constexpr std::uint64_t kLong = 25'000'000;  // ns that work lasts which a copy may have to wait for
const cudaExtent kFlat = make_cudaExtent(kWidth / 4, kRows, 1);
const cudaExtent kSolid = make_cudaExtent(kWidth / 4, kHigh, 4);
const cudaExtent kSingle = make_cudaExtent(kLine / 4, 1, 1);

std::uint32_t* block[2];  // on each device
std::uint32_t* aside[2];
cudaArray_t flat[2];
cudaArray_t solid[2];
cudaArray_t single[2];
unsigned* different;
cudaStream_t own[2];

__global__ void fill(std::uint32_t* words,
                     std::size_t count,
                     std::uint32_t seed,
                     std::uint64_t wait) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < wait);
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
  }
}

__global__ void compare(const std::uint32_t* words,
                        std::size_t count,
                        std::uint32_t seed,
                        unsigned* wrong) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (words[i] != static_cast<std::uint32_t>(i) * 2654435761u + seed) {
      atomicAdd(wrong, 1U);
    }
  }
}

// Puts work into the default stream of `device`, which it leaves current.
void start_fill(int device, std::uint32_t* words, std::uint32_t seed, std::uint64_t wait) {
  cudaSetDevice(device);
  fill<<<128, 256>>>(words, kWords, seed, wait);
}

void settle() {
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    cudaDeviceSynchronize();
  }
}

unsigned wrong_in(int device, const std::uint32_t* words, std::size_t bytes, std::uint32_t seed) {
  cudaSetDevice(device);
  *different = 0;
  compare<<<128, 256>>>(words, bytes / 4, seed, different);
  return cudaDeviceSynchronize() == cudaSuccess ? *different : ~0U;
}

// A way of copying, and what it copies: an array on each device, and how much of it.
struct Form {
  std::string name;
  cudaArray_t* arrays;
  cudaExtent extent;  // in words, rows and slices
  std::function<int(int device, std::uint32_t* words)> to_array;
  std::function<int(int device, std::uint32_t* words)> from_array;
  bool in_default_stream;
};

std::size_t bytes_of(const Form& form) {
  return form.extent.width * form.extent.height * form.extent.depth * 4;
}

// In the default stream of the array's device, which must be current.
void at_home(const Form& form, cudaArray_t array, std::uint32_t* words, bool into) {
  cudaMemcpy3DParms parameters{};
  const cudaPitchedPtr memory =
      make_cudaPitchedPtr(words, form.extent.width * 4, form.extent.width, form.extent.height);
  if (into) {
    parameters.srcPtr = memory;
    parameters.dstArray = array;
  } else {
    parameters.srcArray = array;
    parameters.dstPtr = memory;
  }
  parameters.extent = form.extent;
  parameters.kind = cudaMemcpyDeviceToDevice;
  cudaMemcpy3DAsync(&parameters, nullptr);
}

// What is copied, or where to.
struct Place {
  int device;
  bool in_array;
};

// Both in the default stream of the place's device, which they leave current.
void put(const Form& form, const Place& place, std::uint32_t seed, std::uint64_t wait) {
  start_fill(place.device, place.in_array ? aside[place.device] : block[place.device], seed, wait);
  if (place.in_array) {
    at_home(form, form.arrays[place.device], aside[place.device], true);
  }
}

void get(const Form& form, const Place& place) {
  cudaSetDevice(place.device);
  if (place.in_array) {
    at_home(form, form.arrays[place.device], aside[place.device], false);
  } else {
    cudaMemcpyAsync(aside[place.device],
                    block[place.device],
                    bytes_of(form),
                    cudaMemcpyDeviceToDevice,
                    nullptr);
  }
}

void facts(const Form& form, const Place& from, const Place& to, int current) {
  const std::string what = form.name +
                           (to.in_array ? ", to the array of " : ", from the array of ") +
                           std::to_string(to.in_array ? to.device : from.device) + ", block of " +
                           std::to_string(to.in_array ? from.device : to.device) + ", current " +
                           std::to_string(current);
  const auto copy = [&] {
    cudaSetDevice(current);
    return to.in_array ? form.to_array(to.device, block[from.device])
                       : form.from_array(from.device, block[to.device]);
  };
  const auto wrong = [&](std::uint32_t seed) {
    get(form, to);
    return wrong_in(to.device, aside[to.device], bytes_of(form), seed);
  };
  const auto both = [&](std::uint32_t source, std::uint32_t destination) {
    put(form, to, destination, 0);
    settle();
    put(form, from, source, 0);
    settle();
  };
  both(1, 2);
  const int error = copy();
  settle();
  cudaGetLastError();
  std::printf("%s: %d, wrong %u\n", what.c_str(), error, wrong(1));
  if (!form.in_default_stream) {
    return;
  }
  const auto say = [&](const char* fact, bool holds) {
    std::printf("%s: %s: %d\n", what.c_str(), fact, holds ? 1 : 0);
  };
  both(1, 2);
  put(form, from, 3, kLong);
  copy();
  settle();
  say("after the source's work", wrong(3) == 0);
  both(1, 2);
  put(form, to, 4, kLong);
  copy();
  settle();
  say("after the destination's work", wrong(1) == 0);
  both(1, 2);
  copy();
  put(form, from, 5, 0);
  settle();
  say("before the source's work", wrong(1) == 0);
  both(1, 2);
  copy();
  get(form, to);
  settle();
  say("before the destination's work",
      wrong_in(to.device, aside[to.device], bytes_of(form), 1) == 0);
}

void each_way(const Form& form) {
  for (int holder = 0; holder < 2; ++holder) {
    for (int device = 0; device < 2; ++device) {
      for (int current = 0; current < 2; ++current) {
        facts(form, Place{device, false}, Place{holder, true}, current);
        facts(form, Place{holder, true}, Place{device, false}, current);
      }
    }
  }
}

// The driver's own entry, found as the runtime finds it.
template <typename Function>
Function* entry(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(address);
}

void copies_of_the_runtime(cudaMemcpyKind kind, const std::string& suffix) {
  each_way({"cudaMemcpy2DToArray" + suffix,
            flat,
            kFlat,
            [kind](int device, std::uint32_t* words) {
              return cudaMemcpy2DToArray(flat[device], 0, 0, words, kWidth, kWidth, kRows, kind);
            },
            [kind](int device, std::uint32_t* words) {
              return cudaMemcpy2DFromArray(words, kWidth, flat[device], 0, 0, kWidth, kRows, kind);
            },
            true});
  for (const bool in_default_stream : {true, false}) {
    const auto stream = [in_default_stream] {
      int current = 0;
      cudaGetDevice(&current);
      return in_default_stream ? nullptr : own[current];
    };
    const std::string where = in_default_stream ? "" : ", stream";
    each_way({"cudaMemcpy2DToArrayAsync" + where + suffix,
              flat,
              kFlat,
              [=](int device, std::uint32_t* words) {
                return cudaMemcpy2DToArrayAsync(
                    flat[device], 0, 0, words, kWidth, kWidth, kRows, kind, stream());
              },
              [=](int device, std::uint32_t* words) {
                return cudaMemcpy2DFromArrayAsync(
                    words, kWidth, flat[device], 0, 0, kWidth, kRows, kind, stream());
              },
              in_default_stream});
  }
  const auto copy = [kind](int device, std::uint32_t* words, bool into) {
    cudaMemcpy3DParms parameters{};
    const cudaPitchedPtr memory = make_cudaPitchedPtr(words, kWidth, kWidth / 4, kHigh);
    (into ? parameters.srcPtr : parameters.dstPtr) = memory;
    (into ? parameters.dstArray : parameters.srcArray) = solid[device];
    parameters.extent = kSolid;
    parameters.kind = kind;
    return cudaMemcpy3D(&parameters);
  };
  each_way({"cudaMemcpy3D" + suffix,
            solid,
            kSolid,
            [=](int device, std::uint32_t* words) { return copy(device, words, true); },
            [=](int device, std::uint32_t* words) { return copy(device, words, false); },
            true});
}

void copies_of_the_driver() {
  auto* const to_array =
      entry<CUresult(CUarray, std::size_t, CUdeviceptr, std::size_t)>("cuMemcpyDtoA");
  auto* const from_array =
      entry<CUresult(CUdeviceptr, CUarray, std::size_t, std::size_t)>("cuMemcpyAtoD");
  const auto memory = [](std::uint32_t* words) { return reinterpret_cast<CUdeviceptr>(words); };
  const auto of_array = [](cudaArray_t array) { return reinterpret_cast<CUarray>(array); };
  each_way({"cuMemcpyDtoA",
            single,
            kSingle,
            [=](int device, std::uint32_t* words) -> int {
              return to_array(of_array(single[device]), 0, memory(words), kLine);
            },
            [=](int device, std::uint32_t* words) -> int {
              return from_array(memory(words), of_array(single[device]), 0, kLine);
            },
            true});
  auto* const copy_flat = entry<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2D");
  for (const CUmemorytype type : {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED}) {
    const auto copy = [=](int device, std::uint32_t* words, bool into) -> int {
      CUDA_MEMCPY2D wanted{};
      wanted.srcMemoryType = into ? type : CU_MEMORYTYPE_ARRAY;
      wanted.dstMemoryType = into ? CU_MEMORYTYPE_ARRAY : type;
      (into ? wanted.srcDevice : wanted.dstDevice) = memory(words);
      (into ? wanted.dstArray : wanted.srcArray) = of_array(flat[device]);
      (into ? wanted.srcPitch : wanted.dstPitch) = kWidth;
      wanted.WidthInBytes = kWidth;
      wanted.Height = kRows;
      return copy_flat(&wanted);
    };
    each_way({type == CU_MEMORYTYPE_DEVICE ? "cuMemcpy2D" : "cuMemcpy2D (unified)",
              flat,
              kFlat,
              [=](int device, std::uint32_t* words) { return copy(device, words, true); },
              [=](int device, std::uint32_t* words) { return copy(device, words, false); },
              true});
  }
}

bool make(int device) {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
  cudaSetDevice(device);
  return cudaMalloc(&block[device], kBytes) == cudaSuccess &&
         cudaMalloc(&aside[device], kBytes) == cudaSuccess &&
         cudaMallocArray(&flat[device], &format, kFlat.width, kFlat.height) == cudaSuccess &&
         cudaMallocArray(&single[device], &format, kSingle.width) == cudaSuccess &&
         cudaMalloc3DArray(&solid[device], &format, kSolid) == cudaSuccess &&
         cudaStreamCreateWithFlags(&own[device], cudaStreamNonBlocking) == cudaSuccess;
}

}  // namespace

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("needs two GPUs\n");
    return 77;
  }
  if (!make(0) || !make(1) || cudaMallocManaged(&different, 4) != cudaSuccess) {
    std::printf("no memory\n");
    return 1;
  }
  for (const cudaMemcpyKind kind : {cudaMemcpyDeviceToDevice, cudaMemcpyDefault}) {
    copies_of_the_runtime(kind, kind == cudaMemcpyDefault ? " (default)" : "");
  }
  copies_of_the_driver();
  return 0;
}
