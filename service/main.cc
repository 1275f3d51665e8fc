// longshored: reads flags and config, serves until SIGTERM or SIGINT, drains.
//
// Exit codes: 0 stopped as asked; 1 could not start; 2 the device failed.

#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "service/flags.h"
#include "service/mutex.h"
#include "service/server.h"

namespace longshore {
namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitDeviceLost = 2;

// Why main() stops waiting: a signal, or the device.
class StopEvent {
 public:
  enum class Cause : uint8_t { kNone, kSignal, kDeviceLost };

  void Set(Cause cause) {
    const MutexLock lock(&mutex_);
    cause_ = cause_ == Cause::kNone ? cause : cause_;
    changed_.notify_all();
  }
  Cause Wait() {
    MutexLock lock(&mutex_);
    while (cause_ == Cause::kNone) {
      lock.Wait(&changed_);
    }
    return cause_;
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  Cause cause_ ABSL_GUARDED_BY(mutex_) = Cause::kNone;
};

// The first signal stops the daemon, the second one ends it at once. Every thread blocks these
// signals, so that they come here and nowhere else.
void WatchSignals(const sigset_t& signals, StopEvent* stop) {
  std::thread([signals, stop] {
    int number = 0;
    sigwait(&signals, &number);
    spdlog::info("signal {}: draining; a second one ends at once", number);
    stop->Set(StopEvent::Cause::kSignal);
    sigwait(&signals, &number);
    std::_Exit(128 + number);
  }).detach();
}

// Tensors of many megabytes come and go: keeping their memory instead of mapping it anew for each
// message makes calls of 1 MiB and more three times faster.
void TuneMalloc() {
  constexpr int kNeverMap = 1 << 30;
  constexpr int kGrowBy = 64 << 20;
  // No other thread runs yet.
  mallopt(M_MMAP_THRESHOLD, kNeverMap);  // NOLINT(concurrency-mt-unsafe)
  mallopt(M_TRIM_THRESHOLD, kNeverMap);  // NOLINT(concurrency-mt-unsafe)
  mallopt(M_TOP_PAD, kGrowBy);           // NOLINT(concurrency-mt-unsafe)
}

// gRPC's own lines in the form of ours. What it calls an error is at most worth a warning: an error
// of ours follows where it matters.
void ForwardGrpcLog(gpr_log_func_args* line) {
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  spdlog::log(error ? spdlog::level::warn : spdlog::level::debug, "grpc: {}", line->message);
}

// gRPC's library is shut down with the last object that uses it, and then waits up to ten seconds
// for a thread that looked after a large message. The process ends, so nobody needs that.
void KeepGrpc() { grpc_init(); }

int CannotStart(const absl::Status& status) {
  std::fprintf(stderr, "longshored: %s\n", std::string{status.message()}.c_str());
  return kExitCannotStart;
}

int Run(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  TuneMalloc();

  const absl::StatusOr<Config> config = ConfigFromCommandLine(argc, argv);
  if (!config.ok()) {
    return CannotStart(config.status());
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("longshored"));
  spdlog::set_level(config->log_level);
  gpr_set_log_function(ForwardGrpcLog);
  KeepGrpc();
  spdlog::info("{}, pid {}", VersionText(), getpid());

  static StopEvent stop;  // static: the signal thread outlives this function
  WatchSignals(signals, &stop);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      *config, [backend = config->backend] { return MakeBackend(backend); },
      [] { stop.Set(StopEvent::Cause::kDeviceLost); });
  if (!server.ok()) {
    return CannotStart(server.status());
  }
  for (const Address& address : (*server)->addresses()) {
    spdlog::info("listening at {}", address.ToString());
  }
  if ((*server)->metrics_port() != 0) {
    Address metrics = config->metrics_listen.front();
    metrics.port = (*server)->metrics_port();
    spdlog::info("metrics at http://{}/metrics, status at /", metrics.ToString());
  }
  if (const absl::Status ready = (*server)->WaitReady(); !ready.ok()) {
    return CannotStart(ready);
  }
  spdlog::info("ready, instance {}", (*server)->instance_id());

  const StopEvent::Cause cause = stop.Wait();
  const int exit_code = cause == StopEvent::Cause::kSignal ? 0 : kExitDeviceLost;
  if ((*server)->Drain()) {
    spdlog::info("stopped");
  } else {
    spdlog::warn("a call still runs; leaving it");
  }
  // Without destroying the server: calls that still come would be cancelled (see Drain()), and
  // HTTP's threads wait up to two seconds for a client that has connected and says nothing. All
  // that is left goes with the process.
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) { return longshore::Run(argc, argv); }
