#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <spdlog/common.h>

#include "engine/engine.h"
#include "engine/make_backend.h"
#include "service/address.h"
#include "service/config.pb.h"

namespace longshore {

/// Everything that a daemon is started with, checked, with defaults filled in.
struct Config {
  std::vector<Address> listen;          ///< at least one
  std::vector<Address> metrics_listen;  ///< none or one
  BackendOptions backend;
  EngineOptions engine;
  bool allow_overcommit_memory = false;
  spdlog::level::level_enum log_level = spdlog::level::info;
  std::chrono::milliseconds drain_limit{5000};
  int64_t max_message_bytes = int64_t{64} << 20;
  int32_t max_queued_calls = 256;
  int64_t max_queued_bytes = int64_t{1} << 30;
  int32_t max_steps_in_flight = 8;
  double recall_max_time_share = 0.02;
  std::chrono::milliseconds default_lease{3600 * 1000};
  std::chrono::milliseconds max_lease{7 * 24 * 3600 * 1000};
};

/// A number of bytes: 1048576, 512KiB, 4GiB. InvalidArgument names `field`.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text, absl::string_view field);

/// A config file as it is written. NotFound, or InvalidArgument with line and column.
absl::StatusOr<config::DaemonConfig> ReadConfigFile(const std::string& path);

/// Checks a config and fills what it leaves out. InvalidArgument names the field.
absl::StatusOr<Config> ResolveConfig(const config::DaemonConfig& written);

}  // namespace longshore
