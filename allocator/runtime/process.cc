#include "runtime/process.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "config/parser.h"
#include "runtime/environment.h"
#include "runtime/implied_options.h"
#include "runtime/last_error.h"
#include "runtime/log.h"
#include "runtime/observe/passed_on.h"
#include "runtime/open_driver.h"

namespace nofrag {
namespace {

// What one source of options had to say.
struct ReadOptions {
  std::vector<std::string> problems;
  OptionSet given;
};

// A problem names the variable that has it, and no other.
void note_problems(const char* variable, const std::vector<std::string>& found, ReadOptions* read) {
  for (const std::string& problem : found) {
    read->problems.push_back(std::string(variable) + ": " + problem);
  }
}

void read_environment(Options* options, ReadOptions* conf, ReadOptions* own) {
  std::vector<std::string> in_conf;
  parse_options(environment("NOFRAG_CONF"), options, &in_conf, &conf->given);
  check_limit(*options, &in_conf);
  note_problems("NOFRAG_CONF", in_conf, conf);
  constexpr std::pair<const char*, const char*> kOwnVariables[] = {
      {"NOFRAG_LOG", "log"}, {"NOFRAG_STATS", "stats"}, {"NOFRAG_METRICS", "metrics"}};
  for (const auto& [variable, key] : kOwnVariables) {
    const char* value = environment(variable);
    std::vector<std::string> problems;
    if (*value != '\0') {
      parse_option(key, value, options, &problems, &own->given);
    }
    note_problems(variable, problems, own);
  }
  if (const char* trace = environment("NOFRAG_TRACE"); *trace != '\0') {
    std::vector<std::string> problems;
    parse_trace_spec(trace, options, &problems, &own->given);
    note_problems("NOFRAG_TRACE", problems, own);
  }
}

void report_problems(const std::vector<std::string>& problems) {
  for (const std::string& problem : problems) {
    log_line(LogLevel::kWarning, "%s", problem.c_str());
  }
}

// Counts and peaks of a device that was dropped before, added to those of its successor.
void add_past(const DeviceReport& past, DeviceReport* report) {
  if (past.device != report->device) {
    return;
  }
  DeviceStats& now = report->stats;
  now.peak_live = std::max(now.peak_live, past.stats.peak_live);
  now.peak_allocated = std::max(now.peak_allocated, past.stats.peak_allocated);
  now.peak_reserved = std::max(now.peak_reserved, past.stats.peak_reserved);
  now.allocations += past.stats.allocations;
  now.frees += past.stats.frees;
  now.failed_allocations += past.stats.failed_allocations;
  for (std::size_t i = 0; i < now.rungs.size(); ++i) {
    now.rungs[i] += past.stats.rungs[i];
  }
}

// Once a device: it runs on what the user may not expect.
void say_if_plain(const DeviceAllocator& device, const Options& options) {
  if (!device.uses_virtual_memory() && options.backend != Backend::kPlain) {
    log_line(LogLevel::kWarning,
             "device %d has no virtual memory management: falling back to one driver allocation a "
             "block, which cannot avoid fragmentation",
             device.device().value());
  }
}

}  // namespace

constinit std::atomic<Process*> Process::ready_{nullptr};

Process& Process::instance() {
  static Process* const process = new Process;
  return *process;
}

DeviceAllocator* Process::other_owner(VirtAddr address) const {
  for (int i = 1; i < device_count_; ++i) {
    DeviceAllocator* device = used_device(i);
    if (device != nullptr && device->owns(address)) {
      return device;
    }
  }
  return nullptr;
}

Status Process::refuse(Phase phase) const {
  if (phase == kForked) {
    return set_last_error({Errc::kForked},
                          "this process was forked from one that had used nofrag, and a GPU cannot "
                          "be used across fork; use spawn or exec, or fork before the first use");
  }
  return set_last_error({Errc::kExiting}, "the process is exiting");
}

Status Process::prefer(const char* source, const std::string& conf) {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase > kReady) {
    return refuse(phase);
  }
  const std::lock_guard lock(mutex_);
  if (phase_.load(std::memory_order_acquire) == kReady) {
    return set_last_error(
        {Errc::kAlreadyInitialized}, "nofrag is in use already: it was started without %s", source);
  }
  preferred_source_ = source;
  preferred_ = conf;
  return {};
}

Status Process::init(const char* conf) {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase > kReady) {
    return refuse(phase);
  }
  settle();
  const std::lock_guard lock(mutex_);
  if (phase_.load(std::memory_order_acquire) == kReady) {
    return set_last_error({Errc::kAlreadyInitialized},
                          "nofrag is in use already: nofrag_init must come once, before the first "
                          "allocation");
  }
  return start_locked(conf);
}

Status Process::start() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == kReady) {
    return {};
  }
  if (phase > kReady) {
    return refuse(phase);
  }
  settle();
  const std::lock_guard lock(mutex_);
  if (phase_.load(std::memory_order_acquire) == kReady) {
    return {};
  }
  if (start_failed_) {
    return set_last_error(start_error_, "%s", start_problem_.c_str());
  }
  return start_locked(nullptr);
}

void Process::change_start(const StartChanges& changes) {
  const std::lock_guard lock(mutex_);
  const bool asked_for = changes_.shareable;  // by prefer_shareable
  changes_ = changes;
  changes_.shareable = changes.shareable || asked_for;
}

Status Process::prefer_shareable() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase > kReady) {
    return refuse(phase);
  }
  const std::lock_guard lock(mutex_);
  if (phase_.load(std::memory_order_acquire) != kReady) {
    changes_.shareable = true;
    return {};
  }
  if (exportable()) {
    return {};
  }
  return set_last_error({Errc::kAlreadyInitialized},
                        "nofrag is in use already, and its memory cannot be exported; set "
                        "shareable_handles:fd in NOFRAG_CONF");
}

Status Process::read_options(const char* conf, Options* options) {
  ReadOptions from_preferred;
  ReadOptions from_conf;
  ReadOptions from_own;
  ReadOptions from_call;
  parse_options(preferred_, options, &from_preferred.problems, &from_preferred.given);
  read_environment(options, &from_conf, &from_own);
  if (conf != nullptr) {
    parse_options(conf, options, &from_call.problems, &from_call.given);
  }
  const auto shareable = static_cast<std::size_t>(OptionId::k_shareable_handles);
  if (changes_.shareable && !from_conf.given[shareable] && !from_call.given[shareable]) {
    options->shareable_handles = ShareableHandles::kFd;
  }
  set_log_level(options->log);
  if (add_implied(options)) {
    log_line(LogLevel::kWarning,
             "nvtx:memory takes each block from the driver by itself (backend:plain), because "
             "compute-sanitizer checks no other; backend:vmm keeps nofrag's own layout");
  }
  report_problems(from_conf.problems);
  report_problems(from_own.problems);
  const bool environment_bad = !from_conf.problems.empty() || !from_own.problems.empty();
  if (options->abort_conf && environment_bad) {
    std::fputs("nofrag: abort_conf:true, and the configuration above has problems\n", stderr);
    std::abort();
  }
  if (!from_call.problems.empty()) {
    return set_last_error(
        {Errc::kBadConfig}, "nofrag_init: %s", from_call.problems.front().c_str());
  }
  if (options->confirm_conf) {
    const std::string dump = dump_options(*options,
                                          {{preferred_source_, from_preferred.given},
                                           {"NOFRAG_CONF", from_conf.given},
                                           {"environment", from_own.given},
                                           {"nofrag_init", from_call.given}});
    std::fprintf(stderr, "nofrag: options in use\n%s", dump.c_str());
  }
  return {};
}

Status Process::start_locked(const char* conf) {
  if (!handlers_registered_) {
    handlers_registered_ = true;
    ::pthread_atfork(nullptr, nullptr, &Process::at_fork_child);
  }
  Options options;
  if (const Status read = read_options(conf, &options); !read) {
    return read;
  }
  std::string problem;
  std::unique_ptr<Driver> driver = open_driver(options, changes_.lookup, &problem);
  Error error{Errc::kNotInitialized};
  int count = 0;
  if (driver != nullptr) {
    if (const Result<int> counted = driver->device_count(); counted) {
      count = counted.value();
    } else {
      error = counted.error();
      problem = "driver " + driver->name() +
                " could not count its devices: " + to_string(counted.code()) + " (" +
                std::to_string(error.driver_code) + ")";
      driver.reset();
    }
  }
  start_failed_ = driver == nullptr;
  if (start_failed_) {
    start_error_ = error;
    start_problem_ = problem;
    return set_last_error(error, "%s", problem.c_str());
  }
  options_ = std::move(options);
  driver_ = std::move(driver);
  device_count_ = count < kMostDevices ? count : kMostDevices;
  observer_.configure(options_, driver_.get());
  tracing_.start_nvtx(options_);
  // A job is worth more than its recording: it goes on without, and no call has failed.
  const LastError before = last_error();
  if (const Status traced = tracing_.start(options_, driver_->name()); !traced.ok()) {
    log_line(LogLevel::kWarning, "%s", last_error().text);
    restore_last_error(before);
  }
  // After the driver has registered its own handlers: ours runs before them.
  std::atexit(&Process::at_exit);
  enter(kReady);
  log_line(LogLevel::kInfo,
           "started on driver %s with %d device(s)",
           driver_->name().c_str(),
           device_count_);
  return {};
}

Result<int> Process::device_count() {
  if (const Status started = start(); !started) {
    return started.error();
  }
  return device_count_;
}

Result<DeviceAllocator*> Process::device_if_used(int ordinal) {
  if (const Status started = start(); !started) {
    return started.error();
  }
  if (ordinal < 0 || ordinal >= device_count_) {
    return set_last_error({Errc::kInvalidArgument},
                          "there is no device %d: this process sees %d",
                          ordinal,
                          device_count_);
  }
  return devices_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
}

Result<DeviceAllocator*> Process::device(int ordinal) {
  Result<DeviceAllocator*> used = device_if_used(ordinal);
  if (!used || used.value() != nullptr) {
    return used;
  }
  return make_device(ordinal);
}

Result<DeviceAllocator*> Process::make_device(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::atomic<DeviceAllocator*>& slot = devices_[static_cast<std::size_t>(ordinal)];
  if (DeviceAllocator* made = slot.load(std::memory_order_acquire); made != nullptr) {
    return made;
  }
  Result<std::unique_ptr<DeviceAllocator>> created =
      DeviceAllocator::create(*driver_, DeviceOrdinal(ordinal), options_);
  if (!created) {
    const Error error = created.error();
    return set_last_error(error,
                          "device %d could not be used: %s (driver code %d)",
                          ordinal,
                          to_string(error.code),
                          error.driver_code);
  }
  DeviceAllocator* const allocator = created.value().release();
  allocator->share_addresses(
      static_cast<unsigned>(kept_ranges() > 0 ? kMostDevices : device_count_));
  allocator->add_pressure_callback([this](DeviceOrdinal device, Bytes needed) {
    return call_pressure_callbacks(device, needed);
  });
  if (watch_) {
    allocator->set_watch(watch_);
  }
  say_if_plain(*allocator, options_);
  tracing_.attach(*allocator);
  slot.store(allocator, std::memory_order_release);
  observer_.device_made(allocator);
  return allocator;
}

void Process::drop_device(int ordinal, Addresses addresses) {
  if (ordinal < 0 || ordinal >= kMostDevices) {
    return;
  }
  const std::lock_guard lock(mutex_);
  DeviceAllocator* const device =
      devices_[static_cast<std::size_t>(ordinal)].exchange(nullptr, std::memory_order_acq_rel);
  if (device != nullptr) {
    if (addresses == Addresses::kKept) {
      kept_addresses_.fetch_add(device->keep_addresses().count(), std::memory_order_relaxed);
      kept_ranges_.fetch_add(1, std::memory_order_acq_rel);
    }
    const std::lock_guard dropping(dropped_mutex_);
    DeviceReport last{ordinal, device->info().name, device->uses_virtual_memory(), device->stats()};
    for (const DeviceReport& earlier : dropped_) {
      add_past(earlier, &last);
    }
    std::erase_if(dropped_, [&](const auto& other) { return other.device == ordinal; });
    // What it held is gone; what it did stays.
    DeviceReport past{last.device, last.name, last.virtual_memory, {}};
    past.stats.limit = last.stats.limit;
    add_past(last, &past);
    dropped_.push_back(std::move(past));
    // Who still looks at it must not find it freed.
    if (observer_.device_gone(DeviceOrdinal(ordinal))) {
      delete device;
    } else {
      log_line(LogLevel::kWarning,
               "device %d is reset while nofrag looks at it; what nofrag holds there stays held",
               ordinal);
    }
  }
  if (driver_ != nullptr) {
    driver_->release_context(DeviceOrdinal(ordinal));
  }
}

void Process::set_watch(const MemoryWatch::Listener& listener) {
  const std::lock_guard lock(mutex_);
  watch_ = listener;
  for (const auto& slot : devices_) {
    if (DeviceAllocator* device = slot.load(std::memory_order_acquire); device != nullptr) {
      device->set_watch(listener);
    }
  }
}

std::vector<DeviceAllocator*> Process::used_devices() const {
  std::vector<DeviceAllocator*> used;
  for (int i = 0; i < device_count_; ++i) {
    if (DeviceAllocator* device = used_device(i)) {
      used.push_back(device);
    }
  }
  return used;
}

Status Process::start_trace(const char* spec) {
  if (const Status started = start(); !started) {
    return started;
  }
  Options options;
  std::vector<std::string> problems;
  if (!parse_trace_spec(spec, &options, &problems)) {
    return set_last_error(
        {Errc::kInvalidArgument}, "nofrag_trace_start: %s", problems.front().c_str());
  }
  const std::lock_guard lock(mutex_);
  if (const Status traced = tracing_.start(options, driver_->name()); !traced) {
    return traced;
  }
  for (DeviceAllocator* device : used_devices()) {
    tracing_.attach(*device);
  }
  return {};
}

Status Process::stop_trace() {
  if (const Phase phase = phase_.load(std::memory_order_acquire); phase > kReady) {
    return refuse(phase);
  }
  const std::lock_guard lock(mutex_);
  Recorder* const recorder = tracing_.recorder();
  if (recorder == nullptr || !recorder->active()) {
    return set_last_error({Errc::kInvalidArgument}, "nothing is being recorded");
  }
  tracing_.stop(used_devices());
  return {};
}

StatsReport Process::stats_report() const {
  StatsReport report;
  report.pid = ::getpid();
  report.driver = driver_->name();
  report.ledger = driver_->ledger();
  report.passed_on = passed_on();
  const std::lock_guard lock(dropped_mutex_);
  for (int i = 0; i < device_count_; ++i) {
    const DeviceAllocator* const device = used_device(i);
    const auto past = std::find_if(
        dropped_.begin(), dropped_.end(), [i](const auto& other) { return other.device == i; });
    if (device != nullptr) {
      report.devices.push_back(
          {i, device->info().name, device->uses_virtual_memory(), device->stats()});
      if (past != dropped_.end()) {
        add_past(*past, &report.devices.back());
      }
    } else if (past != dropped_.end()) {
      report.devices.push_back(*past);
    }
  }
  return report;
}

bool Process::call_pressure_callbacks(DeviceOrdinal device, Bytes needed) {
  bool freed = false;
  pressure_callbacks_.for_each([&](nofrag_pressure_callback callback, void* user) {
    freed = callback(device.value(), needed.count(), user) != 0 || freed;
  });
  return freed;
}

// The child has this thread alone, and locks may be held for ever by threads that are not there. A
// child of a process that never got as far as a driver may start afresh, unless another thread was
// starting at that very moment.
void Process::at_fork_child() {
  Process& process = instance();
  const bool used = process.phase_.load(std::memory_order_acquire) == kReady;
  if (!used && process.mutex_.try_lock()) {
    process.mutex_.unlock();
    return;
  }
  process.enter(kForked);
  process.observer_.after_fork();
}

void Process::at_exit() {
  Process& process = instance();
  Phase ready = kReady;
  const bool was_ready =
      process.phase_.compare_exchange_strong(ready, kExiting, std::memory_order_acq_rel);
  if (was_ready) {
    process.enter(kExiting);
    process.observer_.stop();
    process.tracing_.stop_at_exit();
  }
  if (!was_ready || process.options_.stats == StatsMode::kOff) {
    return;
  }
  const StatsReport report = process.stats_report();
  const std::string text =
      process.options_.stats == StatsMode::kExit ? stats_text(report) : stats_summary(report);
  std::fputs(text.c_str(), stderr);
}

}  // namespace nofrag
