#include "stats/metrics_text.h"

#include <cmath>
#include <cstdio>
#include <functional>

namespace nofrag {
namespace {

class MetricsWriter {
 public:
  explicit MetricsWriter(long pid) : pid_(std::to_string(pid)) {}

  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    out_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  // `more` is further labels, each with its comma: ",cause=\"leak\"". Values are ours: nothing to escape.
  void sample(const std::string& device, double value, const std::string& more = "") {
    char number[32];
    std::snprintf(number, sizeof number, "%.17g", value);
    const char* const text = std::isinf(value) ? "+Inf" : number;
    out_ += name_ + "{device=\"" + device + "\",pool=\"all\",pid=\"" + pid_ + "\"" + more + "} " +
            text + "\n";
  }
  std::string take() { return std::move(out_); }

 private:
  std::string pid_;
  std::string name_;
  std::string out_;
};

double of(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

double of(std::uint64_t count) {
  return static_cast<double>(count);
}

using Value = std::function<std::optional<double>(const DeviceMetrics&)>;

struct Family {
  const char* name;
  const char* type;
  const char* help;
  Value value;
};

std::vector<Family> device_families() {
  return {
      {"nofrag_live_bytes",
       "gauge",
       "Memory in blocks that the program holds.",
       [](const DeviceMetrics& d) { return of(d.report.stats.live); }},
      {"nofrag_reserved_bytes",
       "gauge",
       "Physical memory held from the driver.",
       [](const DeviceMetrics& d) { return of(d.report.stats.reserved); }},
      {"nofrag_pending_bytes",
       "gauge",
       "Freed, but work on another stream may still touch it.",
       [](const DeviceMetrics& d) { return of(d.report.stats.pending); }},
      {"nofrag_kept_bytes",
       "gauge",
       "Freed, and kept by threads for their next requests.",
       [](const DeviceMetrics& d) { return of(d.report.stats.kept); }},
      {"nofrag_driver_free_bytes",
       "gauge",
       "Free on the device by the driver's count, as last asked.",
       [](const DeviceMetrics& d) -> std::optional<double> {
         return d.driver_free ? std::optional<double>(of(*d.driver_free)) : std::nullopt;
       }},
      {"nofrag_limit_bytes",
       "gauge",
       "Most that may be reserved; +Inf where no limit is set.",
       [](const DeviceMetrics& d) { return of(d.report.stats.limit); }},
      {"nofrag_fragmentation_ratio",
       "gauge",
       "Free bytes in physical allocations that are in use, over reserved bytes.",
       [](const DeviceMetrics& d) {
         const DeviceStats& s = d.report.stats;
         return s.reserved.is_zero() ? 0.0 : of(s.stranded) / of(s.reserved);
       }},
      {"nofrag_headroom_bytes",
       "gauge",
       "What live memory may still grow by.",
       [](const DeviceMetrics& d) { return of(d.headroom); }},
      {"nofrag_headroom_seconds",
       "gauge",
       "Until the limit at the present trend; no sample while there is no trend.",
       [](const DeviceMetrics& d) { return d.headroom_seconds; }},
      {"nofrag_live_blocks",
       "gauge",
       "Blocks that the program holds.",
       [](const DeviceMetrics& d) { return of(d.report.stats.live_blocks); }},
      {"nofrag_allocations_total",
       "counter",
       "Successful allocations.",
       [](const DeviceMetrics& d) { return of(d.report.stats.allocations); }},
      {"nofrag_frees_total",
       "counter",
       "Frees.",
       [](const DeviceMetrics& d) { return of(d.report.stats.frees); }},
  };
}

void write_rungs(const std::vector<DeviceMetrics>& devices, MetricsWriter* out) {
  constexpr std::pair<Rung, const char*> kRungs[] = {
      {Rung::kOwnFree, "own_free"},
      {Rung::kOwnMappable, "own_mappable"},
      {Rung::kGrow, "grow"},
      {Rung::kOtherPools, "other_pools"},
      {Rung::kDeviceWait, "device_wait"},
      {Rung::kPressureCallbacks, "pressure_callbacks"},
      {Rung::kFailed, "failed"}};
  out->family("nofrag_rung_total",
              "counter",
              "Requests by the last rung of the out-of-memory ladder they needed.");
  for (const DeviceMetrics& d : devices) {
    for (const auto& [rung, name] : kRungs) {
      out->sample(std::to_string(d.report.device),
                  of(d.report.stats.rungs[static_cast<std::size_t>(rung)]),
                  std::string(",rung=\"") + name + "\"");
    }
  }
}

}  // namespace

std::string metrics_text(const StatsReport& process, const std::vector<DeviceMetrics>& devices) {
  MetricsWriter out(process.pid);
  for (const Family& family : device_families()) {
    out.family(family.name, family.type, family.help);
    for (const DeviceMetrics& d : devices) {
      if (const std::optional<double> value = family.value(d)) {
        const bool unlimited = *value >= of(kNoLimit);
        out.sample(std::to_string(d.report.device), unlimited ? HUGE_VAL : *value);
      }
    }
  }
  out.family("nofrag_passed_on_bytes",
             "gauge",
             "Device memory that the program took from the driver past nofrag, by how.");
  for (const PassedOn& passed : process.passed_on) {
    for (std::size_t i = 0; i < kPassedOnKinds; ++i) {
      out.sample(std::to_string(passed.device),
                 of(passed.now[i]),
                 std::string(",kind=\"") + kPassedOnNames[i] + "\"");
    }
  }
  out.family("nofrag_passed_on_uncounted_total",
             "counter",
             "Calls that took memory past nofrag whose size is not known.");
  for (const PassedOn& passed : process.passed_on) {
    out.sample(std::to_string(passed.device), of(passed.uncounted));
  }
  out.family("nofrag_oom_total", "counter", "Allocations that ended out of memory, by root cause.");
  for (const DeviceMetrics& d : devices) {
    for (const CauseCount& failure : d.failures) {
      out.sample(std::to_string(d.report.device),
                 of(failure.count),
                 ",cause=\"" + std::string(failure.cause) + "\"");
    }
  }
  write_rungs(devices, &out);
  // The driver's ledger is the process's.
  out.family("nofrag_driver_calls_total", "counter", "Calls of the driver.");
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    const std::string call = std::string(",call=\"") + to_string(static_cast<DriverCall>(i)) + "\"";
    out.sample("all", of(process.ledger.calls[i]), call);
  }
  constexpr double kMicroseconds = 1e6;
  out.family("nofrag_driver_seconds_total", "counter", "Time in calls of the driver.");
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    const std::string call = std::string(",call=\"") + to_string(static_cast<DriverCall>(i)) + "\"";
    out.sample("all", process.ledger.microseconds[i] / kMicroseconds, call);
  }
  return out.take();
}

}  // namespace nofrag
