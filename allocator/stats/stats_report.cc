#include "stats/stats_report.h"

#include <cstdio>

#include "config/human_bytes.h"
#include "stats/emitter.h"

namespace nofrag {
namespace {

std::uint64_t rung(const DeviceStats& stats, Rung which) {
  return stats.rungs[static_cast<std::size_t>(which)];
}

double ratio(Bytes part, Bytes whole) {
  return whole.is_zero() ? 0.0
                         : static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

void emit_driver(const StatsReport& report, Emitter* emitter) {
  const DriverLedger& ledger = report.ledger;
  emitter->open_object("driver");
  emitter->text("name", report.driver);
  emitter->number("total_calls", ledger.total_calls(), StatUnit::kCount);
  emitter->real("total_microseconds", ledger.total_microseconds(), 1);
  emitter->open_object("calls");
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    emitter->number(to_string(static_cast<DriverCall>(i)), ledger.calls[i], StatUnit::kCount);
  }
  emitter->close_object();
  emitter->open_object("microseconds");
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    emitter->real(to_string(static_cast<DriverCall>(i)), ledger.microseconds[i], 1);
  }
  emitter->close_object();
  emitter->close_object();
}

void emit_device(const DeviceReport& device, Emitter* emitter) {
  const DeviceStats& s = device.stats;
  emitter->open_item("device " + std::to_string(device.device));
  emitter->number("device", static_cast<std::uint64_t>(device.device), StatUnit::kCount);
  emitter->text("name", device.name);
  emitter->text("backend", device.virtual_memory ? "vmm" : "plain");
#define NOFRAG_DEVICE_STAT(field, value, unit, doc) emitter->number(#field, value, StatUnit::unit);
#include "stats/device_stats.def"
#undef NOFRAG_DEVICE_STAT
  const Bytes free = s.reserved - s.allocated;
  emitter->real("peak_reserved_over_peak_live", ratio(s.peak_reserved, s.peak_live), 4);
  emitter->real("largest_free_over_free", ratio(s.largest_free_run, free), 4);
  emitter->real("stranded_over_live", ratio(s.stranded, s.live), 4);
  emitter->close_object();
}

void emit_passed_on(const PassedOn& passed, Emitter* emitter) {
  emitter->open_item("passed on, device " + std::to_string(passed.device));
  emitter->number("device", static_cast<std::uint64_t>(passed.device), StatUnit::kCount);
  emitter->number("total_bytes", passed.total.count(), StatUnit::kBytes);
  emitter->number("peak_bytes", passed.peak.count(), StatUnit::kBytes);
  for (std::size_t i = 0; i < kPassedOnKinds; ++i) {
    emitter->number(
        std::string(kPassedOnNames[i]) + "_bytes", passed.now[i].count(), StatUnit::kBytes);
  }
  emitter->number("uncounted_calls", passed.uncounted, StatUnit::kCount);
  emitter->close_object();
}

void emit_report(const StatsReport& report, Emitter* emitter) {
  emitter->text("schema", "nofrag.stats/" + std::to_string(kStatsSchemaVersion));
  emitter->number("schema_version", kStatsSchemaVersion, StatUnit::kCount);
  emitter->text("nofrag_version", NOFRAG_VERSION_STRING);
  emitter->number("pid", static_cast<std::uint64_t>(report.pid), StatUnit::kCount);
  emit_driver(report, emitter);
  emitter->open_list("devices");
  for (const DeviceReport& device : report.devices) {
    emit_device(device, emitter);
  }
  emitter->close_list();
  if (report.passed_on.empty()) {
    return;
  }
  emitter->open_list("passed_on");
  for (const PassedOn& passed : report.passed_on) {
    emit_passed_on(passed, emitter);
  }
  emitter->close_list();
}

// "passed on to the driver: peak 3.20 GiB; now created 3.00 GiB, managed 1.00 GiB"
std::string passed_on_line(const PassedOn& passed) {
  std::string text = "passed on to the driver: peak " + human_bytes(passed.peak);
  const char* separator = "; now ";
  for (std::size_t i = 0; i < kPassedOnKinds; ++i) {
    if (!passed.now[i].is_zero()) {
      text += std::string(separator) + kPassedOnNames[i] + " " + human_bytes(passed.now[i]);
      separator = ", ";
    }
  }
  if (passed.uncounted != 0) {
    text += "; " + std::to_string(passed.uncounted) + " calls took more, of unknown size";
  }
  return text + "\n";
}

}  // namespace

std::string stats_text(const StatsReport& report) {
  TextEmitter emitter;
  emit_report(report, &emitter);
  return "nofrag statistics; docs/stats.md explains every field. requested <= live <= allocated <= "
         "mapped_in_use <= reserved\n" +
         emitter.take();
}

std::string stats_json(const StatsReport& report) {
  JsonEmitter emitter;
  emit_report(report, &emitter);
  return emitter.take();
}

nofrag_device_stats to_c_stats(const DeviceStats& s) {
  nofrag_device_stats c{};
  c.struct_size = static_cast<std::uint32_t>(sizeof c);
  c.version = NOFRAG_DEVICE_STATS_VERSION;
#define NOFRAG_DEVICE_STAT(field, value, unit, doc) c.field = value;
#include "stats/device_stats.def"
#undef NOFRAG_DEVICE_STAT
  return c;
}

nofrag_oom_report to_c_report(int device, const OomReport& report) {
  nofrag_oom_report c{};
  c.struct_size = static_cast<std::uint32_t>(sizeof c);
  c.version = NOFRAG_OOM_REPORT_VERSION;
  c.device = device;
  c.limit_reached = report.limit_reached ? 1 : 0;
  c.stream = VirtAddr(report.stream.value()).pointer();
  c.requested_bytes = report.requested.count();
  c.driver_free_bytes = report.driver_free.count();
  c.driver_total_bytes = report.driver_total.count();
  c.live_bytes = report.stats.live.count();
  c.pending_bytes = report.stats.pending.count();
  c.reserved_bytes = report.stats.reserved.count();
  c.limit_bytes = report.stats.limit.count();
  c.free_handles_bytes = report.stats.free_handles.count();
  c.stranded_bytes = report.stats.stranded.count();
  c.largest_free_run_bytes = report.stats.largest_free_run.count();
  c.free_ends_bytes = report.stats.free_ends.count();
  c.composable_bytes = report.stats.composable.count();
  return c;
}

std::string stats_table() {
  std::string table;
#define NOFRAG_DEVICE_STAT(field, value, unit, doc) \
  table += std::string("| `" #field "` | ") +       \
           (StatUnit::unit == StatUnit::kBytes ? "bytes" : "count") + " | " + (doc) + " |\n";
#include "stats/device_stats.def"
#undef NOFRAG_DEVICE_STAT
  return table;
}

std::string stats_summary(const StatsReport& report) {
  constexpr std::pair<Rung, const char*> kRungNames[] = {{Rung::kOwnFree, "own free"},
                                                         {Rung::kOwnMappable, "own mappable"},
                                                         {Rung::kGrow, "grown"},
                                                         {Rung::kOtherPools, "other pools"},
                                                         {Rung::kDeviceWait, "device wait"},
                                                         {Rung::kPressureCallbacks, "callbacks"},
                                                         {Rung::kFailed, "out of memory"}};
  std::string text;
  for (const DeviceReport& device : report.devices) {
    const DeviceStats& s = device.stats;
    char numbers[256];
    std::snprintf(numbers,
                  sizeof numbers,
                  " (%.3f of it); %.1f ms in %llu driver calls\n",
                  ratio(s.peak_reserved, s.peak_live),
                  report.ledger.total_microseconds() / 1000,
                  static_cast<unsigned long long>(report.ledger.total_calls()));
    const std::string label = "nofrag: process " + std::to_string(report.pid) + ", device " +
                              std::to_string(device.device);
    text += label + ": peak live " + human_bytes(s.peak_live) + ", peak reserved " +
            human_bytes(s.peak_reserved) + numbers;
    text += label + ": " + std::to_string(s.allocations) + " allocations, served by:";
    const char* separator = " ";
    for (const auto& [which, name] : kRungNames) {
      if (rung(s, which) != 0) {
        text += separator + std::string(name) + " " + std::to_string(rung(s, which));
        separator = ", ";
      }
    }
    text += '\n';
  }
  for (const PassedOn& passed : report.passed_on) {
    text += "nofrag: process " + std::to_string(report.pid) + ", device " +
            std::to_string(passed.device) + ": " + passed_on_line(passed);
  }
  return text;
}

}  // namespace nofrag
