#include "service/server_service.h"

#include <utility>

#include "engine/policy.h"
#include "service/errors.h"
#include "service/unary_call.h"
#include "service/version.h"

namespace longshore {

v1::GetServerInfoResponse MakeServerInfo(const Config& config,
                                         const std::string& instance_id,
                                         const DeviceInfo& device) {
  v1::GetServerInfoResponse info;
  info.set_version(kVersion);
  info.set_instance_id(instance_id);

  v1::BackendInfo* backend = info.add_backends();
  backend->set_name(device.backend);
  backend->set_device(device.device);
  backend->set_threads(device.threads);
  backend->set_device_bytes(device.device_bytes);

  v1::Limits* limits = info.mutable_limits();
  limits->set_max_message_bytes(config.max_message_bytes);
  limits->set_max_rows_per_prefill(config.engine.max_rows_per_prefill);
  limits->set_max_rows_per_decode_item(config.engine.max_rows_per_decode_item);
  limits->set_max_items_per_call(config.engine.max_items_per_call);
  limits->set_max_sessions(config.engine.max_sessions);
  limits->set_max_tokens_per_session(config.engine.max_tokens_per_session);
  limits->set_max_queued_calls(config.max_queued_calls);
  limits->set_pool_bytes(config.engine.pool_bytes);
  limits->set_max_steps_in_flight(config.max_steps_in_flight);
  limits->set_max_queued_bytes(config.max_queued_bytes);
  limits->set_max_table_bytes(config.engine.max_table_bytes);
  limits->set_max_score_bytes(config.engine.max_score_bytes);
  using Seconds = std::chrono::duration<double>;
  limits->set_default_lease_seconds(Seconds(config.default_lease).count());
  limits->set_max_lease_seconds(Seconds(config.max_lease).count());

  for (const std::string& name : PresetNames()) {
    info.add_presets(name);
  }
  return info;
}

void ServerService::SetInfo(v1::GetServerInfoResponse info) {
  const MutexLock lock(&mutex_);
  info_ = std::move(info);
}

// These calls are answered before their handlers return.

grpc::ServerUnaryReactor* ServerService::GetServerInfo(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  UnaryCall<v1::GetServerInfoRequest, v1::GetServerInfoResponse> call(
      Method::kGetServerInfo, {context, request, response}, metrics_);
  if (!call.refused()) {
    const MutexLock lock(&mutex_);
    if (info_.has_value()) {
      *call.response() = *info_;
      const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - start_;
      call.response()->set_uptime_seconds(uptime.count());
    }
    call.Finish(info_.has_value() ? absl::OkStatus() : LoadingError());
  }
  return call.reactor();
}

grpc::ServerUnaryReactor* ServerService::GetMetrics(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  UnaryCall<v1::GetMetricsRequest, v1::GetMetricsResponse> call(
      Method::kGetMetrics, {context, request, response}, metrics_);
  if (!call.refused()) {
    call.response()->set_text(metrics_->Text());
    call.Finish(absl::OkStatus());
  }
  return call.reactor();
}

grpc::ServerUnaryReactor* RegionService::OpenRegion(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  UnaryCall<v1::OpenRegionRequest, v1::OpenRegionResponse> call(
      Method::kOpenRegion, {context, request, response}, metrics_);
  if (!call.refused()) {
    call.Finish(NotImplemented("kind", "is not served by this build: send tensors inline"));
  }
  return call.reactor();
}

grpc::ServerUnaryReactor* RegionService::CloseRegion(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  UnaryCall<v1::CloseRegionRequest, v1::CloseRegionResponse> call(
      Method::kCloseRegion, {context, request, response}, metrics_);
  if (!call.refused()) {
    call.Finish(NotImplemented("region_id", "names no region: this build opens none"));
  }
  return call.reactor();
}

}  // namespace longshore
