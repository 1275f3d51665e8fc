#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "service/attention_service.h"
#include "service/config.h"
#include "service/device_queue.h"
#include "service/http_server.h"
#include "service/metric_history.h"
#include "service/metrics.h"
#include "service/recall_monitor.h"
#include "service/server_service.h"
#include "service/session_service.h"
#include "service/status_board.h"

namespace longshore {

/// A daemon: listens, serves, drains. Hides in which order its parts start and stop.
class Server {
 public:
  using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;
  using DeviceLost = std::function<void()>;

  /// Listens at once; health says NOT_SERVING and calls answer LOADING until WaitReady() returns.
  /// `make_backend` and `on_device_lost` are called on the engine's thread. FailedPrecondition
  /// names an address that cannot be had.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       BackendFactory make_backend,
                                                       DeviceLost on_device_lost);
  /// Stops at once: waiting calls are dropped, the running one is waited for.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Blocks until the engine is there and serves, or says why there is none.
  absl::Status WaitReady();
  /// Refuses new calls (UNAVAILABLE, DRAINING), lets the running one end and its answer out, for at
  /// most the config's drain_limit, and removes the sockets. Calls that still come over a
  /// connection are refused the same way until the process ends, which it should do now, without
  /// destroying the server: that would cancel them. False if the call is still running.
  bool Drain();

  /// Where it listens, with the ports that were chosen for port 0.
  const std::vector<Address>& addresses() const { return addresses_; }
  /// The port of /metrics and the status page; 0 when they are off.
  int32_t metrics_port() const;
  const std::string& instance_id() const { return instance_id_; }

 private:
  Server(const Config& config, BackendFactory make_backend, DeviceLost on_device_lost);

  DeviceQueueOptions QueueOptions(DeviceLost on_device_lost);
  absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const BackendFactory& make_backend);
  std::chrono::steady_clock::time_point Sweep(Engine& engine);
  std::chrono::steady_clock::time_point MeasureRecall(Engine& engine);
  void Publish(const Engine& engine);
  std::chrono::steady_clock::time_point BeIdle(Engine& engine);
  absl::Status Listen();
  void SetReadiness(Readiness readiness);

  const Config config_;
  const std::string instance_id_;
  const uint64_t first_session_id_;
  std::vector<SocketLock> socket_locks_;  // outlive the sockets
  Metrics metrics_;
  StatusBoard board_;
  MetricHistory history_;
  std::unique_ptr<HttpServer> http_server_;  // reads the three above
  ServerService server_service_;
  RecallMonitor recall_;
  SessionRegistry registry_;
  Mutex health_mutex_;
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(health_mutex_) = nullptr;  // grpc_'s
  DeviceQueue queue_;  // its thread fills metrics, board, service and registry
  StepRunner runner_;
  SessionService sessions_;
  AttentionService attention_;
  RegionService regions_;
  std::unique_ptr<grpc::Server> grpc_;
  std::vector<Address> addresses_;
};

}  // namespace longshore
