// types: PyTorch's types that the native allocator works with, by names that hold for every release.
//
// Owns: nothing. Threads, failure: none.
// Invariants: the types are those of the release whose headers are included.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nofrag::native {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

using PoolId = c10::cuda::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;
using torch_cuda::BlockInfo;
using torch_cuda::CheckpointDelta;
using torch_cuda::CUDAAllocator;
using torch_cuda::DeviceStats;
using torch_cuda::RecordContext;
using torch_cuda::SegmentInfo;
using torch_cuda::SnapshotInfo;
using torch_cuda::TraceEntry;
using AnnotationEntry = decltype(SnapshotInfo::external_annotations)::value_type;
using StreamFilter = std::function<bool(cudaStream_t)>;
using ContextRecorder = torch_cuda::CreateContextFn;
using Annotations = std::vector<std::pair<std::string, std::string>>;

// One event of a trace, as all releases know it.
struct TraceEvent {
  TraceEntry::Action action;
  c10::DeviceIndex device;
  std::size_t address;
  std::size_t size;
  cudaStream_t stream;
  PoolId pool;
  Context context;
};

// How memory_history is to be kept (recordHistory).
struct HistorySettings {
  bool enabled = false;
  ContextRecorder recorder = nullptr;
  std::size_t max_entries = 0;
  RecordContext when = RecordContext::NEVER;
  bool clear = true;
  std::vector<std::string> skip_actions;
};

// A live block was annotated after the fact (2.14 and later know the action; earlier ones never ask).
inline TraceEvent annotation_event(int device, const void* address) {
#if NOFRAG_TORCH_MINOR >= 14
  constexpr auto kAction = TraceEntry::ANNOTATE;
#else
  constexpr auto kAction = TraceEntry::ALLOC;
#endif
  return {kAction,
          static_cast<c10::DeviceIndex>(device),
          reinterpret_cast<std::size_t>(address),
          0,
          nullptr,
          {0, 0},
          nullptr};
}

}  // namespace nofrag::native
