#include "service/metric_reader.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace longshore {
namespace {

bool HasLabels(const prometheus::ClientMetric& metric, const MetricReader::Labels& labels) {
  return std::all_of(labels.begin(), labels.end(), [&metric](const auto& wanted) {
    return std::any_of(metric.label.begin(), metric.label.end(), [&wanted](const auto& label) {
      return label.name == wanted.first && label.value == wanted.second;
    });
  });
}

}  // namespace

double Distribution::Quantile(double share) const {
  const double rank = share * static_cast<double>(count);
  double below = 0;
  double lower_bound = 0;
  for (const Bucket& bucket : buckets) {
    if (std::isinf(bucket.upper_bound)) {
      return lower_bound;
    }
    const auto inside = static_cast<double>(bucket.count);
    if (inside > 0 && below + inside >= rank) {
      return lower_bound + (bucket.upper_bound - lower_bound) * (rank - below) / inside;
    }
    below += inside;
    lower_bound = bucket.upper_bound;
  }
  return lower_bound;
}

Distribution Distribution::Since(const Distribution& before) const {
  Distribution grown = *this;
  for (size_t index = 0; index < std::min(buckets.size(), before.buckets.size()); ++index) {
    grown.buckets[index].count -= before.buckets[index].count;
  }
  grown.count -= before.count;
  grown.sum -= before.sum;
  return grown;
}

MetricReader::MetricReader(const std::vector<prometheus::MetricFamily>& families) {
  for (const prometheus::MetricFamily& family : families) {
    families_[family.name] = &family;
  }
}

std::vector<const prometheus::ClientMetric*> MetricReader::Find(const std::string& name,
                                                                const Labels& labels) const {
  std::vector<const prometheus::ClientMetric*> found;
  const auto family = families_.find(name);
  if (family != families_.end()) {
    for (const prometheus::ClientMetric& metric : family->second->metric) {
      if (HasLabels(metric, labels)) {
        found.push_back(&metric);
      }
    }
  }
  return found;
}

double MetricReader::Sum(const std::string& name, const Labels& labels) const {
  double sum = 0;
  for (const prometheus::ClientMetric* metric : Find(name, labels)) {
    sum += metric->counter.value + metric->gauge.value;  // the other one is 0
  }
  return sum;
}

Distribution MetricReader::Merge(const std::string& name, const Labels& labels) const {
  Distribution merged;
  for (const prometheus::ClientMetric* metric : Find(name, labels)) {
    const auto& histogram = metric->histogram;
    merged.buckets.resize(std::max(merged.buckets.size(), histogram.bucket.size()));
    uint64_t below = 0;
    for (size_t index = 0; index < histogram.bucket.size(); ++index) {
      merged.buckets[index].upper_bound = histogram.bucket[index].upper_bound;
      merged.buckets[index].count += histogram.bucket[index].cumulative_count - below;
      below = histogram.bucket[index].cumulative_count;
    }
    merged.count += histogram.sample_count;
    merged.sum += histogram.sample_sum;
  }
  return merged;
}

std::vector<std::string> MetricReader::ValuesOf(const std::string& name,
                                                const std::string& label) const {
  std::set<std::string> values;
  for (const prometheus::ClientMetric* metric : Find(name, {})) {
    for (const auto& of_metric : metric->label) {
      if (of_metric.name == label) {
        values.insert(of_metric.value);
      }
    }
  }
  return {values.begin(), values.end()};
}

}  // namespace longshore
