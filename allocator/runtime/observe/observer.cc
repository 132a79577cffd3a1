#include "runtime/observe/observer.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include <sys/stat.h>

#include "diagnose/classify.h"
#include "diagnose/report.h"
#include "runtime/log.h"
#include "runtime/observe/failure_of.h"
#include "runtime/observe/passed_on.h"

namespace nofrag {
namespace {

constexpr int kUsualPeriodMs = 1000;
constexpr int kPeriodWithCallbackMs = 100;
constexpr std::uint64_t kUnknownFree = UINT64_MAX;
constexpr int kMostReportsOnStderr = 10;
constexpr std::uint64_t kSayAgainUs = 1'000'000;
// How long an exiting process waits for a look that is under way.
constexpr std::chrono::milliseconds kLastPatience{200};

std::uint64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

void Observer::configure(const Options& options, Driver* driver) {
  options_ = options;
  driver_ = driver;
  // A simulated driver's calls are counted and scripted by tests: nobody looks unasked.
  real_driver_ = driver->name().compare(0, 4, "sim:") != 0;
  for (auto& free : driver_free_) {
    free.store(kUnknownFree, std::memory_order_relaxed);
  }
}

void Observer::device_made(DeviceAllocator* device) {
  watched(device->device())->device.store(device, std::memory_order_release);
  bool wanted = options_.share_status || serves_metrics();
  {
    const std::lock_guard lock(mutex_);
    wanted = wanted || wish_.callback != nullptr;
  }
  if (wanted) {
    start_thread();
  }
}

bool Observer::device_gone(DeviceOrdinal device) {
  watched(device)->device.store(nullptr, std::memory_order_seq_cst);
  // The next look does not find it; one that is under way may.
  const auto patience = std::chrono::steady_clock::now() + kLastPatience;
  while (busy_.load(std::memory_order_seq_cst)) {
    if (std::chrono::steady_clock::now() >= patience) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

void Observer::start_thread() {
  if (started_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  if (::pthread_create(&thread, nullptr, &Observer::run, this) == 0) {
    ::pthread_setname_np(thread, "nofrag-observer");
    ::pthread_detach(thread);
  } else {
    log_line(LogLevel::kWarning, "no thread for metrics and status could be made; there are none");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void* Observer::run(void* self) {
  static_cast<Observer*>(self)->loop();
  return nullptr;
}

void Observer::loop() {
  std::string problem;
  if (options_.share_status) {
    status_file_.open();
  }
  constexpr std::string_view kFile = "file:";
  if (options_.metrics.compare(0, kFile.size(), kFile) == 0) {
    textfile_ = options_.metrics.substr(kFile.size());
    if (textfile_.empty()) {
      log_line(LogLevel::kWarning, "metrics:file: names no file; no metrics are written");
    }
  } else if (serves_metrics()) {
    if (server_.open(options_.metrics, &problem)) {
      const bool any_port = options_.metrics.ends_with(":0");
      // Of any free port nobody knows which, unless it is said.
      log_line(any_port ? LogLevel::kWarning : LogLevel::kInfo,
               "metrics are served on port %d",
               server_.port());
      if (!any_port && options_.metrics.find(std::to_string(server_.port())) == std::string::npos) {
        log_line(LogLevel::kWarning,
                 "metrics:%s is taken; this process serves them on port %d",
                 options_.metrics.c_str(),
                 server_.port());
      }
    } else {
      log_line(LogLevel::kWarning, "%s", problem.c_str());
    }
  }
  std::uint64_t next_us = 0;
  while (!stopping_.load(std::memory_order_seq_cst)) {
    busy_.store(true, std::memory_order_seq_cst);
    if (!stopping_.load(std::memory_order_seq_cst) && now_us() >= next_us) {
      look();
      bool callback = false;
      {
        const std::lock_guard lock(mutex_);
        callback = wish_.callback != nullptr;
      }
      const int period = callback ? kPeriodWithCallbackMs : kUsualPeriodMs;
      next_us = now_us() + static_cast<std::uint64_t>(period) * 1000;
    }
    busy_.store(false, std::memory_order_seq_cst);
    const std::uint64_t now = now_us();
    // Short, so that a callback that is set meanwhile is not kept waiting.
    const int wait = static_cast<int>(
        std::min<std::uint64_t>(next_us > now ? (next_us - now) / 1000 + 1 : 0, 100));
    if (server_.is_open()) {
      server_.serve(wait, [this] {
        busy_.store(true, std::memory_order_seq_cst);
        std::string text = stopping_.load(std::memory_order_seq_cst) ? std::string() : page();
        busy_.store(false, std::memory_order_seq_cst);
        return text;
      });
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    }
  }
}

void Observer::look() {
  for (std::size_t i = 0; i < kMostDevices; ++i) {
    DeviceAllocator* device = watched_[i].device.load(std::memory_order_seq_cst);
    if (device == nullptr) {
      continue;
    }
    if (real_driver_) {
      const std::optional<Bytes> free = ask_driver_free(device->device());
      driver_free_[i].store(free ? free->count() : kUnknownFree, std::memory_order_relaxed);
    }
    tell(watched_[i], static_cast<int>(i), headroom(*device));
  }
  if (options_.share_status) {
    status_file_.publish(status());
  }
  if (!textfile_.empty()) {
    write_textfile();
  }
}

std::optional<Bytes> Observer::ask_driver_free(DeviceOrdinal device) {
  const Result<MemoryInfo> memory = driver_->memory_info(device);
  return memory.ok() ? std::optional<Bytes>(memory.value().free) : std::nullopt;
}

Headroom Observer::headroom(const DeviceAllocator& device) {
  const std::uint64_t free = driver_free_[static_cast<std::size_t>(device.device().value())].load(
      std::memory_order_relaxed);
  const std::optional<Bytes> known =
      free == kUnknownFree ? std::nullopt : std::optional<Bytes>(Bytes(free));
  const Bytes capacity = capacity_of(device.gauges(), device.info(), known);
  return headroom_of(device.timeline(), capacity, now_us());
}

Headroom Observer::headroom_now(const DeviceAllocator& device) {
  const Bytes capacity =
      capacity_of(device.gauges(), device.info(), ask_driver_free(device.device()));
  return headroom_of(device.timeline(), capacity, now_us());
}

void Observer::set_headroom_callback(nofrag_headroom_callback callback,
                                     void* user,
                                     std::uint64_t below_bytes,
                                     double below_seconds) {
  bool devices = false;
  for (const Watched& w : watched_) {
    devices = devices || w.device.load(std::memory_order_acquire) != nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    wish_ = {callback, user, below_bytes, below_seconds};
  }
  if (devices && callback != nullptr) {
    start_thread();
  }
}

void Observer::tell(Watched& watched, int ordinal, const Headroom& headroom) {
  Wish wish;
  {
    const std::lock_guard lock(mutex_);
    wish = wish_;
  }
  if (wish.callback == nullptr) {
    watched.was_low = false;
    return;
  }
  const bool low = headroom.bytes.count() < wish.below_bytes ||
                   (headroom.forecast && headroom.seconds < wish.below_seconds);
  const std::uint64_t now = now_us();
  const bool again = low && (!watched.was_low || now - watched.said_low_us >= kSayAgainUs);
  if (again || low != watched.was_low) {
    watched.said_low_us = now;
    nofrag_headroom told = to_c_headroom(ordinal, headroom);
    told.low = low ? 1 : 0;
    wish.callback(&told, wish.user);
  }
  watched.was_low = low;
}

nofrag_headroom to_c_headroom(int device, const Headroom& headroom) {
  nofrag_headroom c{};
  c.struct_size = sizeof c;
  c.version = NOFRAG_HEADROOM_VERSION;
  c.device = device;
  c.headroom_bytes = headroom.bytes.count();
  c.seconds = headroom.forecast ? headroom.seconds : -1.0;
  c.bytes_per_second = headroom.bytes_per_second;
  c.confidence = headroom.confidence;
  return c;
}

std::string Observer::explain(DeviceAllocator* device, const std::string& message) {
  const Timeline timeline = device->timeline();
  const OomReport report = device->last_oom();
  const Failure failure = failure_of(report, *device, &timeline);
  Diagnosis diagnosis = classify(failure);
  blame_limit(failure, &diagnosis);
  Watched& w = *watched(device->device());
  w.failures[static_cast<std::size_t>(diagnosis.cause)].fetch_add(1, std::memory_order_relaxed);
  w.last_cause.store(static_cast<int>(diagnosis.cause), std::memory_order_relaxed);
  if (options_.oom_report != "off") {
    ReportContext context;
    context.device = device->device().value();
    context.pid = ::getpid();
    context.message = message;
    context.stats = &report.stats;
    context.replay = "nofrag replay TRACE --capacity " +
                     std::to_string(std::min(report.stats.limit, report.driver_total).count()) +
                     "B";
    write_report(full_report(failure, diagnosis, context));
  }
  return short_report(diagnosis);
}

void Observer::write_report(const std::string& text) {
  if (options_.oom_report == "stderr") {
    if (reports_written_.fetch_add(1, std::memory_order_relaxed) < kMostReportsOnStderr) {
      std::fputs(text.c_str(), stderr);
    }
    return;
  }
  // Without waiting for whoever may read a pipe.
  const int descriptor = ::open(
      options_.oom_report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  std::FILE* file = descriptor < 0 ? nullptr : ::fdopen(descriptor, "a");
  bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file != nullptr) {
    written = std::fclose(file) == 0 && written;
  } else if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!written) {
    if (reports_written_.fetch_add(1, std::memory_order_relaxed) == 0) {
      log_line(LogLevel::kWarning, "oom_report:%s cannot be written", options_.oom_report.c_str());
    }
  }
}

std::string Observer::page() {
  StatsReport process;
  process.pid = ::getpid();
  process.ledger = driver_->ledger();
  process.passed_on = passed_on();
  std::vector<DeviceMetrics> devices;
  for (std::size_t i = 0; i < kMostDevices; ++i) {
    DeviceAllocator* device = watched_[i].device.load(std::memory_order_acquire);
    if (device == nullptr) {
      continue;
    }
    DeviceMetrics m;
    m.report = {
        static_cast<int>(i), device->info().name, device->uses_virtual_memory(), device->gauges()};
    const std::uint64_t free = driver_free_[i].load(std::memory_order_relaxed);
    if (free != kUnknownFree) {
      m.driver_free = Bytes(free);
    }
    const Headroom left = headroom(*device);
    m.headroom = left.bytes;
    if (left.forecast) {
      m.headroom_seconds = left.seconds;
    }
    for (std::size_t c = 0; c < kCauseCount; ++c) {
      m.failures.push_back({to_string(static_cast<Cause>(c)),
                            watched_[i].failures[c].load(std::memory_order_relaxed)});
    }
    devices.push_back(std::move(m));
  }
  return metrics_text(process, devices);
}

ProcessStatus Observer::status() {
  ProcessStatus status;
  for (std::size_t i = 0; i < kMostDevices && status.device_count < kStatusDevices; ++i) {
    DeviceAllocator* device = watched_[i].device.load(std::memory_order_acquire);
    if (device == nullptr) {
      continue;
    }
    const DeviceStats s = device->gauges();
    const Headroom left = headroom(*device);
    DeviceStatus& d = status.devices[status.device_count++];
    d.device = static_cast<int>(i);
    d.live = s.live.count();
    d.reserved = s.reserved.count();
    d.pending = s.pending.count();
    d.limit = s.limit.count();
    d.fragmented = s.stranded.count();
    d.headroom = left.bytes.count();
    d.has_forecast = left.forecast ? 1 : 0;
    d.headroom_seconds = left.seconds;
    d.allocations = s.allocations;
    d.failed = s.failed_allocations;
    std::copy(s.rungs.begin(), s.rungs.end(), d.rungs.begin());
    const int cause = watched_[i].last_cause.load(std::memory_order_relaxed);
    copy_name(cause < 0 ? "" : to_string(static_cast<Cause>(cause)),
              d.last_cause.data(),
              d.last_cause.size());
  }
  return status;
}

// A reader finds the old file or the new one, never half of one.
void Observer::write_textfile() {
  const std::string part = textfile_ + "." + std::to_string(::getpid()) + ".part";
  // A device or a pipe would be gone.
  struct stat there {};
  const bool special = ::stat(textfile_.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  std::FILE* file = special ? nullptr : std::fopen(part.c_str(), "we");
  bool written = file != nullptr && std::fputs(page().c_str(), file) >= 0;
  written = (file == nullptr || std::fclose(file) == 0) && written;
  if (!written || std::rename(part.c_str(), textfile_.c_str()) != 0) {
    log_line(
        LogLevel::kWarning, "metrics:file:%s cannot be written; there are none", textfile_.c_str());
    std::remove(part.c_str());
    textfile_.clear();
  }
}

void Observer::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  status_file_.remove();
  const auto patience = std::chrono::steady_clock::now() + kLastPatience;
  while (busy_.load(std::memory_order_seq_cst) && std::chrono::steady_clock::now() < patience) {
    std::this_thread::yield();
  }
}

// The thread is the parent's, and so are the file and the clients.
void Observer::after_fork() {
  stopping_.store(true, std::memory_order_seq_cst);
  server_.close();
}

}  // namespace nofrag
