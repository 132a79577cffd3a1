// The C interface: recording.
#include <string>

#include <nofrag/trace.h>

#include "api/edge.h"
#include "runtime/process.h"

using nofrag::Process;
using nofrag::Recorder;

namespace {

// In a forked child, whose parent's recorder has no thread here, and while the process ends.
bool over() {
  const Process& process = Process::instance();
  return process.forked() || process.exiting();
}

nofrag_status refused() {
  return nofrag::to_status(Process::instance().start().code());
}

}  // namespace

nofrag_status nofrag_trace_start(const char* spec) noexcept {
  if (spec == nullptr) {
    return nofrag::invalid_argument("the spec of a recording is NULL");
  }
  return nofrag::to_status(Process::instance().start_trace(spec).code());
}

nofrag_status nofrag_trace_stop(void) noexcept {
  return nofrag::to_status(Process::instance().stop_trace().code());
}

nofrag_status nofrag_trace_flush(void) noexcept {
  if (over()) {
    return refused();
  }
  Recorder* const recorder = Process::instance().recorder();
  return recorder != nullptr && recorder->flush()
             ? NOFRAG_OK
             : nofrag::invalid_argument("nothing is being recorded");
}

nofrag_status nofrag_trace_mark(const char* text) noexcept {
  if (over()) {
    return refused();
  }
  if (text == nullptr) {
    return nofrag::invalid_argument("the text of a mark is NULL");
  }
  if (Recorder* const recorder = Process::instance().recorder()) {
    recorder->mark(text);
  }
  return NOFRAG_OK;
}

nofrag_status nofrag_trace_state(nofrag_trace_info* info,
                                 char* buffer,
                                 size_t capacity,
                                 size_t* needed) noexcept {
  nofrag_trace_info full{};
  full.version = NOFRAG_TRACE_INFO_VERSION;
  std::string path;
  if (const Recorder* const recorder = Process::instance().recorder()) {
    full.active = recorder->active() ? 1 : 0;
    full.events = recorder->events();
    full.bytes = recorder->bytes();
    path = recorder->path();
  }
  const nofrag_status told = nofrag::copy_out(full, info, "nofrag_trace_info");
  return told == NOFRAG_OK ? nofrag::copy_text(path, buffer, capacity, needed) : told;
}
