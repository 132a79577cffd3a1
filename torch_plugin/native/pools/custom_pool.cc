#include "torch_plugin/native/pools/custom_pool.h"

namespace nofrag::native {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmallest = 512;
constexpr std::size_t kSmallUpTo = kMiB;
constexpr std::size_t kLeastOwnSegment = 10 * kMiB;

std::size_t segment_size(std::size_t size) {
  if (size <= kSmallUpTo) {
    return 2 * kMiB;
  }
  if (size < kLeastOwnSegment) {
    return 20 * kMiB;
  }
  return (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

// Is what would be left of a free block worth a block of its own?
bool splits(std::size_t left, bool small) {
  return small ? left >= kSmallest : left > kSmallUpTo;
}

}  // namespace

void* CustomPool::allocate(std::size_t size, cudaStream_t stream, std::size_t* given) {
  const std::lock_guard lock(mutex_);
  poll(false);
  const bool small = size <= kSmallUpTo;
  if (void* block = take_free(size, stream, small, given)) {
    return block;
  }
  const std::size_t whole = segment_size(size);
  void* const made = allocator_->raw_alloc(whole);
  if (made == nullptr) {
    return nullptr;
  }
  const auto address = reinterpret_cast<std::size_t>(made);
  segments_[address] = {whole, name_of(stream), small, {{address, {address, whole, true}}}};
  device_.note_segment(made, whole, small, true, pool_);
  return take_free(size, stream, small, given);
}

void* CustomPool::reuse(std::size_t size, cudaStream_t stream, std::size_t* given) {
  const std::lock_guard lock(mutex_);
  poll(true);
  return take_free(size, stream, size <= kSmallUpTo, given);
}

// The smallest free block of the stream that is large enough, the lowest among equals.
void* CustomPool::take_free(std::size_t size, cudaStream_t stream, bool small, std::size_t* given) {
  const StreamName own = name_of(stream);
  Segment* segment = nullptr;
  Span* best = nullptr;
  for (auto& [start, candidate] : segments_) {
    if (candidate.stream != own || candidate.small != small) {
      continue;
    }
    for (auto& [address, span] : candidate.spans) {
      if (span.free && span.size >= size && (best == nullptr || span.size < best->size)) {
        best = &span;
        segment = &candidate;
      }
    }
  }
  if (best == nullptr) {
    return nullptr;
  }
  best->free = false;
  if (!no_split_ && splits(best->size - size, small)) {
    const Span rest{best->address + size, best->size - size, true};
    best->size = size;
    segment->spans[rest.address] = rest;
  }
  *given = best->size;
  return reinterpret_cast<void*>(best->address);  // NOLINT(performance-no-int-to-ptr)
}

std::map<std::size_t, CustomPool::Segment>::iterator CustomPool::segment_of(std::size_t address) {
  return std::prev(segments_.upper_bound(address));
}

void CustomPool::give_free(std::size_t address) {
  auto& spans = segment_of(address)->second.spans;
  auto span = spans.find(address);
  span->second.free = true;
  if (const auto next = std::next(span); next != spans.end() && next->second.free) {
    span->second.size += next->second.size;
    spans.erase(next);
  }
  if (span != spans.begin() && std::prev(span)->second.free) {
    std::prev(span)->second.size += span->second.size;
    spans.erase(span);
  }
}

void CustomPool::record_stream(const void* block, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  streams_of_block_[reinterpret_cast<std::size_t>(block)].insert(name_of(stream));
}

bool CustomPool::free(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::size_t>(block.address);
  const auto streams = streams_of_block_.find(address);
  if (streams == streams_of_block_.end()) {
    give_free(address);
    return true;
  }
  Waiting waiting{block.address, block.serial, {}};
  for (const StreamName& stream : streams->second) {
    waiting.marks.push_back({stream});
    if (!device_.filling()) {
      set(waiting.marks.back());
    }
  }
  streams_of_block_.erase(streams);
  waiting_.push_back(std::move(waiting));
  return false;
}

// Another thread's default stream is out of reach, but the legacy one's work begins after what it has queued.
void CustomPool::set(Mark& mark) const noexcept {
  const cudaStream_t stream =
      mark.stream.within_reach() ? mark.stream.handle : static_cast<cudaStream_t>(cudaStreamLegacy);
  if (!platform::record(device_.ordinal(), stream, &mark.event)) {
    mark.event = nullptr;
  }
}

// Is the work before the mark done? What the driver does not answer clearly is not.
bool CustomPool::passed(Mark& mark, bool wait) const noexcept {
  if (mark.event == nullptr) {
    set(mark);
  }
  if (mark.event == nullptr) {
    return false;
  }
  if (wait) {
    platform::wait(mark.event);
  }
  const platform::Progress progress = platform::progress(mark.event);
  if (progress == platform::Progress::kRunning) {
    return false;
  }
  platform::discard(mark.event);
  mark.event = nullptr;
  return progress == platform::Progress::kDone;
}

// Blocks whose streams are done become free.
void CustomPool::poll(bool wait) {
  if (waiting_.empty() || device_.filling()) {
    return;
  }
  std::vector<Waiting> done;
  std::vector<Waiting> not_done;
  for (Waiting& waiting : waiting_) {
    std::erase_if(waiting.marks, [&](Mark& mark) { return passed(mark, wait); });
    (waiting.marks.empty() ? done : not_done).push_back(std::move(waiting));
  }
  waiting_ = std::move(not_done);
  for (const Waiting& waiting : done) {
    give_free(reinterpret_cast<std::size_t>(waiting.address));
    device_.complete_free(waiting.address, waiting.serial);
  }
}

void CustomPool::settle() {
  const std::lock_guard lock(mutex_);
  poll(false);
}

// Trackers hear that a segment goes before it does: they undo what others know about its memory. They are told
// without the mutex, as they may come back for it. In a call of their own they cannot be: everything stays.
bool CustomPool::empty() {
  std::unique_lock lock(mutex_);
  if (DeviceState::in_tracker() || device_.filling()) {
    return segments_.empty();
  }
  poll(true);
  for (auto at = segments_.begin(); at != segments_.end();) {
    const auto& spans = at->second.spans;
    if (device_.filling() || spans.size() != 1 || !spans.begin()->second.free) {
      ++at;
      continue;
    }
    // Forgotten first: nobody is given it meanwhile, and an allocator that throws not the same memory twice.
    const auto gone = segments_.extract(at);
    const std::size_t address = gone.key();
    void* const start = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    device_.note_segment(start, gone.mapped().size, gone.mapped().small, false, pool_);
    lock.unlock();
    device_.tell_trackers();
    allocator_->raw_delete(start);
    lock.lock();
    at = segments_.upper_bound(address);
  }
  return segments_.empty();
}

std::map<std::size_t, CustomPool::Segment> CustomPool::segments(const std::function<void()>& look) {
  const std::lock_guard lock(mutex_);
  look();
  return segments_;
}

}  // namespace nofrag::native
