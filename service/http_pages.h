#pragma once

#include "service/http_server.h"
#include "service/metric_history.h"
#include "service/metrics.h"
#include "service/status_board.h"

namespace longshore {

/// What a daemon shows over HTTP: /metrics for Prometheus, /healthz (the process is alive), /readyz
/// (it serves, or 503 and why not), and / for people. All must outlive the pages.
HttpServer::Pages DaemonPages(const Metrics* metrics,
                              const StatusBoard* board,
                              const MetricHistory* history);

}  // namespace longshore
