#include "service/http_pages.h"

#include <string>

#include "service/status_page.h"
#include "service/version.h"

namespace longshore {

HttpServer::Pages DaemonPages(const Metrics* metrics,
                              const StatusBoard* board,
                              const MetricHistory* history) {
  HttpServer::Pages pages;
  pages["/metrics"] = [metrics] {
    return HttpAnswer{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                      .body = metrics->Text()};
  };
  pages["/healthz"] = [] { return HttpAnswer{.body = "ok\n"}; };
  pages["/readyz"] = [board] {
    const Readiness readiness = board->readiness();
    return HttpAnswer{.code = readiness == Readiness::kServing ? 200 : 503,
                      .body = std::string(NameOf(readiness)) + "\n"};
  };
  pages["/"] = [metrics, board, history] {
    return HttpAnswer{.content_type = "text/html; charset=utf-8",
                      .body = StatusPage({.version = kVersion,
                                          .build = kBuildType,
                                          .board = board->Read(),
                                          .metrics = metrics->Collect(),
                                          .past = history->Read(MetricHistory::Clock::now())})};
  };
  return pages;
}

}  // namespace longshore
