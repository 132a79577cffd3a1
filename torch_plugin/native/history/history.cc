#include "torch_plugin/native/history/history.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "torch_plugin/native/abi/abi.h"

namespace nofrag::native {
namespace {

thread_local std::vector<std::string> compile_contexts;
thread_local std::string metadata_of_thread;

struct ActionName {
  const char* name;
  TraceEntry::Action action;
};
constexpr ActionName kActions[] = {{"alloc", TraceEntry::ALLOC},
                                   {"free_requested", TraceEntry::FREE_REQUESTED},
                                   {"free_completed", TraceEntry::FREE_COMPLETED},
                                   {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
                                   {"segment_free", TraceEntry::SEGMENT_FREE},
                                   {"segment_map", TraceEntry::SEGMENT_MAP},
                                   {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
                                   {"snapshot", TraceEntry::SNAPSHOT},
                                   {"oom", TraceEntry::OOM}};

// A warning may be an exception too, if the program wants it so.
void warn(const char* problem) noexcept {
  try {
    TORCH_WARN_ONCE("a tracker of memory events failed: ", problem);
  } catch (...) {
    return;
  }
}

std::uint32_t bit_of(TraceEntry::Action action) {
  return std::uint32_t{1} << static_cast<unsigned>(action);
}

std::uint32_t bits_of(const std::vector<std::string>& names) {
  std::uint32_t bits = 0;
  for (const std::string& name : names) {
    const auto* found = std::find_if(std::begin(kActions),
                                     std::end(kActions),
                                     [&](const ActionName& a) { return name == a.name; });
    TORCH_CHECK(found != std::end(kActions), "Unknown TraceEntry action: ", name);
    bits |= bit_of(found->action);
  }
  return bits;
}

}  // namespace

void TraceRing::set_most(std::size_t most) {
  std::vector<TraceEntry> kept = entries();
  most_ = std::max<std::size_t>(most, 1);
  if (kept.size() > most_) {
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(most_));
  }
  entries_ = std::move(kept);
  next_ = 0;
}

void TraceRing::clear() {
  entries_.clear();
  entries_.shrink_to_fit();
  next_ = 0;
}

void TraceRing::add(TraceEntry entry) {
  if (entries_.size() < most_) {
    entries_.push_back(std::move(entry));
    return;
  }
  entries_[next_] = std::move(entry);
  next_ = (next_ + 1) % most_;
}

std::vector<TraceEntry> TraceRing::entries() const {
  std::vector<TraceEntry> result;
  result.reserve(entries_.size());
  const auto oldest = entries_.begin() + static_cast<std::ptrdiff_t>(next_);
  result.insert(result.end(), oldest, entries_.end());
  result.insert(result.end(), entries_.begin(), oldest);
  return result;
}

Context History::take_context() const {
  const ContextRecorder recorder = recorder_.load(std::memory_order_acquire);
  return recorder != nullptr ? recorder() : nullptr;
}

bool History::skips(TraceEntry::Action action) const {
  return (skipped_.load(std::memory_order_relaxed) & bit_of(action)) != 0;
}

void History::set(const HistorySettings& settings) {
  TORCH_CHECK(settings.when == RecordContext::NEVER || settings.recorder != nullptr,
              "recording stacks takes a function that gathers them");
  const std::uint32_t skipped = bits_of(settings.skip_actions);
  const std::lock_guard lock(mutex_);
  recorder_.store(settings.enabled ? settings.recorder : nullptr, std::memory_order_release);
  skipped_.store(skipped, std::memory_order_relaxed);
  when_.store(settings.enabled ? settings.when : RecordContext::NEVER, std::memory_order_relaxed);
  recording_.store(settings.enabled, std::memory_order_relaxed);
  most_annotations_ = std::max<std::size_t>(settings.max_entries, 1);
  annotations_.clear();
  next_annotation_ = 0;
}

TraceEntry History::entry(TraceEvent&& event) const {
  // Stacks of live blocks alone are no part of the trace.
  if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC) {
    event.context = nullptr;
  }
  return make_entry(std::move(event),
                    c10::getApproximateTime(),
                    compile_contexts.empty() ? "N/A" : compile_contexts.back(),
                    metadata_of_thread);
}

void History::annotate(c10::DeviceIndex device, const Annotations& metadata) {
  if (!recording()) {
    return;
  }
  AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [name, value] : metadata) {
    entry.recordUserMetadata(name, value);
  }
  const std::lock_guard lock(mutex_);
  if (annotations_.size() < most_annotations_) {
    annotations_.push_back(std::move(entry));
    return;
  }
  annotations_[next_annotation_] = std::move(entry);
  next_annotation_ = (next_annotation_ + 1) % most_annotations_;
}

std::vector<AnnotationEntry> History::annotations() const {
  const std::lock_guard lock(mutex_);
  const auto oldest = annotations_.begin() + static_cast<std::ptrdiff_t>(next_annotation_);
  std::vector<AnnotationEntry> result(oldest, annotations_.end());
  result.insert(result.end(), annotations_.begin(), oldest);
  return result;
}

void History::push_compile_context(const std::string& text) {
  compile_contexts.push_back(text);
}

void History::pop_compile_context() {
  if (!compile_contexts.empty()) {
    compile_contexts.pop_back();
  }
}

void History::set_user_metadata(const std::string& text) {
  metadata_of_thread = text;
}

std::string History::user_metadata() {
  return metadata_of_thread;
}

void History::add_tracker(torch_cuda::AllocatorTraceTracker tracker) {
  const std::lock_guard lock(mutex_);
  auto more = std::make_shared<Trackers>(*trackers_);
  more->push_back(std::move(tracker));
  trackers_ = std::move(more);
  tracked_.store(true, std::memory_order_relaxed);
}

void History::add_observer(torch_cuda::OutOfMemoryObserver observer) {
  const std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void History::tell_trackers(const TraceEntry& entry) const noexcept {
  std::shared_ptr<const Trackers> trackers;
  {
    const std::lock_guard lock(mutex_);
    trackers = trackers_;
  }
  for (const auto& tracker : *trackers) {
    try {
      tracker(entry);
    } catch (const std::exception& problem) {
      warn(problem.what());
    } catch (...) {
      warn("an exception of no known kind");
    }
  }
}

void History::tell_observers(int device,
                             std::size_t requested,
                             std::size_t total,
                             std::size_t free) const {
  std::vector<torch_cuda::OutOfMemoryObserver> observers;
  {
    const std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) {
    observer(device, requested, total, free);
  }
}

}  // namespace nofrag::native
