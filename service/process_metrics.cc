#include "service/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace longshore {
namespace {

using Seconds = std::chrono::duration<double>;

prometheus::MetricFamily Family(const char* name,
                                const char* help,
                                prometheus::MetricType type,
                                double value) {
  prometheus::ClientMetric metric;
  metric.counter.value = value;
  metric.gauge.value = value;
  return {.name = name, .help = help, .type = type, .metric = {metric}};
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  constexpr double kMicrosecond = 1e-6;
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * kMicrosecond;
}

double ResidentBytes() {
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages * sysconf(_SC_PAGESIZE));
}

// The one that reads the folder is among them, as it is with other libraries.
double OpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(begin(files), end(files)));
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  using prometheus::MetricType;
  const Seconds uptime = std::chrono::steady_clock::now() - start_;
  const Seconds start = start_time_.time_since_epoch();
  return {
      Family("longshore_uptime_seconds", "Time since this instance of the daemon started",
             MetricType::Gauge, uptime.count()),
      Family("process_start_time_seconds", "When the process started, in seconds since 1970",
             MetricType::Gauge, start.count()),
      Family("process_cpu_seconds_total", "CPU time of the process, all threads",
             MetricType::Counter, CpuSeconds()),
      Family("process_resident_memory_bytes", "Memory of the process that is in RAM",
             MetricType::Gauge, ResidentBytes()),
      Family("process_open_fds", "Files and sockets that the process has open", MetricType::Gauge,
             OpenFiles()),
  };
}

}  // namespace longshore
