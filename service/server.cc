#include "service/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <utility>

#include <absl/strings/str_format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include "service/errors.h"
#include "service/http_pages.h"

namespace longshore {
namespace {

constexpr mode_t kSocketUmask = 0117;  // leaves 0660: owner and group
// After the last step of a drain: calls that are done need no more than this to put their answers
// on the wire, and who calls again on top of them is told DRAINING.
constexpr std::chrono::milliseconds kAnswerTime{100};

std::string RandomInstanceId() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) {
    absl::StrAppendFormat(&id, "%08x", random());
  }
  return id;
}

}  // namespace

Server::Server(const Config& config, BackendFactory make_backend, DeviceLost on_device_lost)
    : config_(config),
      instance_id_(RandomInstanceId()),
      first_session_id_(InstanceSessionId()),
      board_(instance_id_),
      history_(std::chrono::steady_clock::now()),
      server_service_(&metrics_),
      recall_(config_.recall_max_time_share, metrics_.registry().get()),
      registry_(instance_id_, first_session_id_),
      queue_(QueueOptions(std::move(on_device_lost)),
             [this, make_backend = std::move(make_backend)] { return MakeEngine(make_backend); }),
      runner_(config_.engine, &registry_, &queue_, &metrics_),
      sessions_(instance_id_,
                {.default_lease = config_.default_lease, .max_lease = config_.max_lease},
                &registry_,
                &queue_,
                &metrics_),
      attention_(config_.max_steps_in_flight, &runner_, &metrics_),
      regions_(&metrics_) {
  metrics_.SetLimits(config_.max_queued_calls, config_.engine.max_sessions,
                     config_.engine.max_table_bytes);
}

Server::~Server() {
  queue_.Drain(std::chrono::milliseconds(0));
  if (grpc_ != nullptr) {
    {
      const MutexLock lock(&health_mutex_);
      health_ = nullptr;
    }
    grpc_->Shutdown(std::chrono::system_clock::now());
    grpc_.reset();  // removes the sockets
  }
  http_server_.reset();
}

DeviceQueueOptions Server::QueueOptions(DeviceLost on_device_lost) {
  DeviceQueueOptions options;
  options.max_jobs = config_.max_queued_calls;
  options.max_bytes = config_.max_queued_bytes;
  options.on_depth = [this](int64_t jobs) { metrics_.SetQueueDepth(jobs); };
  options.on_wait = [this](bool bulk, double seconds) { metrics_.ObserveQueueWait(bulk, seconds); };
  options.on_job_run = [this](Engine& engine) { Publish(engine); };
  options.idle = [this](Engine& engine) { return BeIdle(engine); };
  options.on_device_lost = [this, on_device_lost =
                                      std::move(on_device_lost)](const absl::Status& status) {
    spdlog::critical("the device has failed: {}", LogText(status));
    SetReadiness(Readiness::kDeviceLost);
    on_device_lost();
  };
  return options;
}

// What there is to do while nobody waits, or once in a while. Returns when there will be more.
std::chrono::steady_clock::time_point Server::BeIdle(Engine& engine) {
  auto next = Sweep(engine);
  Publish(engine);
  if (!config_.metrics_listen.empty()) {
    next = std::min(next, history_.Keep(metrics_, std::chrono::steady_clock::now()));
  }
  return std::min(next, MeasureRecall(engine));
}

// Closes the sessions whose lease has ended. Returns when the next one ends.
std::chrono::steady_clock::time_point Server::Sweep(Engine& engine) {
  for (const uint64_t id : registry_.Expire(std::chrono::steady_clock::now())) {
    if (const absl::Status closed = engine.Close(id); !closed.ok()) {
      spdlog::error("session {} cannot be closed: {}", id, LogText(closed));
    }
    metrics_.CountLeaseExpiry();
    spdlog::info("session {} expired: no call within its lease", id);
  }
  return registry_.NextExpiry();
}

// A slice of a measurement. Returns when it wants the next one.
std::chrono::steady_clock::time_point Server::MeasureRecall(Engine& engine) {
  const auto next = recall_.Work(engine, std::chrono::steady_clock::now());
  if (!engine.device_status().ok()) {
    queue_.DeviceLost(engine.device_status());
  }
  return next;
}

// On the engine's thread: what /metrics and the status page show of the engine.
void Server::Publish(const Engine& engine) {
  metrics_.SetEngine(engine.pool_usage(), engine.table_bytes(), engine.num_sessions());
  if (config_.metrics_listen.empty()) {
    return;
  }
  board_.Update(engine, [this](SessionLine* line) {
    using Seconds = std::chrono::duration<double>;
    const SessionRegistry::Entry entry = registry_.Find(line->id);
    const auto idle = SessionRegistry::Clock::now() - entry.last_used;
    line->idle_seconds = entry.uses > 0 ? 0 : Seconds(idle).count();
    line->lease_seconds = Seconds(entry.lease).count();
  });
}

// On the engine's thread, while the server may be listening already.
absl::StatusOr<std::unique_ptr<Engine>> Server::MakeEngine(const BackendFactory& make_backend) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, make_backend());
  EngineOptions options = config_.engine;
  options.first_session_id = first_session_id_;
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(options, std::move(backend)));
  metrics_.SetEngine(engine->pool_usage(), engine->table_bytes(), engine->num_sessions());
  metrics_.SetBuild(engine->device());
  board_.SetDevice(engine->device());
  server_service_.SetInfo(MakeServerInfo(config_, instance_id_, engine->device()));
  spdlog::info("backend {}: {}; pool of {} MiB", engine->device().backend, engine->device().device,
               engine->pool_usage().total_bytes >> 20);
  return engine;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config,
                                                      BackendFactory make_backend,
                                                      DeviceLost on_device_lost) {
  std::vector<SocketLock> locks;
  for (const Address& address : config.listen) {
    if (address.is_unix()) {
      ASSIGN_OR_RETURN(SocketLock lock, SocketLock::Take(address));
      locks.push_back(std::move(lock));
    }
  }
  auto server = std::unique_ptr<Server>(
      new Server(config, std::move(make_backend), std::move(on_device_lost)));
  server->socket_locks_ = std::move(locks);
  for (const Address& address : config.metrics_listen) {
    ASSIGN_OR_RETURN(server->http_server_,
                     HttpServer::Start(address, DaemonPages(&server->metrics_, &server->board_,
                                                            &server->history_)));
  }
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(config_.max_message_bytes));
  // gRPC's default lets a second daemon listen on the same port, and calls go to either.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::vector<int> ports(config_.listen.size());
  for (size_t index = 0; index < ports.size(); ++index) {
    builder.AddListeningPort(config_.listen[index].ToString(), grpc::InsecureServerCredentials(),
                             &ports[index]);
  }
  builder.RegisterService(&sessions_);
  builder.RegisterService(&attention_);
  builder.RegisterService(&server_service_);
  builder.RegisterService(&regions_);

  const mode_t umask_before = umask(kSocketUmask);
  grpc_ = builder.BuildAndStart();
  umask(umask_before);
  for (size_t index = 0; index < ports.size(); ++index) {
    Address address = config_.listen[index];
    if (ports[index] == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot listen at ", address.ToString(),
          address.is_unix() ? ": is the directory there and writable?" : ": is the port in use?"));
    }
    address.port = address.is_unix() ? 0 : ports[index];
    addresses_.push_back(std::move(address));
  }
  if (grpc_ == nullptr) {
    return absl::FailedPreconditionError("cannot start the gRPC server");
  }
  {
    const MutexLock lock(&health_mutex_);
    health_ = grpc_->GetHealthCheckService();
  }
  SetReadiness(Readiness::kLoading);
  return absl::OkStatus();
}

absl::Status Server::WaitReady() {
  RETURN_IF_ERROR(queue_.WaitReady());
  SetReadiness(Readiness::kServing);
  return absl::OkStatus();
}

// The same over gRPC's health service, /readyz and the metrics. On main's thread, or the queue's
// when its device is lost.
void Server::SetReadiness(Readiness readiness) {
  const MutexLock lock(&health_mutex_);
  board_.SetReadiness(readiness);
  const bool serving = board_.readiness() == Readiness::kServing;
  metrics_.SetReady(serving);
  if (health_ == nullptr) {
    return;
  }
  for (const char* service : {v1::Attention::service_full_name(), v1::Sessions::service_full_name(),
                              v1::Server::service_full_name()}) {
    health_->SetServingStatus(service, serving);
  }
  health_->SetServingStatus(serving);  // and of the server as a whole
}

// gRPC's own shutdown is for the destructor: a call that it meets on its way in ends as CANCELLED,
// as if the caller had wished so.
bool Server::Drain() {
  SetReadiness(Readiness::kDraining);
  const auto limit = std::max(config_.drain_limit - kAnswerTime, std::chrono::milliseconds(0));
  const bool ended = queue_.Drain(limit);
  for (const Address& address : addresses_) {
    if (address.is_unix()) {
      unlink(address.unix_path.c_str());
    }
  }
  if (ended) {
    std::this_thread::sleep_for(kAnswerTime);
  }
  return ended;
}

int32_t Server::metrics_port() const { return http_server_ == nullptr ? 0 : http_server_->port(); }

}  // namespace longshore
