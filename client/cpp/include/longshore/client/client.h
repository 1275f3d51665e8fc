#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "longshore/client/call_options.h"
#include "longshore/client/error.h"
#include "longshore/client/model_shape.h"
#include "longshore/client/session.h"
#include "longshore/client/step_stream.h"

namespace longshore::client {

class Connection;

struct BackendInfo {
  std::string name;    ///< "cpu", "cuda"
  std::string device;  ///< what a person calls it
  int32_t threads = 0;
  int64_t device_bytes = 0;
};

/// What a call may ask for; the fields are those of longshore.v1.Limits.
struct Limits {
  int64_t max_message_bytes = 0;
  int64_t max_rows_per_prefill = 0;
  int64_t max_rows_per_decode_item = 0;
  int32_t max_items_per_call = 0;
  int32_t max_sessions = 0;
  int64_t max_tokens_per_session = 0;
  int32_t max_queued_calls = 0;
  int64_t pool_bytes = 0;
  int32_t max_steps_in_flight = 0;
  int64_t max_queued_bytes = 0;
  int64_t max_table_bytes = 0;
  int64_t max_score_bytes = 0;
  absl::Duration default_lease;
  absl::Duration max_lease;
};

struct ServerInfo {
  std::string version;
  std::string instance_id;  ///< new at every start; sessions of another one are gone
  std::vector<BackendInfo> backends;
  Limits limits;
  std::vector<std::string> presets;
  std::vector<std::string> extensions;
  absl::Duration uptime;
};

struct ClientOptions {
  RetryPolicy retry;
  /// For how long Connect() waits for a daemon that is not there yet, or still starts.
  absl::Duration wait_for_daemon = absl::ZeroDuration();
};

/// Where longshored listens unless told otherwise: longshored.sock in $XDG_RUNTIME_DIR, in /run for
/// root, else in /tmp/longshored-UID.
std::string DefaultTarget();

/// A connection to a daemon. Copies share it; thread-safe. Sessions and streams keep it alive.
///
/// No function here throws. Errors are those of the wire (proto/README.md); error.h reads them.
class Client {
 public:
  /// `target` is unix:/path or host:port; empty: DefaultTarget(). UNAVAILABLE says how to start a
  /// daemon where none listens; FAILED_PRECONDITION: the default directory in /tmp belongs to
  /// somebody else.
  static absl::StatusOr<Client> Connect(std::string target = "", const ClientOptions& options = {});

  const std::string& target() const;

  /// Version, backends, limits and presets of the daemon.
  absl::StatusOr<ServerInfo> Info(const CallOptions& call = {}) const;
  /// What the daemon's /metrics shows: Prometheus text format.
  absl::StatusOr<std::string> Metrics(const CallOptions& call = {}) const;

  /// Opens a session, one sequence, which the daemon closes when the result goes.
  absl::StatusOr<Session> Open(const ModelShape& model,
                               const SessionOptions& options,
                               const CallOptions& call = {}) const;
  /// The session of that id, opened here or elsewhere and released: it is the result's to close.
  absl::StatusOr<Session> Attach(uint64_t session_id, const CallOptions& call = {}) const;
  /// A session as the daemon sees it, whoever opened it.
  absl::StatusOr<SessionInfo> Describe(uint64_t session_id, const CallOptions& call = {}) const;
  /// All sessions that this client may see, without their model.
  absl::StatusOr<std::vector<SessionInfo>> List(const CallOptions& call = {}) const;
  /// Closes a session by its id.
  absl::Status Close(uint64_t session_id, const CallOptions& call = {}) const;

  /// A connection for steps that are sent without waiting for those before. The timeout is the
  /// whole stream's.
  StepStream StreamSteps(const CallOptions& call = {}) const;

 private:
  explicit Client(std::shared_ptr<Connection> connection);

  std::shared_ptr<Connection> connection_;
};

}  // namespace longshore::client
