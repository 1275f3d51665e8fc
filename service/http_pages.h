#pragma once

#include "service/http_server.h"
#include "service/metrics.h"
#include "service/status_board.h"

namespace longshore {

/// What a daemon shows over HTTP: /metrics for Prometheus, /healthz (the process is alive), /readyz
/// (it serves, or 503 and why not), and / for people. Both must outlive the pages.
HttpServer::Pages DaemonPages(const Metrics* metrics, const StatusBoard* board);

}  // namespace longshore
