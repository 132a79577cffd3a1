#include "runtime/tracing.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

#include <nofrag/version.h>

#include "base/nearest_name.h"
#include "config/parser.h"
#include "runtime/last_error.h"
#include "runtime/log.h"

namespace nofrag {
namespace {

constexpr std::string_view kFlight = "flight:";
constexpr std::string_view kUsualKeep = "64MiB";
constexpr std::string_view kSpec =
    "[flight:]FILE[,max=SIZE][,keep=SIZE][,stacks=N][,stacks_from=SIZE][,signal]";

// For the signal handler, which knows nothing else.
std::atomic<Recorder*> signalled{nullptr};

void on_signal(int /*number*/) {
  if (Recorder* recorder = signalled.load(std::memory_order_acquire)) {
    recorder->request_flush();
  }
}

// False if the program has a handler of its own.
bool take_signal() {
  struct sigaction current {};
  if (::sigaction(SIGUSR2, nullptr, &current) != 0 ||
      (current.sa_handler != SIG_DFL && current.sa_handler != &on_signal)) {
    return false;
  }
  struct sigaction ours {};
  ours.sa_handler = &on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  return ::sigaction(SIGUSR2, &ours, nullptr) == 0;
}

// "flght:job.nofrag"
bool is_nearly_flight(std::string_view item) {
  constexpr std::string_view kWord = kFlight.substr(0, kFlight.size() - 1);
  const std::size_t colon = item.find(':');
  return colon != std::string_view::npos &&
         !nearest_name(item.substr(0, colon), {&kWord, 1}).empty();
}

}  // namespace

bool parse_trace_spec(std::string_view text,
                      Options* options,
                      std::vector<std::string>* problems,
                      OptionSet* given) {
  const bool flight = text.starts_with(kFlight);
  text.remove_prefix(flight ? kFlight.size() : 0);
  if (flight) {
    parse_option("trace_keep", kUsualKeep, options, problems, given);
  }
  bool good = true;
  for (bool first = true; first || !text.empty(); first = false) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (first && item.empty()) {
      problems->push_back("there is no file name (write " + std::string(kSpec) + ")");
      return false;
    }
    if (first) {
      good = parse_option("trace", item, options, problems, given);
      if (!flight && is_nearly_flight(item)) {
        problems->push_back("\"" + std::string(item) +
                            "\" is taken for a file's name; did you mean " + std::string(kFlight) +
                            std::string(item.substr(item.find(':') + 1)) +
                            "? (./ before it says that it is one)");
        good = false;
      }
    } else if (item.starts_with("max=")) {
      good = parse_option("trace_max", item.substr(4), options, problems, given) && good;
    } else if (item.starts_with("keep=") && !flight) {
      problems->push_back("\"" + std::string(item) +
                          "\" is for a flight recorder (write flight:FILE,keep=SIZE)");
      good = false;
    } else if (item.starts_with("keep=")) {
      good = parse_option("trace_keep", item.substr(5), options, problems, given) && good;
    } else if (item.starts_with("stacks=")) {
      good = parse_option("trace_stacks", item.substr(7), options, problems, given) && good;
    } else if (item.starts_with("stacks_from=")) {
      good = parse_option("trace_stacks_from", item.substr(12), options, problems, given) && good;
    } else if (item == "signal") {
      good = parse_option("trace_signal", "true", options, problems, given) && good;
    } else {
      problems->push_back("\"" + std::string(item) + "\" is not known (write " +
                          std::string(kSpec) + ")");
      good = false;
    }
  }
  return good;
}

class Tracing::Both final : public EventSink {
 public:
  Both(NvtxSink& nvtx, Recorder& recorder) : nvtx_(nvtx), recorder_(recorder) {}
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;
  ~Both() = default;

  void on_event(const AllocatorEvent& event) override {
    recorder_.on_event(event);
    nvtx_.on_event(event);
  }
  [[nodiscard]] bool concurrent() const override { return true; }
  [[nodiscard]] std::uint64_t stamp() const override { return recorder_.stamp(); }
  void on_work_begin(const char* name) override { nvtx_.on_work_begin(name); }
  void on_work_end() override { nvtx_.on_work_end(); }

 private:
  NvtxSink& nvtx_;
  Recorder& recorder_;
};

Tracing::Tracing() = default;
Tracing::~Tracing() = default;

void Tracing::start_nvtx(const Options& options) {
  if (options.nvtx == NvtxMode::kOff) {
    return;
  }
  if (!NvtxSink::available()) {
    log_line(LogLevel::kWarning, "nvtx: this library was built without NVTX's headers");
    return;
  }
  nvtx_ = std::make_unique<NvtxSink>(options.nvtx == NvtxMode::kMemory);
}

EventSink* Tracing::sink() {
  Recorder* const current = recorder();
  if (current == nullptr || !current->active()) {
    return nvtx_.get();
  }
  if (nvtx_ == nullptr) {
    return current;
  }
  while (both_.size() < all_.size()) {
    both_.push_back(std::make_unique<Both>(*nvtx_, *all_[both_.size()]));
  }
  return both_.back().get();
}

Status Tracing::start(const Options& options, const std::string& driver) {
  if (options.trace == "off") {
    return {};
  }
  if (Recorder* current = recorder(); current != nullptr && current->active()) {
    return set_last_error({Errc::kAlreadyInitialized},
                          "this process is being recorded to %s already",
                          current->path().c_str());
  }
  RecorderSettings settings;
  settings.path = options.trace;
  settings.max = options.trace_max.count();
  settings.keep = options.trace_keep.count();
  settings.stacks.every = static_cast<std::uint32_t>(options.trace_stacks);
  settings.stacks.from_bytes = options.trace_stacks_from.count();
  settings.info["pid"] = std::to_string(::getpid());
  settings.info["nofrag_version"] = NOFRAG_VERSION_STRING;
  settings.info["driver"] = driver;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  settings.info["unix_time_us"] =
      std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  settings.say = [](const std::string& line) { log_line(LogLevel::kWarning, "%s", line.c_str()); };
  std::string problem;
  std::unique_ptr<Recorder> made = Recorder::start(std::move(settings), &problem);
  if (made == nullptr) {
    return set_last_error({Errc::kInvalidArgument}, "nothing is recorded: %s", problem.c_str());
  }
  made->never_destroyed();
  all_.push_back(std::move(made));
  recorder_.store(all_.back().get(), std::memory_order_release);
  if (options.trace_signal) {
    signalled.store(all_.back().get(), std::memory_order_release);
    if (!take_signal()) {
      log_line(LogLevel::kWarning,
               "trace_signal: the program has a handler for SIGUSR2 of its own, which stays");
    }
  }
  return {};
}

void Tracing::attach(DeviceAllocator& device) {
  Recorder* const current = recorder();
  if (current == nullptr || !current->active()) {
    if (nvtx_ != nullptr) {
      device.set_event_sink(nvtx_.get());
    }
    return;
  }
  const std::string name = "device." + std::to_string(device.device().value()) + ".";
  const DeviceInfo& info = device.info();
  current->add_info(name + "name", info.name);
  current->add_info(name + "total_bytes", std::to_string(info.total_memory.count()));
  device.set_event_sink(sink());
}

void Tracing::stop(const std::vector<DeviceAllocator*>& devices) {
  for (DeviceAllocator* device : devices) {
    device->set_event_sink(nvtx_.get());
  }
  if (Recorder* current = recorder()) {
    current->stop(NOFRAG_TRACE_STOP_ASKED);
  }
}

void Tracing::stop_at_exit() {
  if (Recorder* current = recorder(); current != nullptr && current->active()) {
    current->stop(NOFRAG_TRACE_STOP_EXIT);
  }
}

}  // namespace nofrag
