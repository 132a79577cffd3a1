#include "cli/report/report_page.h"

#include <algorithm>
#include <utility>

#include "cli/report/address_map.h"
#include "cli/report/assets.h"
#include "cli/report/trace_digest.h"

namespace nofrag {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kLooks = 2000;
constexpr std::uint64_t kMoments = 200;
constexpr std::size_t kRows = 20;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      word = word << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

ordered_json block_json(const TraceDigest::Block& block) {
  return {{"id", block.id},
          {"bytes", block.size},
          {"stream", block.stream},
          {"from_us", block.from_us},
          {"to_us", block.to_us},
          {"freed", block.freed},
          {"site", block.site},
          {"frames", block.frames}};
}

ordered_json bins_json(const std::vector<TraceDigest::Bin>& bins) {
  ordered_json out = ordered_json::array();
  for (const TraceDigest::Bin& bin : bins) {
    out.push_back({{"from", bin.from}, {"blocks", bin.blocks}, {"bytes", bin.bytes.count()}});
  }
  return out;
}

ordered_json digest_json(const TraceDigest& digest) {
  ordered_json out = {{"by", digest.by_site ? "call site" : "size"},
                      {"ranges_at_peak", digest.ranges_at_peak},
                      {"groups", ordered_json::array()},
                      {"biggest", ordered_json::array()},
                      {"longest", ordered_json::array()},
                      {"sizes", bins_json(digest.sizes)},
                      {"lifetimes_us", bins_json(digest.lifetimes)}};
  for (const TraceDigest::Group& group : digest.groups) {
    out["groups"].push_back({{"name", group.name},
                             {"allocations", group.allocations},
                             {"blocks_at_peak", group.blocks_at_peak},
                             {"bytes_at_peak", group.bytes_at_peak.count()},
                             {"largest", group.largest.count()},
                             {"frames", group.frames}});
  }
  for (const TraceDigest::Block& block : digest.biggest) {
    out["biggest"].push_back(block_json(block));
  }
  for (const TraceDigest::Block& block : digest.longest) {
    out["longest"].push_back(block_json(block));
  }
  ordered_json live = {{"time_us", ordered_json::array()},
                       {"highest", ordered_json::array()},
                       {"last", ordered_json::array()}};
  for (const TraceDigest::Bucket& bucket : digest.live) {
    live["time_us"].push_back(bucket.time_us);
    live["highest"].push_back(bucket.highest.count());
    live["last"].push_back(bucket.last.count());
  }
  out["live"] = std::move(live);
  return out;
}

// Evenly over the events, with the peak and the end.
std::vector<std::uint64_t> moments_of(std::uint64_t events, std::uint64_t peak) {
  std::vector<std::uint64_t> moments;
  for (std::uint64_t i = 1; i <= std::min(kMoments, events); ++i) {
    moments.push_back(events * i / std::min(kMoments, events));
  }
  if (peak <= events) {
    moments.push_back(peak);
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  return moments;
}

ordered_json map_json(const Trace& trace,
                      const ReplayRun& run,
                      const RunObserver& observer,
                      std::uint64_t peak_events) {
  const AddressMap map(trace,
                       observer.addresses(),
                       run.events_replayed,
                       moments_of(run.events_replayed, peak_events));
  ordered_json out = {{"allocator", run.allocator},
                      {"cell_bytes", map.cell_bytes()},
                      {"areas", ordered_json::array()},
                      {"moments", ordered_json::array()}};
  for (const AddressMap::Area& area : map.areas()) {
    out["areas"].push_back({{"address", area.address}, {"cells", area.cells}});
  }
  for (const AddressMap::Moment& moment : map.moments()) {
    out["moments"].push_back({{"events", moment.events},
                              {"time_us", moment.time_us},
                              {"live_bytes", moment.live.count()},
                              {"blocks", moment.blocks},
                              {"is_peak", moment.events == peak_events},
                              {"levels", base64(moment.levels)}});
  }
  return out;
}

ordered_json samples_json(const Trace& trace, const ReplayRun& run, const RunObserver* observer) {
  ordered_json out = {{"allocator", run.allocator},
                      {"time_us", ordered_json::array()},
                      {"reserved", ordered_json::array()},
                      {"pending", ordered_json::array()}};
  if (observer == nullptr) {
    return out;
  }
  for (const RunObserver::Sample& sample : observer->samples()) {
    const std::uint64_t last = sample.events_done == 0 ? 0 : sample.events_done - 1;
    out["time_us"].push_back(trace.events[last].time_us - trace.events.front().time_us);
    out["reserved"].push_back(sample.reserved.count());
    out["pending"].push_back(sample.pending.count());
  }
  return out;
}

// Inside a script element no text may look like its end.
std::string script_safe(const ordered_json& value) {
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

// The template up to `mark`, then `text`; the template goes on behind the mark.
void put(std::string_view* rest, std::string_view mark, std::string_view text, std::string* page) {
  const std::size_t at = std::min(rest->find(mark), rest->size());
  page->append(rest->substr(0, at));
  page->append(text);
  rest->remove_prefix(std::min(rest->size(), at + mark.size()));
}

}  // namespace

std::unique_ptr<RunObserver> make_report_observer(const Trace& trace) {
  return std::make_unique<RunObserver>(trace, kLooks);
}

ordered_json report_details(const Trace& trace,
                            const TraceReport& report,
                            const RunObservers& observers) {
  const std::uint64_t bucket = make_report_observer(trace)->every();
  const TraceDigest digest = digest_trace(trace, bucket, kRows);
  ordered_json out = digest_json(digest);
  out["runs"] = ordered_json::array();
  out["map"] = nullptr;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const RunObserver* observer = i < observers.size() ? observers[i].get() : nullptr;
    out["runs"].push_back(samples_json(trace, report.runs[i], observer));
    if (out["map"].is_null() && observer != nullptr && observer->has_addresses()) {
      out["map"] = map_json(trace, report.runs[i], *observer, digest.peak_events);
    }
  }
  out["marks"] = ordered_json::array();
  for (const TraceMark& mark : trace.marks) {
    ordered_json one = {
        {"event", mark.event},
        {"time_us", mark.time_us - std::min(mark.time_us, trace.events.front().time_us)},
        {"requested_bytes", mark.requested},
        {"free_bytes", nullptr},
        {"limit_bytes", nullptr}};
    if (mark.free_bytes) {
      one["free_bytes"] = *mark.free_bytes;
    }
    if (mark.limit_bytes) {
      one["limit_bytes"] = *mark.limit_bytes;
    }
    out["marks"].push_back(std::move(one));
  }
  return out;
}

std::string report_page(const std::vector<TraceReport>& reports, const ordered_json& details) {
  std::string_view rest = kReportHtml;
  std::string page;
  put(&rest, "/*STYLE*/", kReportCss, &page);
  put(&rest, "\"REPLAY\"", script_safe(replay_json(reports)), &page);
  put(&rest, "\"DETAILS\"", script_safe(details), &page);
  put(&rest, "/*CHARTS*/", kChartJs, &page);
  put(&rest, "/*PAGE*/", kReportJs, &page);
  page.append(rest);
  return page;
}

}  // namespace nofrag
