// ReportBuilder: one HTML file of everything that replays of traces show, without a network.
//
// Owns: the data of the page. The page holds the JSON of `nofrag replay` itself, so its numbers are those.
// Layer: cli. Levels of detail bound the page's size whatever the trace's. Threads: none. Failure: none.
// Cost: one pass over a trace's events for each part; a page has one to three MB.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/replay/replay_report.h"
#include "cli/report/run_observer.h"

namespace nofrag {

// The observers of a trace's runs, in the order of the runs; null where none could look.
using RunObservers = std::vector<std::unique_ptr<RunObserver>>;

std::unique_ptr<RunObserver> make_report_observer(const Trace& trace);

// What the page shows of one trace beyond the replay's JSON.
nlohmann::ordered_json report_details(const Trace& trace,
                                      const TraceReport& report,
                                      const RunObservers& observers);

// `details` in the order of `reports`.
std::string report_page(const std::vector<TraceReport>& reports,
                        const nlohmann::ordered_json& details);

}  // namespace nofrag
