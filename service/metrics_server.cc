#include "service/metrics_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace longshore {
namespace {

// Connects and hangs up.
void Knock(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return;
  }
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
      (void)connect(fd, at->ai_addr, at->ai_addrlen);  // whether it gets through is no matter
      close(fd);
    }
  }
  freeaddrinfo(found);
}

}  // namespace

MetricsServer::MetricsServer(const Address& address, std::unique_ptr<prometheus::Exposer> exposer)
    : address_(address),
      exposer_(std::move(exposer)) {
  address_.port = exposer_->GetListeningPorts().front();
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const Address& address,
                                                                    const Metrics& metrics) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address.ToString(), /*num_threads=*/1);
    exposer->RegisterCollectable(metrics.registry());
    return std::unique_ptr<MetricsServer>(new MetricsServer(address, std::move(exposer)));
  } catch (const std::exception&) {  // civetweb says no more than that it failed
    return absl::FailedPreconditionError(absl::StrCat(
        "metrics cannot be served at ", address.ToString(),
        ": is the port in use? Choose another with --metrics-listen, or \"\" for none"));
  }
}

// civetweb looks at its stop flag when somebody connects, or every two seconds: a drain would wait
// for that longer than for anything else.
MetricsServer::~MetricsServer() {
  static constexpr std::chrono::milliseconds kPause{5};
  std::atomic<bool> stopped = false;
  std::thread knocking([this, &stopped] {
    while (!stopped) {
      std::this_thread::sleep_for(kPause);
      Knock(address_);
    }
  });
  exposer_.reset();
  stopped = true;
  knocking.join();
}

}  // namespace longshore
