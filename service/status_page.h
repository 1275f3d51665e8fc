#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "service/metric_history.h"
#include "service/status_board.h"

namespace longshore {

/// Everything that the page is made of.
struct StatusReport {
  std::string version;
  std::string build;
  StatusBoard::View board;
  std::vector<prometheus::MetricFamily> metrics;
  MetricHistory::Past past;  ///< of latencies and waits; what came since is shown
};

/// The page for people, at /: one HTML document that needs nothing else, and is well-formed XML
/// too. A pure function of its report. Whatever a client chose is escaped.
std::string StatusPage(const StatusReport& report);

}  // namespace longshore
