#include "tests/fuzz/target.h"

#include <algorithm>
#include <vector>

#include "longshore/v1/attention.pb.h"
#include "longshore/v1/region.pb.h"
#include "longshore/v1/server.pb.h"
#include "longshore/v1/session.pb.h"

namespace longshore::fuzz {

std::span<const Target> Targets() {
  static const std::vector<Target> targets = {
      {"append_kv", &v1::AppendKVRequest::default_instance(), RunAppendKv},
      {"prefill", &v1::PrefillRequest::default_instance(), RunPrefill},
      {"decode_step", &v1::DecodeStepRequest::default_instance(), RunDecodeStep},
      {"stream_steps", &v1::StreamStepsRequest::default_instance(), RunStreamSteps},
      {"open_session", &v1::OpenSessionRequest::default_instance(), RunOpenSession},
      {"describe_session", &v1::DescribeSessionRequest::default_instance(), RunDescribeSession},
      {"list_sessions", &v1::ListSessionsRequest::default_instance(), RunListSessions},
      {"truncate_session", &v1::TruncateSessionRequest::default_instance(), RunTruncateSession},
      {"close_session", &v1::CloseSessionRequest::default_instance(), RunCloseSession},
      {"get_server_info", &v1::GetServerInfoRequest::default_instance(), RunGetServerInfo},
      {"get_metrics", &v1::GetMetricsRequest::default_instance(), RunGetMetrics},
      {"open_region", &v1::OpenRegionRequest::default_instance(), RunOpenRegion},
      {"close_region", &v1::CloseRegionRequest::default_instance(), RunCloseRegion},
      {"config_file", nullptr, RunConfigFile},
  };
  return targets;
}

const Target* FindTarget(std::string_view name) {
  const std::span<const Target> targets = Targets();
  const auto found = std::find_if(targets.begin(), targets.end(),
                                  [&](const Target& target) { return name == target.name; });
  return found == targets.end() ? nullptr : &*found;
}

}  // namespace longshore::fuzz
