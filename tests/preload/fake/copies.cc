// The fake's copies. Contents are one byte value every 512 bytes. A copy is refused where memory that was mapped is
// named and one of the devices that take part (the current one, the stream's, that of the other end) has no access to
// it; plain allocations are everybody's. What is captured happens at once.
#include <algorithm>
#include <vector>

#include "fake.h"

using fake::driver;

namespace {

constexpr std::size_t kStep = 512;

nofrag::VirtAddr address_of(CUdeviceptr pointer) {
  return nofrag::VirtAddr(std::uint64_t{pointer});
}

struct Place {
  int device = -1;  // -1: the host
  bool mapped = false;
};

Place place_of(CUdeviceptr pointer) {
  const auto before = [pointer](auto& map) {
    auto found = map.upper_bound(pointer);
    return found == map.begin() ||
                   pointer - std::prev(found)->first >= std::prev(found)->second.size
               ? map.end()
               : std::prev(found);
  };
  if (const auto found = before(driver().allocations); found != driver().allocations.end()) {
    return {found->second.context->device, false};
  }
  if (const auto found = before(driver().mappings); found != driver().mappings.end()) {
    return {driver().handles[found->second.handle].device, true};
  }
  return {};
}

// Every byte of it.
bool sees(CUdeviceptr pointer, std::size_t size, int device) {
  for (std::size_t at = 0; at < size; at += kStep) {
    if (!driver().sim->read_tag(address_of(pointer + at), nofrag::DeviceOrdinal(device)).ok()) {
      return false;
    }
  }
  return true;
}

struct End {
  CUdeviceptr pointer = 0;
  std::size_t size = 0;
};

// May these be copied from and to, by the current device and that of the stream?
bool allowed(std::initializer_list<End> ends, CUstream stream) {
  const fake::Context* const context = fake::current();
  if (context == nullptr) {
    return false;
  }
  std::vector<int> devices{context->device};
  if (const auto found = driver().streams.find(stream); found != driver().streams.end()) {
    devices.push_back(found->second->device);
  }
  for (const End& end : ends) {
    devices.push_back(place_of(end.pointer).device);
  }
  return std::all_of(ends.begin(), ends.end(), [&](const End& end) {
    return !place_of(end.pointer).mapped ||
           std::all_of(devices.begin(), devices.end(), [&](int device) {
             return device < 0 || sees(end.pointer, end.size, device);
           });
  });
}

unsigned char byte_at(CUdeviceptr pointer) {
  const Place place = place_of(pointer);
  if (place.device < 0) {
    return *static_cast<const unsigned char*>(address_of(pointer).pointer());
  }
  const auto tag = driver().sim->read_tag(address_of(pointer), nofrag::DeviceOrdinal(place.device));
  return static_cast<unsigned char>(tag.ok() && tag.value() != 0 ? tag.value() - 1 : 0);
}

void fill(CUdeviceptr pointer, std::size_t size, unsigned char byte) {
  const Place place = place_of(pointer);
  if (place.device < 0) {
    std::fill_n(static_cast<unsigned char*>(address_of(pointer).pointer()), size, byte);
    return;
  }
  static_cast<void>(driver().sim->write(nofrag::StreamId(0),
                                        address_of(pointer),
                                        nofrag::Bytes(size),
                                        std::uint64_t{byte} + 1,
                                        nofrag::DeviceOrdinal(place.device)));
}

CUresult move(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kStep) {
    fill(to + at, std::min(kStep, size - at), byte_at(from + at));
  }
  return CUDA_SUCCESS;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  if (!allowed({{to, size}, {from, size}}, stream)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fake::is_default_stream(stream)) {
    driver().order += "copy " + std::to_string(fake::current()->device) + " ";
  }
  return move(to, from, size);
}

CUresult copy_named(CUdeviceptr to,
                    CUcontext to_context,
                    CUdeviceptr from,
                    CUcontext from_context,
                    std::size_t size) {
  const auto lies_in = [](CUdeviceptr pointer, CUcontext context) {
    return context != nullptr &&
           place_of(pointer).device == reinterpret_cast<const fake::Context*>(context)->device;
  };
  return lies_in(to, to_context) && lies_in(from, from_context) ? move(to, from, size)
                                                                : CUDA_ERROR_INVALID_VALUE;
}

// Memory of the host's and of a device's.
CUresult from_host(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  return place_of(to).device < 0 ? CUDA_ERROR_INVALID_VALUE
                                 : copy(to, nofrag::VirtAddr(from).value(), size, stream);
}

CUresult to_host(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return place_of(from).device < 0 ? CUDA_ERROR_INVALID_VALUE
                                   : copy(nofrag::VirtAddr(to).value(), from, size, stream);
}

CUdeviceptr host(const void* pointer) {
  return nofrag::VirtAddr(pointer).value();
}

template <typename Copy>
CUdeviceptr from_of(const Copy* wanted) {
  return wanted->srcMemoryType == CU_MEMORYTYPE_HOST ? host(wanted->srcHost) : wanted->srcDevice;
}

template <typename Copy>
CUdeviceptr to_of(const Copy* wanted) {
  return wanted->dstMemoryType == CU_MEMORYTYPE_HOST ? host(wanted->dstHost) : wanted->dstDevice;
}

// Rows without gaps are all that the clients ask for.
CUresult copy_2d(const CUDA_MEMCPY2D* wanted, CUstream stream) {
  return copy(to_of(wanted), from_of(wanted), wanted->WidthInBytes * wanted->Height, stream);
}

CUresult copy_3d(const CUDA_MEMCPY3D* wanted, CUstream stream) {
  return copy(to_of(wanted),
              from_of(wanted),
              wanted->WidthInBytes * wanted->Height * wanted->Depth,
              stream);
}

}  // namespace

extern "C" {

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  FAKE_ENTRY("cuMemcpy")
  return copy(to, from, size, nullptr);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  FAKE_ENTRY("cuMemcpyAsync")
  return copy(to, from, size, stream);
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  FAKE_ENTRY("cuMemcpyDtoD_v2")
  return copy(to, from, size, nullptr);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  FAKE_ENTRY("cuMemcpyDtoDAsync_v2")
  return copy(to, from, size, stream);
}

// With the devices named nobody needs access.
CUresult cuMemcpyPeer(CUdeviceptr to,
                      CUcontext to_context,
                      CUdeviceptr from,
                      CUcontext from_context,
                      std::size_t size) {
  FAKE_ENTRY("cuMemcpyPeer")
  return copy_named(to, to_context, from, from_context, size);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to,
                           CUcontext to_context,
                           CUdeviceptr from,
                           CUcontext from_context,
                           std::size_t size,
                           CUstream stream) {
  FAKE_ENTRY("cuMemcpyPeerAsync")
  return fake::is_capturing(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                    : copy_named(to, to_context, from, from_context, size);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t size) {
  FAKE_ENTRY("cuMemcpyHtoD_v2")
  return from_host(to, from, size, nullptr);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  FAKE_ENTRY("cuMemcpyHtoDAsync_v2")
  return from_host(to, from, size, stream);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size) {
  FAKE_ENTRY("cuMemcpyDtoH_v2")
  return to_host(to, from, size, nullptr);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  FAKE_ENTRY("cuMemcpyDtoHAsync_v2")
  return to_host(to, from, size, stream);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D* wanted) {
  FAKE_ENTRY("cuMemcpy2D_v2")
  return copy_2d(wanted, nullptr);
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* wanted) {
  FAKE_ENTRY("cuMemcpy2DUnaligned_v2")
  return copy_2d(wanted, nullptr);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* wanted, CUstream stream) {
  FAKE_ENTRY("cuMemcpy2DAsync_v2")
  return copy_2d(wanted, stream);
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D* wanted) {
  FAKE_ENTRY("cuMemcpy3D_v2")
  return copy_3d(wanted, nullptr);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* wanted, CUstream stream) {
  FAKE_ENTRY("cuMemcpy3DAsync_v2")
  return copy_3d(wanted, stream);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to,
                            CUdeviceptr* from,
                            std::size_t* sizes,
                            std::size_t count,
                            CUmemcpyAttributes* /*attributes*/,
                            std::size_t* /*which*/,
                            std::size_t /*attribute_count*/,
                            CUstream stream) {
  FAKE_ENTRY("cuMemcpyBatchAsync_v2")
  CUresult result = CUDA_SUCCESS;
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    result = copy(to[i], from[i], sizes[i], stream);
  }
  return result;
}

CUresult cuMemcpy3DBatchAsync(std::size_t count,
                              CUDA_MEMCPY3D_BATCH_OP* copies,
                              unsigned long long /*flags*/,
                              CUstream stream) {
  FAKE_ENTRY("cuMemcpy3DBatchAsync_v2")
  CUresult result = CUDA_SUCCESS;
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    const CUextent3D& extent = copies[i].extent;
    result = copy(copies[i].dst.op.ptr.ptr,
                  copies[i].src.op.ptr.ptr,
                  extent.width * extent.height * extent.depth,
                  stream);
  }
  return result;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* /*node*/,
                              CUgraph /*graph*/,
                              const CUgraphNode* /*before*/,
                              std::size_t /*count*/,
                              const CUDA_MEMCPY3D* wanted,
                              CUcontext /*context*/) {
  FAKE_ENTRY("cuGraphAddMemcpyNode")
  return copy_3d(wanted, nullptr);
}

CUresult cuGraphAddNode(CUgraphNode* /*node*/,
                        CUgraph /*graph*/,
                        const CUgraphNode* /*before*/,
                        const CUgraphEdgeData* /*edges*/,
                        std::size_t /*count*/,
                        CUgraphNodeParams* wanted) {
  FAKE_ENTRY("cuGraphAddNode_v2")
  return wanted->type == CU_GRAPH_NODE_TYPE_MEMCPY ? copy_3d(&wanted->memcpy.copyParams, nullptr)
                                                   : CUDA_SUCCESS;
}

}  // extern "C"
