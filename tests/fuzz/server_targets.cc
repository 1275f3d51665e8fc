// What asks for nothing, and the config file.

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "longshore/v1/region.pb.h"
#include "longshore/v1/server.pb.h"
#include "service/config.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/target.h"

namespace longshore::fuzz {
namespace {

// Requests whose fields nobody looks at yet: they must parse, or be refused properly.
template <typename Request>
void ParseOnly(std::string_view bytes) {
  Request request;
  Parse(bytes, &request);
}

// A file that ReadConfigFile can open, without a disk.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("config", MFD_CLOEXEC)) {
    Require(fd_ >= 0, "no memory file");
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      Require(written > 0, "the memory file is not written");
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  int fd_;
};

void RequireRefusal(const absl::Status& status) {
  Require(status.code() == absl::StatusCode::kInvalidArgument && !status.message().empty(),
          "a config is refused with ", status.ToString());
}

}  // namespace

void RunGetServerInfo(std::string_view bytes) { ParseOnly<v1::GetServerInfoRequest>(bytes); }
void RunGetMetrics(std::string_view bytes) { ParseOnly<v1::GetMetricsRequest>(bytes); }
void RunOpenRegion(std::string_view bytes) { ParseOnly<v1::OpenRegionRequest>(bytes); }
void RunCloseRegion(std::string_view bytes) { ParseOnly<v1::CloseRegionRequest>(bytes); }

void RunConfigFile(std::string_view bytes) {
  const MemoryFile file(bytes);
  const absl::StatusOr<config::DaemonConfig> written = ReadConfigFile(file.path());
  if (!written.ok()) {
    RequireRefusal(written.status());
    return;
  }
  const absl::StatusOr<Config> config = ResolveConfig(*written);
  if (!config.ok()) {
    RequireRefusal(config.status());
    return;
  }
  Require(!config->listen.empty() && config->metrics_listen.size() <= 1, "addresses");
  Require(config->backend.threads >= 0 && config->backend.threads <= 1024, "threads");
  const EngineOptions& engine = config->engine;
  for (const int64_t limit :
       {engine.pool_bytes, int64_t{engine.max_sessions}, engine.max_tokens_per_session,
        int64_t{engine.max_items_per_call}, engine.max_rows_per_prefill,
        int64_t{engine.max_rows_per_decode_item}, engine.max_table_bytes, engine.max_score_bytes,
        config->max_message_bytes, int64_t{config->max_queued_calls}, config->max_queued_bytes,
        int64_t{config->max_steps_in_flight}, int64_t{config->max_lease.count()}}) {
    Require(limit > 0, "a limit is ", limit);
  }
  Require(config->drain_limit.count() >= 0, "drain_seconds");
  Require(config->default_lease <= config->max_lease, "the default lease passes the longest");
}

}  // namespace longshore::fuzz
