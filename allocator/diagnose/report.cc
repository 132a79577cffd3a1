#include "diagnose/report.h"

#include <algorithm>
#include <cstdio>

#include "config/human_bytes.h"

namespace nofrag {
namespace {

constexpr std::size_t kMostHolders = 8;
constexpr std::size_t kTimelineRows = 12;

std::string verdict(const Diagnosis& d) {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f", 100 * d.confidence);
  return std::string(to_string(d.cause)) + " (" + percent +
         " %): " + std::string(describe(d.cause));
}

void list(const char* title, const std::vector<std::string>& lines, std::string* out) {
  if (lines.empty()) {
    return;
  }
  *out += std::string(title) + "\n";
  for (const std::string& line : lines) {
    *out += "  - " + line + "\n";
  }
}

void rungs(const DeviceStats& stats, std::string* out) {
  constexpr std::pair<Rung, const char*> kRungs[] = {
      {Rung::kOwnFree, "own free memory"},
      {Rung::kOwnMappable, "own memory mapped anew"},
      {Rung::kGrow, "new memory from the driver"},
      {Rung::kOtherPools, "idle memory of other pools"},
      {Rung::kDeviceWait, "memory of other streams, after a wait"},
      {Rung::kPressureCallbacks, "memory that callbacks gave back"},
      {Rung::kFailed, "refused"}};
  *out += "requests by the last rung they needed\n";
  for (const auto& [rung, name] : kRungs) {
    char line[96];
    std::snprintf(line,
                  sizeof line,
                  "  %-40s %12llu\n",
                  name,
                  static_cast<unsigned long long>(stats.rungs[static_cast<std::size_t>(rung)]));
    *out += line;
  }
}

void holders(const std::vector<Holder>& all, std::string* out) {
  if (all.empty()) {
    return;
  }
  *out += "largest holders (live blocks by size)\n";
  for (std::size_t i = 0; i < std::min(all.size(), kMostHolders); ++i) {
    char line[128];
    std::snprintf(line,
                  sizeof line,
                  "  %12s = %8llu blocks of %s\n",
                  human_bytes(all[i].total).c_str(),
                  static_cast<unsigned long long>(all[i].blocks),
                  human_bytes(all[i].size).c_str());
    *out += line;
  }
}

void timeline(const Timeline& history, std::string* out) {
  const Track& windows = history.windows();
  if (windows.size() < 2) {
    return;
  }
  *out +=
      "timeline (seconds from the first allocation: live memory from lowest to highest, largest "
      "request)\n";
  const std::uint64_t start = windows[0].start_us;
  const std::size_t step = (windows.size() + kTimelineRows - 1) / kTimelineRows;
  for (std::size_t i = 0; i < windows.size(); i += step) {
    Stretch row = windows[i];
    for (std::size_t j = i + 1; j < std::min(i + step, windows.size()); ++j) {
      row = merged(row, windows[j]);
    }
    char line[160];
    std::snprintf(line,
                  sizeof line,
                  "  %10.3f  %12s to %12s, %12s\n",
                  static_cast<double>(row.end_us - start) / 1e6,
                  human_bytes(Bytes(row.min_live)).c_str(),
                  human_bytes(Bytes(row.max_live)).c_str(),
                  human_bytes(Bytes(row.largest_request)).c_str());
    *out += line;
  }
}

}  // namespace

std::string short_report(const Diagnosis& d) {
  std::string text = "cause: " + verdict(d);
  if (!d.evidence.empty()) {
    text += "\nwhy: " + d.evidence.front();
    if (d.cause == Cause::kLimit && d.evidence.size() > 1) {
      text += "; " + d.evidence[1];
    }
  }
  if (!d.advice.empty()) {
    text += "\ndo: " + d.advice.front();
  }
  return text;
}

std::string unfailed_report(const Diagnosis& d) {
  std::string out = "==== nofrag: no failure found ====\n";
  list("what there is", d.evidence, &out);
  list("what would tell more", d.missing, &out);
  return out;
}

std::string full_report(const Failure& f, const Diagnosis& d, const ReportContext& context) {
  std::string out = "==== nofrag: out of memory";
  if (context.pid != 0) {
    out +=
        ", process " + std::to_string(context.pid) + ", device " + std::to_string(context.device);
  }
  out += " ====\n";
  if (!context.message.empty()) {
    out += context.message + "\n";
  }
  out += "cause: " + verdict(d) + "\n";
  list("evidence", d.evidence, &out);
  list("what to do, most useful first", d.advice, &out);
  list("what would tell more", d.missing, &out);
  if (d.recoverable_by_remapping && !f.remapping) {
    constexpr double kLikely = 0.5;
    out += d.confidence >= kLikely
               ? "an allocator that remaps free memory would have served it\n"
               : "an allocator that remaps free memory might have served it; that is not certain\n";
  } else if (d.short_by > Bytes(0) && !f.cached && d.cause != Cause::kLimit) {
    out += human_bytes(d.short_by) +
           " more than was said to be free; whether the allocator held as much is not said\n";
  } else if (d.short_by > Bytes(0)) {
    out += std::string("no layout would have served it") +
           (d.cause == Cause::kLimit ? " under this limit: " : ": ") + human_bytes(d.short_by) +
           " are missing\n";
  }
  if (context.stats != nullptr) {
    rungs(*context.stats, &out);
  }
  holders(f.holders, &out);
  if (f.timeline != nullptr) {
    timeline(*f.timeline, &out);
  }
  if (!context.replay.empty()) {
    out += "to play it again: " + context.replay + "\n";
  }
  return out + "==== docs/oom-guide.md explains each cause ====\n";
}

}  // namespace nofrag
