#include "trace/stacks/stack_sampler.h"

#include <span>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kMultiplier;
  return hash ^ (hash >> 32);
}

std::uint64_t hash_of(const UnloadedCode& unloaded,
                      std::span<const std::uint64_t> native,
                      std::string_view python) {
  std::uint64_t hash = mixed(1, native.size());
  for (const std::uint64_t address : native) {
    hash = mixed(hash, address);
    if (const std::uint64_t generation = unloaded.generation_of(address); generation != 0) {
      hash = mixed(hash, ~generation);  // which is no address of code
    }
  }
  for (; python.size() >= sizeof(std::uint64_t); python.remove_prefix(sizeof(std::uint64_t))) {
    hash = mixed(hash, load_little_endian<std::uint64_t>(python, 0));
  }
  for (const char byte : python) {
    hash = mixed(hash, static_cast<unsigned char>(byte));
  }
  hash = mixed(hash, kMultiplier);
  return hash == 0 ? 1 : hash;
}

std::uint64_t next_random(std::uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

}  // namespace

StackSampler::StackSampler(StackSettings settings)
    : settings_(settings),
      own_code_(library_around(reinterpret_cast<std::uint64_t>(&native_stack))) {
  python_.find();
  const std::lock_guard lock(mutex_);
  refresh(loader_changes());
  // The first walk of a process may set things up in the unwinder.
  std::array<std::uint64_t, 1> one{};
  bool cut = false;
  native_stack(one, own_code_, &cut);
}

void StackSampler::look_for_python() {
  if (python_.found()) {
    return;
  }
  if (const std::uint64_t loaded = loader_changes().loaded; loaded != looked_at_) {
    looked_at_ = loaded;
    python_.find();
  }
}

void StackSampler::refresh(LoaderChanges now) {
  for (const CodeRange& gone : modules_.refresh()) {
    unloaded_code_.add(gone);
  }
  seen_ = now;
  sliced_.store(modules_.slices_stacks(), std::memory_order_relaxed);
  loaded_.store(now.loaded, std::memory_order_relaxed);
  unloaded_.store(now.unloaded, std::memory_order_release);
}

// Addresses may mean something else once a module is gone; and one that came may slice stacks.
void StackSampler::follow_loader() {
  const LoaderChanges now = loader_changes();
  if (now.unloaded == unloaded_.load(std::memory_order_acquire) &&
      now.loaded == loaded_.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (now.unloaded > seen_.unloaded || now.loaded > seen_.loaded) {
    refresh(now);
  }
}

[[gnu::noinline]] std::uint32_t StackSampler::capture(Thread& thread, std::uint64_t size) {
  if (size < settings_.from_bytes) {
    thread.left = 1 + next_random(&thread.random) % (2 * std::uint64_t{settings_.every} - 1);
  }
  if (std::exchange(thread.inside, true)) {
    return 0;  // the walk allocates from us
  }
  follow_loader();
  bool native_cut = false;
  bool python_cut = false;
  thread.python.clear();
  const std::size_t native = sliced_.load(std::memory_order_relaxed)
                                 ? 0
                                 : native_stack(thread.native, own_code_, &native_cut);
  const std::size_t python = python_.walk(kMostPython, &thread.python, &python_cut);
  const std::uint64_t hash =
      hash_of(unloaded_code_, std::span(thread.native).first(native), thread.python);
  std::uint32_t site = native + python == 0 ? 0 : table_.find(hash);
  if (site == 0 && native + python > 0) {
    site = add(thread,
               hash,
               native,
               python,
               (native_cut ? NOFRAG_TRACE_STACK_NATIVE_CUT : 0U) |
                   (python_cut ? NOFRAG_TRACE_STACK_PYTHON_CUT : 0U));
  }
  thread.inside = false;
  return site;
}

std::uint32_t StackSampler::add(
    Thread& thread, std::uint64_t hash, std::size_t native, std::size_t python, unsigned flags) {
  const std::lock_guard lock(mutex_);
  if (const std::uint32_t there = table_.find(hash); there != 0) {
    return there;
  }
  const std::uint32_t site = table_.add(hash);
  if (site == 0) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  if (const LoaderChanges now = loader_changes(); now.loaded > seen_.loaded) {
    refresh(now);
  }
  append_varint(site, &rows_);
  append_varint(flags, &rows_);
  append_varint(native, &rows_);
  for (std::size_t i = 0; i < native; ++i) {
    const ModuleTable::Place place = modules_.place(thread.native[i]);
    append_varint(place.module, &rows_);
    append_varint(place.offset, &rows_);
  }
  append_varint(python, &rows_);
  rows_.append(thread.python);
  ++row_count_;
  return site;
}

StackSampler::Rows StackSampler::take_rows() {
  Rows rows;
  rows.lost = lost_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  rows.module_count = modules_.take_rows(&rows.modules);
  rows.stacks.swap(rows_);
  rows.stack_count = std::exchange(row_count_, 0);
  return rows;
}

}  // namespace nofrag
