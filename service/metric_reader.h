#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

namespace longshore {

/// A histogram: how many values lie at or below each bound.
struct Distribution {
  struct Bucket {
    double upper_bound = 0;  ///< infinity for the last one
    uint64_t count = 0;      ///< between the bound before and this one
  };
  std::vector<Bucket> buckets;
  uint64_t count = 0;
  double sum = 0;

  double Mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
  /// By linear interpolation inside a bucket, as Prometheus does it; the largest finite bound when
  /// it lies beyond.
  double Quantile(double share) const;
  /// Without what was in it before: of the same histogram, earlier.
  Distribution Since(const Distribution& before) const;
};

/// Reads values out of metrics as they were collected: sums over the series that have the given
/// labels. What is not there counts as 0.
class MetricReader {
 public:
  using Labels = std::map<std::string, std::string>;

  /// `families` must outlive the reader.
  explicit MetricReader(const std::vector<prometheus::MetricFamily>& families);

  bool Has(const std::string& name) const { return families_.contains(name); }
  /// Of counters and gauges.
  double Sum(const std::string& name, const Labels& labels = {}) const;
  /// Of histograms.
  Distribution Merge(const std::string& name, const Labels& labels = {}) const;
  /// The values of `label` among the series of `name`, in order.
  std::vector<std::string> ValuesOf(const std::string& name, const std::string& label) const;

 private:
  std::vector<const prometheus::ClientMetric*> Find(const std::string& name,
                                                    const Labels& labels) const;

  std::map<std::string, const prometheus::MetricFamily*> families_;
};

}  // namespace longshore
