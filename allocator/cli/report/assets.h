// Assets: the parts of a report's page, as they stand in files at build time.
//
// Owns: constants. The page, its style and its script are in assets/; kChartJs is Chart.js (MIT licence, named in
// its first lines). Layer: cli. Threads: constants. Failure: none. Cost: 220 KB of the program.
#pragma once

#include <string_view>

namespace nofrag {

extern const std::string_view kReportHtml;
extern const std::string_view kReportCss;
extern const std::string_view kReportJs;
extern const std::string_view kChartJs;

}  // namespace nofrag
