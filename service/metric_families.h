#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace longshore {

/// Families of a registry, each under one name with one text of help. A family is made once, in a
/// constructor: finding it again costs more than a step may.
inline prometheus::Family<prometheus::Counter>& Counters(prometheus::Registry& registry,
                                                         const char* name,
                                                         const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

inline prometheus::Family<prometheus::Gauge>& Gauges(prometheus::Registry& registry,
                                                     const char* name,
                                                     const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

inline prometheus::Family<prometheus::Histogram>& Histograms(prometheus::Registry& registry,
                                                             const char* name,
                                                             const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

/// 50 us to 100 s: a decode step of a short context to a prefill of a long one, with queueing.
inline prometheus::Histogram::BucketBoundaries SecondsBuckets() {
  return {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
          0.1,     0.2,    0.5,    1,      2,     5,     10,    20,   50,   100};
}

}  // namespace longshore
