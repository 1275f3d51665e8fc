#pragma once

#include <string>
#include <vector>

#include "client/cpp/ctl/metrics_text.h"

namespace longshore::ctl {

/// What the daemon has sampled of one kind of layers, phase and age of the mask.
struct RecallRow {
  std::string layers;
  std::string phase;
  std::string age;
  HistogramSeries mass_kept;   ///< mean over heads, 0..1
  HistogramSeries worst_head;  ///< of the head that loses most
};

/// Those with samples, by phase, layers and age.
std::vector<RecallRow> RecallRows(const MetricsText& metrics);

/// As a table with a line for the heads.
std::string RecallText(const std::vector<RecallRow>& rows);

/// What became of the query blocks that were sampled: a line that says why there is so little.
std::string SamplesText(const MetricsText& metrics);

}  // namespace longshore::ctl
