#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <absl/time/time.h>

#include "longshore/client/client.h"
#include "longshore/client/model_shape.h"
#include "longshore/v1/policy.pb.h"

namespace longshore::client {

/// What a session is on this side. Shared with the steps of it that are on their way.
struct SessionState {
  std::shared_ptr<Connection> connection;
  uint64_t id = 0;
  ModelShape model;
  v1::AttentionPolicy policy;
  Limits limits;
  absl::Duration lease;
  std::vector<int64_t> tokens;  ///< [num_layers] steps on their way included
};

}  // namespace longshore::client
