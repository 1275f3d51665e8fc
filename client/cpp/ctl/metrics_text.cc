#include "client/cpp/ctl/metrics_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include <absl/strings/numbers.h>

namespace longshore::ctl {
namespace {

// Prometheus writes +Inf, -Inf and NaN, which SimpleAtod knows.
bool ParseNumber(const std::string& text, double* value) { return absl::SimpleAtod(text, value); }

// name="value",...} from `at` on, which is moved past the brace. False where it is none.
bool ParseLabels(const std::string& line, size_t* at, Labels* labels) {
  while (*at < line.size() && line[*at] != '}') {
    const size_t equals = line.find("=\"", *at);
    if (equals == std::string::npos) {
      return false;
    }
    const std::string name = line.substr(*at, equals - *at);
    std::string value;
    size_t letter = equals + 2;
    for (; letter < line.size() && line[letter] != '"'; ++letter) {
      const bool escaped = line[letter] == '\\' && letter + 1 < line.size();
      letter += escaped ? 1 : 0;
      value += escaped && line[letter] == 'n' ? '\n' : line[letter];
    }
    (*labels)[name] = value;
    *at = letter + 1;
    if (*at < line.size() && line[*at] == ',') {
      ++*at;
    }
  }
  ++*at;
  return *at <= line.size();
}

bool HasAll(const Labels& labels, const Labels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
    const auto found = labels.find(want.first);
    return found != labels.end() && found->second == want.second;
  });
}

}  // namespace

double HistogramSeries::Quantile(double quantile) const {
  const double rank = quantile * count;
  double lower = 0;
  double below = 0;
  for (const auto& [bound, up_to] : buckets) {
    if (up_to >= rank && up_to > below) {
      return std::isinf(bound) ? lower : lower + (bound - lower) * (rank - below) / (up_to - below);
    }
    lower = bound;
    below = up_to;
  }
  return 0;
}

HistogramSeries HistogramSeries::Since(const HistogramSeries& older) const {
  if (older.count > count || older.buckets.size() != buckets.size()) {
    return *this;
  }
  HistogramSeries since = *this;
  since.sum -= older.sum;
  since.count -= older.count;
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    since.buckets[bucket].second -= older.buckets[bucket].second;
  }
  return since;
}

MetricsText::MetricsText(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.front() != '#') {
      AddLine(line);
    }
  }
}

void MetricsText::AddLine(const std::string& line) {
  size_t at = line.find_first_of("{ ");
  if (at == std::string::npos) {
    return;
  }
  const std::string name = line.substr(0, at);
  Sample sample;
  if (line[at] == '{' && !ParseLabels(line, &++at, &sample.labels)) {
    return;
  }
  std::string number;
  std::istringstream(line.substr(at)) >> number;  // a timestamp may follow
  if (ParseNumber(number, &sample.value)) {
    samples_[name].push_back(std::move(sample));
  }
}

double MetricsText::Sum(const std::string& name, const Labels& labels) const {
  const auto found = samples_.find(name);
  double sum = 0;
  if (found != samples_.end()) {
    for (const Sample& sample : found->second) {
      sum += HasAll(sample.labels, labels) ? sample.value : 0;
    }
  }
  return sum;
}

std::vector<std::string> MetricsText::ValuesOf(const std::string& name,
                                               const std::string& label) const {
  std::set<std::string> values;
  const auto found = samples_.find(name);
  if (found != samples_.end()) {
    for (const Sample& sample : found->second) {
      if (const auto value = sample.labels.find(label); value != sample.labels.end()) {
        values.insert(value->second);
      }
    }
  }
  return {values.begin(), values.end()};
}

std::vector<HistogramSeries> MetricsText::Histograms(const std::string& name,
                                                     const std::string& summed) const {
  std::map<Labels, std::map<double, double>> series;  // observations up to each bound
  const auto found = samples_.find(name + "_bucket");
  if (found == samples_.end()) {
    return {};
  }
  for (const Sample& sample : found->second) {
    Labels labels = sample.labels;
    double bound = 0;
    if (!ParseNumber(labels["le"], &bound)) {
      continue;
    }
    labels.erase("le");
    labels.erase(summed);
    series[labels][bound] += sample.value;
  }
  std::vector<HistogramSeries> histograms;
  for (const auto& [labels, buckets] : series) {
    HistogramSeries histogram;
    histogram.buckets.assign(buckets.begin(), buckets.end());
    histogram.labels = labels;
    histogram.sum = Sum(name + "_sum", labels);
    histogram.count = histogram.buckets.back().second;
    histograms.push_back(std::move(histogram));
  }
  return histograms;
}

}  // namespace longshore::ctl
