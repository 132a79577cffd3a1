// Two GPUs without peer access: every way of copying from the memory of one to that of the other, copies from and to the
// host, and sets, each with either device current, with and without a stream, and captured into a graph. Prints a line a
// fact: the error, and how many words are wrong at the destination. With and without the preload they must be the same.
// 77 with fewer than two GPUs.
//
// usage: across_devices
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kWords = std::size_t{1} << 20;
constexpr std::size_t kBytes = kWords * 4;
constexpr std::size_t kWidth = 4096;  // of a row of a copy in two or three dimensions, in bytes
constexpr std::size_t kRows = kBytes / kWidth;

std::uint32_t* on[2];       // a block on each device
std::uint32_t* pinned;      // page-locked memory of the host
std::uint32_t* pageable;    // other memory of the host
cudaStream_t stream_of[2];  // one on each device

std::uint32_t expected(std::uint32_t seed, std::size_t index) {
  return static_cast<std::uint32_t>(index) * 2654435761u + seed;
}

// The driver's own entry, found as the runtime finds it.
template <typename Function>
Function* entry(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(address);
}

std::vector<std::uint32_t> scratch(kWords);

void write_block(int device, std::uint32_t seed) {
  for (std::size_t i = 0; i < kWords; ++i) {
    scratch[i] = expected(seed, i);
  }
  cudaSetDevice(device);
  cudaMemcpy(on[device], scratch.data(), kBytes, cudaMemcpyHostToDevice);
}

std::size_t wrong_in(const std::uint32_t* words, std::uint32_t seed) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kWords; ++i) {
    wrong += words[i] != expected(seed, i) ? 1 : 0;
  }
  return wrong;
}

std::size_t wrong_on(int device, std::uint32_t seed) {
  cudaSetDevice(device);
  cudaMemcpy(scratch.data(), on[device], kBytes, cudaMemcpyDeviceToHost);
  return wrong_in(scratch.data(), seed);
}

std::uint32_t next_seed = 1;

// What a copy from pageable memory began may go on after it.
void settle() {
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    cudaDeviceSynchronize();
  }
}

// `copy` moves what is in the block of device `from` to the block of the other one.
void across(const std::string& name, const std::function<int(int from, int current)>& copy) {
  for (int from = 0; from < 2; ++from) {
    for (int current = 0; current < 2; ++current) {
      const std::uint32_t seed = next_seed++;
      write_block(from, seed);
      write_block(1 - from, ~seed);
      settle();
      cudaSetDevice(current);
      const int error = copy(from, current);
      settle();
      cudaGetLastError();
      std::printf("%s, from %d, current %d: %d, wrong %zu\n",
                  name.c_str(),
                  from,
                  current,
                  error,
                  wrong_on(1 - from, seed));
    }
  }
}

// Work on the block of `device` alone, with each device current; `work` says what is wrong afterwards.
void beside(const std::string& name,
            const std::function<int(int device, int current)>& work,
            const std::function<std::size_t(int device)>& wrong) {
  for (int device = 0; device < 2; ++device) {
    for (int current = 0; current < 2; ++current) {
      write_block(device, 7);
      settle();
      std::memset(pinned, 0, kBytes);
      std::memset(pageable, 0, kBytes);
      cudaSetDevice(current);
      const int error = work(device, current);
      settle();
      cudaGetLastError();
      std::printf("%s, of %d, current %d: %d, wrong %zu\n",
                  name.c_str(),
                  device,
                  current,
                  error,
                  wrong(device));
    }
  }
}

cudaMemcpy3DParms box(void* to, const void* from, cudaMemcpyKind kind) {
  cudaMemcpy3DParms parameters{};
  parameters.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), kWidth, kWidth, kRows / 4);
  parameters.dstPtr = make_cudaPitchedPtr(to, kWidth, kWidth, kRows / 4);
  parameters.extent = make_cudaExtent(kWidth, kRows / 4, 4);
  parameters.kind = kind;
  return parameters;
}

// What `record` puts into a stream of device `current`, as a graph that is launched once.
int captured(int current, const std::function<int(cudaStream_t)>& record) {
  cudaStream_t stream = stream_of[current];
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  int error = record(stream);
  const int ended = cudaStreamEndCapture(stream, &graph);
  error = error * 1000 + ended;
  if (graph != nullptr) {
    const int made = cudaGraphInstantiate(&instance, graph, 0);
    error = error * 1000 + made;
    if (made == 0) {
      error = error * 1000 + cudaGraphLaunch(instance, stream);
      error = error * 1000 + cudaStreamSynchronize(stream);
      cudaGraphExecDestroy(instance);
    }
    cudaGraphDestroy(graph);
  }
  return error;
}

void copies() {
  for (const cudaMemcpyKind kind : {cudaMemcpyDeviceToDevice, cudaMemcpyDefault}) {
    const std::string suffix = kind == cudaMemcpyDefault ? " (default)" : "";
    across("cudaMemcpy" + suffix,
           [&](int from, int) { return cudaMemcpy(on[1 - from], on[from], kBytes, kind); });
    across("cudaMemcpyAsync" + suffix, [&](int from, int current) {
      return cudaMemcpyAsync(on[1 - from], on[from], kBytes, kind, stream_of[current]);
    });
    across("cudaMemcpyAsync, default stream" + suffix, [&](int from, int) {
      return cudaMemcpyAsync(on[1 - from], on[from], kBytes, kind, nullptr);
    });
    across("cudaMemcpyAsync, other stream" + suffix, [&](int from, int current) {
      return cudaMemcpyAsync(on[1 - from], on[from], kBytes, kind, stream_of[1 - current]);
    });
    across("cudaMemcpy2D" + suffix, [&](int from, int) {
      return cudaMemcpy2D(on[1 - from], kWidth, on[from], kWidth, kWidth, kRows, kind);
    });
    across("cudaMemcpy2DAsync" + suffix, [&](int from, int current) {
      return cudaMemcpy2DAsync(
          on[1 - from], kWidth, on[from], kWidth, kWidth, kRows, kind, stream_of[current]);
    });
    across("cudaMemcpy3D" + suffix, [&](int from, int) {
      const cudaMemcpy3DParms parameters = box(on[1 - from], on[from], kind);
      return cudaMemcpy3D(&parameters);
    });
    across("cudaMemcpy3DAsync" + suffix, [&](int from, int current) {
      const cudaMemcpy3DParms parameters = box(on[1 - from], on[from], kind);
      return cudaMemcpy3DAsync(&parameters, stream_of[current]);
    });
    across("captured cudaMemcpyAsync" + suffix, [&](int from, int current) {
      return captured(current, [&](cudaStream_t stream) {
        return cudaMemcpyAsync(on[1 - from], on[from], kBytes, kind, stream);
      });
    });
    across("captured cudaMemcpy2DAsync" + suffix, [&](int from, int current) {
      return captured(current, [&](cudaStream_t stream) {
        return cudaMemcpy2DAsync(
            on[1 - from], kWidth, on[from], kWidth, kWidth, kRows, kind, stream);
      });
    });
    across("graph node" + suffix, [&](int from, int current) {
      cudaGraph_t graph = nullptr;
      cudaGraphNode_t node = nullptr;
      cudaGraphExec_t instance = nullptr;
      cudaGraphCreate(&graph, 0);
      int error =
          cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, on[1 - from], on[from], kBytes, kind);
      error = error * 1000 + cudaGraphInstantiate(&instance, graph, 0);
      if (instance != nullptr) {
        error = error * 1000 + cudaGraphLaunch(instance, stream_of[current]);
        cudaStreamSynchronize(stream_of[current]);
        cudaGraphExecDestroy(instance);
      }
      cudaGraphDestroy(graph);
      return error;
    });
  }
}

#if CUDART_VERSION >= 13000
void batched_copies() {
  across("cudaMemcpyBatchAsync", [](int from, int current) {
    void* to = on[1 - from];
    const void* source = on[from];
    std::size_t size = kBytes;
    std::size_t first = 0;
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return cudaMemcpyBatchAsync(&to, &source, &size, 1, &attributes, &first, 1, stream_of[current]);
  });
  across("cudaMemcpy3DBatchAsync", [](int from, int current) {
    cudaMemcpy3DBatchOp operation{};
    operation.src.type = operation.dst.type = cudaMemcpyOperandTypePointer;
    operation.src.op.ptr.ptr = on[from];
    operation.dst.op.ptr.ptr = on[1 - from];
    operation.extent = make_cudaExtent(kBytes, 1, 1);
    operation.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return cudaMemcpy3DBatchAsync(1, &operation, 0, stream_of[current]);
  });
}
#else
void batched_copies() {}
#endif

void peer_copies() {
  across("cudaMemcpyPeer", [](int from, int) {
    return cudaMemcpyPeer(on[1 - from], 1 - from, on[from], from, kBytes);
  });
  across("cudaMemcpyPeerAsync", [](int from, int current) {
    return cudaMemcpyPeerAsync(on[1 - from], 1 - from, on[from], from, kBytes, stream_of[current]);
  });
  across("captured cudaMemcpyPeerAsync", [](int from, int current) {
    return captured(current, [&](cudaStream_t stream) {
      return cudaMemcpyPeerAsync(on[1 - from], 1 - from, on[from], from, kBytes, stream);
    });
  });
  across("cudaMemcpy3DPeer", [](int from, int) {
    cudaMemcpy3DPeerParms parameters{};
    const cudaMemcpy3DParms flat = box(on[1 - from], on[from], cudaMemcpyDefault);
    parameters.srcPtr = flat.srcPtr;
    parameters.dstPtr = flat.dstPtr;
    parameters.extent = flat.extent;
    parameters.srcDevice = from;
    parameters.dstDevice = 1 - from;
    return cudaMemcpy3DPeer(&parameters);
  });
}

void driver_copies() {
  auto* const copy = entry<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>("cuMemcpy");
  auto* const copy_async =
      entry<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>("cuMemcpyAsync");
  auto* const between = entry<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>("cuMemcpyDtoD");
  auto* const between_async =
      entry<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>("cuMemcpyDtoDAsync");
  const auto at = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
  across("cuMemcpy", [&](int from, int) { return copy(at(on[1 - from]), at(on[from]), kBytes); });
  across("cuMemcpyAsync", [&](int from, int current) {
    return copy_async(at(on[1 - from]), at(on[from]), kBytes, stream_of[current]);
  });
  across("cuMemcpyDtoD",
         [&](int from, int) { return between(at(on[1 - from]), at(on[from]), kBytes); });
  across("cuMemcpyDtoDAsync", [&](int from, int current) {
    return between_async(at(on[1 - from]), at(on[from]), kBytes, stream_of[current]);
  });
  auto* const flat = entry<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2D");
  auto* const unaligned = entry<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2DUnaligned");
  const auto rectangle = [&](int from, CUmemorytype type) {
    CUDA_MEMCPY2D wanted{};
    wanted.srcMemoryType = wanted.dstMemoryType = type;
    wanted.srcDevice = at(on[from]);
    wanted.dstDevice = at(on[1 - from]);
    wanted.srcPitch = wanted.dstPitch = wanted.WidthInBytes = kWidth;
    wanted.Height = kRows;
    return wanted;
  };
  for (const CUmemorytype type : {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED}) {
    const std::string suffix = type == CU_MEMORYTYPE_DEVICE ? "" : " (unified)";
    across("cuMemcpy2D" + suffix, [&](int from, int) {
      const CUDA_MEMCPY2D wanted = rectangle(from, type);
      return flat(&wanted);
    });
    across("cuMemcpy2DUnaligned" + suffix, [&](int from, int) {
      const CUDA_MEMCPY2D wanted = rectangle(from, type);
      return unaligned(&wanted);
    });
  }
}

// While another stream is captured, in the mode that forbids the most.
void beside_a_capture() {
  const auto while_captured = [](const std::string& name,
                                 const std::function<int(int from, int current)>& copy) {
    across(name, [&](int from, int current) {
      cudaStream_t captured = nullptr;
      cudaGraph_t graph = nullptr;
      cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking);
      cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal);
      int error = copy(from, current);
      error = error * 1000 + cudaStreamEndCapture(captured, &graph);
      if (graph != nullptr) {
        cudaGraphDestroy(graph);
      }
      cudaStreamDestroy(captured);
      return error;
    });
  };
  while_captured("beside a capture, in a stream", [](int from, int current) {
    return cudaMemcpyAsync(
        on[1 - from], on[from], kBytes, cudaMemcpyDeviceToDevice, stream_of[current]);
  });
  while_captured("beside a capture", [](int from, int) {
    return cudaMemcpyAsync(on[1 - from], on[from], kBytes, cudaMemcpyDeviceToDevice, nullptr);
  });
  while_captured("beside a capture, 2D", [](int from, int) {
    return cudaMemcpy2DAsync(
        on[1 - from], kWidth, on[from], kWidth, kWidth, kRows, cudaMemcpyDeviceToDevice, nullptr);
  });
}

void host_copies() {
  const auto at_home = [](int device) { return wrong_on(device, 9); };
  for (const bool locked : {false, true}) {
    std::uint32_t*& host = locked ? pinned : pageable;
    const std::string suffix = locked ? ", pinned" : ", pageable";
    const auto fill_host = [&] {
      for (std::size_t i = 0; i < kWords; ++i) {
        host[i] = expected(9, i);
      }
    };
    const auto at_host = [&](int) { return wrong_in(host, 7); };
    for (const cudaMemcpyKind kind : {cudaMemcpyHostToDevice, cudaMemcpyDefault}) {
      const std::string how = suffix + (kind == cudaMemcpyDefault ? " (default)" : "");
      beside(
          "to the device" + how,
          [&](int device, int) {
            fill_host();
            return cudaMemcpy(on[device], host, kBytes, kind);
          },
          at_home);
      beside(
          "to the device, async" + how,
          [&](int device, int current) {
            fill_host();
            return cudaMemcpyAsync(on[device], host, kBytes, kind, stream_of[current]);
          },
          at_home);
      beside(
          "to the device, 2D" + how,
          [&](int device, int current) {
            fill_host();
            return cudaMemcpy2DAsync(
                on[device], kWidth, host, kWidth, kWidth, kRows, kind, stream_of[current]);
          },
          at_home);
      beside(
          "to the device, 3D" + how,
          [&](int device, int) {
            fill_host();
            const cudaMemcpy3DParms parameters = box(on[device], host, kind);
            return cudaMemcpy3D(&parameters);
          },
          at_home);
    }
    for (const cudaMemcpyKind kind : {cudaMemcpyDeviceToHost, cudaMemcpyDefault}) {
      const std::string how = suffix + (kind == cudaMemcpyDefault ? " (default)" : "");
      beside(
          "to the host" + how,
          [&](int device, int) { return cudaMemcpy(host, on[device], kBytes, kind); },
          at_host);
      beside(
          "to the host, async" + how,
          [&](int device, int current) {
            return cudaMemcpyAsync(host, on[device], kBytes, kind, stream_of[current]);
          },
          at_host);
      beside(
          "to the host, 2D" + how,
          [&](int device, int current) {
            return cudaMemcpy2DAsync(
                host, kWidth, on[device], kWidth, kWidth, kRows, kind, stream_of[current]);
          },
          at_host);
      beside(
          "to the host, 3D" + how,
          [&](int device, int) {
            const cudaMemcpy3DParms parameters = box(host, on[device], kind);
            return cudaMemcpy3D(&parameters);
          },
          at_host);
    }
  }
}

void sets() {
  const auto not_fives = [](int device) {
    wrong_on(device, 0);
    std::size_t wrong = 0;
    for (const std::uint32_t word : scratch) {
      wrong += word != 0x05050505u ? 1 : 0;
    }
    return wrong;
  };
  beside(
      "cudaMemset", [](int device, int) { return cudaMemset(on[device], 5, kBytes); }, not_fives);
  beside(
      "cudaMemsetAsync",
      [](int device, int current) {
        return cudaMemsetAsync(on[device], 5, kBytes, stream_of[current]);
      },
      not_fives);
  beside(
      "cudaMemset2D",
      [](int device, int) { return cudaMemset2D(on[device], kWidth, 5, kWidth, kRows); },
      not_fives);
  beside(
      "cudaMemset3D",
      [](int device, int) {
        return cudaMemset3D(make_cudaPitchedPtr(on[device], kWidth, kWidth, kRows / 4),
                            5,
                            make_cudaExtent(kWidth, kRows / 4, 4));
      },
      not_fives);
  beside(
      "captured cudaMemsetAsync",
      [](int device, int current) {
        return captured(current, [&](cudaStream_t stream) {
          return cudaMemsetAsync(on[device], 5, kBytes, stream);
        });
      },
      not_fives);
  auto* const words = entry<CUresult(CUdeviceptr, unsigned, std::size_t)>("cuMemsetD32");
  beside(
      "cuMemsetD32",
      [&](int device, int) {
        return words(reinterpret_cast<CUdeviceptr>(on[device]), 0x05050505u, kWords);
      },
      not_fives);
}

}  // namespace

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("needs two GPUs\n");
    return 77;
  }
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    if (cudaMalloc(&on[device], kBytes) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream_of[device], cudaStreamNonBlocking) != cudaSuccess) {
      std::printf("device %d has no memory\n", device);
      return 1;
    }
  }
  if (cudaMallocHost(&pinned, kBytes) != cudaSuccess) {
    return 1;
  }
  pageable = new std::uint32_t[kWords];
  copies();
  batched_copies();
  peer_copies();
  beside_a_capture();
  driver_copies();
  host_copies();
  sets();
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    std::printf("free: %d\n", cudaFree(on[device]));
  }
  return 0;
}
