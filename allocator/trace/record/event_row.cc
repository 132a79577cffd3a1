#include "trace/record/event_row.h"

#include <nofrag/trace_format.h>

namespace nofrag {
namespace {

constexpr std::uint64_t kRounding = 512;

std::uint8_t record_kind(EventKind kind) {
  switch (kind) {
    case EventKind::kAlloc:
      return NOFRAG_TRACE_RECORD_ALLOC;
    case EventKind::kFreeRequested:
      return NOFRAG_TRACE_RECORD_FREE;
    case EventKind::kFreeCompleted:
      return NOFRAG_TRACE_RECORD_FREE_COMPLETED;
    case EventKind::kRecordStream:
      return NOFRAG_TRACE_RECORD_STREAM;
    case EventKind::kMap:
      return NOFRAG_TRACE_RECORD_MAP;
    case EventKind::kUnmap:
      return NOFRAG_TRACE_RECORD_UNMAP;
    case EventKind::kCreate:
      return NOFRAG_TRACE_RECORD_CREATE;
    case EventKind::kRelease:
      return NOFRAG_TRACE_RECORD_RELEASE;
    case EventKind::kRung:
      return NOFRAG_TRACE_RECORD_RUNG;
    case EventKind::kOutOfMemory:
      return NOFRAG_TRACE_RECORD_OUT_OF_MEMORY;
    case EventKind::kCompose:
      return NOFRAG_TRACE_RECORD_COMPOSE;
    case EventKind::kExisting:
      return NOFRAG_TRACE_RECORD_EXISTING;
    case EventKind::kPoolBegin:
      return NOFRAG_TRACE_RECORD_POOL_BEGIN;
    case EventKind::kPoolEnd:
      return NOFRAG_TRACE_RECORD_POOL_END;
    case EventKind::kPoolRelease:
      return NOFRAG_TRACE_RECORD_POOL_RELEASE;
    case EventKind::kRetireStream:
      return NOFRAG_TRACE_RECORD_RETIRE_STREAM;
    case EventKind::kTrim:
      return NOFRAG_TRACE_RECORD_TRIM;
  }
  return 0;
}

}  // namespace

void fill_row(const AllocatorEvent& event,
              std::uint64_t tick,
              std::uint16_t thread,
              std::uint32_t site,
              RecordEvent* row) {
  const bool block = event.kind == EventKind::kAlloc || event.kind == EventKind::kExisting;
  const std::uint64_t held = event.size.count();
  const std::uint64_t asked = block && !event.requested.is_zero() ? event.requested.count() : held;
  const std::uint64_t rounded = (asked + kRounding - 1) / kRounding * kRounding;
  row->tick = tick;
  row->address = event.address.value();
  row->size = event.kind == EventKind::kFreeRequested ? 0 : asked;
  row->stream = event.stream.value();
  row->pool_first = event.pool_first;
  row->pool_second = event.pool_second;
  row->slack = block && held > rounded ? static_cast<std::uint32_t>(held - rounded) : 0;
  row->detail = event.kind == EventKind::kFreeCompleted ? 0 : event.detail;
  row->site = site;
  row->thread = thread;
  row->device = static_cast<std::uint8_t>(event.device.value());
  row->kind = record_kind(event.kind);
}

}  // namespace nofrag
