#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace longshore::ctl {

using Labels = std::map<std::string, std::string>;

/// A histogram of one set of labels.
struct HistogramSeries {
  Labels labels;  ///< without `le`
  /// Upper bounds, ascending, the last one infinite; observations up to each.
  std::vector<std::pair<double, double>> buckets;
  double sum = 0;
  double count = 0;

  double Mean() const { return count > 0 ? sum / count : 0; }
  /// The value below which a share of `quantile` lies, straight between the bounds of its bucket;
  /// the last finite bound where it lies above that. 0 without observations.
  double Quantile(double quantile) const;
  /// What was observed since `older`, which has the same labels and bounds; all of it where that
  /// had more observations, as before a restart.
  HistogramSeries Since(const HistogramSeries& older) const;
};

/// What a daemon's metrics say at one moment: Prometheus text format 0.0.4.
class MetricsText {
 public:
  MetricsText() = default;
  /// Lines that are none of the format are left out.
  explicit MetricsText(const std::string& text);

  bool Has(const std::string& name) const { return samples_.contains(name); }
  /// Sum over all series of that name that have these labels; 0 for none.
  double Sum(const std::string& name, const Labels& labels = {}) const;
  /// Values of a label, in order, among the series of that name.
  std::vector<std::string> ValuesOf(const std::string& name, const std::string& label) const;
  /// All series of a histogram, in the order of their labels. Those that differ in the label
  /// `summed` alone are one, without it.
  std::vector<HistogramSeries> Histograms(const std::string& name,
                                          const std::string& summed = {}) const;

 private:
  struct Sample {
    Labels labels;
    double value = 0;
  };
  void AddLine(const std::string& line);

  std::map<std::string, std::vector<Sample>> samples_;
};

}  // namespace longshore::ctl
