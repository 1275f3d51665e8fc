#pragma once

#include <cstdint>
#include <memory>

#include <prometheus/exposer.h>

#include "service/address.h"
#include "service/metrics.h"

namespace longshore {

/// Serves metrics at http://address/metrics until it is destroyed. Hides civetweb.
class MetricsServer {
 public:
  /// FailedPrecondition names the address when it is taken.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const Address& address,
                                                              const Metrics& metrics);
  /// A scrape that has begun is answered.
  ~MetricsServer();

  /// The one that was chosen for port 0.
  int32_t port() const { return address_.port; }

 private:
  MetricsServer(const Address& address, std::unique_ptr<prometheus::Exposer> exposer);

  Address address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace longshore
