#pragma once

#include <chrono>
#include <optional>

#include <grpcpp/grpcpp.h>

#include "longshore/v1/region.grpc.pb.h"
#include "longshore/v1/server.grpc.pb.h"
#include "service/config.h"
#include "service/metrics.h"
#include "service/mutex.h"

namespace longshore {

/// What a daemon says of itself once its engine is there.
v1::GetServerInfoResponse MakeServerInfo(const Config& config,
                                         const std::string& instance_id,
                                         const DeviceInfo& device);

/// Services with handlers that take bytes; see ParseMessage().
using ServerBase = v1::Server::WithRawCallbackMethod_GetServerInfo<
    v1::Server::WithRawCallbackMethod_GetMetrics<v1::Server::Service>>;
using RegionsBase = v1::Regions::WithRawCallbackMethod_OpenRegion<
    v1::Regions::WithRawCallbackMethod_CloseRegion<v1::Regions::Service>>;

/// The wire's Server service. Answers without the engine's thread, so that a long prefill does not
/// hold it up. Thread-safe.
class ServerService final : public ServerBase {
 public:
  explicit ServerService(Metrics* metrics) : metrics_(metrics) {}

  /// Before this, GetServerInfo answers UNAVAILABLE with reason LOADING.
  void SetInfo(v1::GetServerInfoResponse info);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Metrics* metrics_;
  Mutex mutex_;
  std::optional<v1::GetServerInfoResponse> info_ ABSL_GUARDED_BY(mutex_);
};

/// The wire's Regions service, until a transport opens regions: UNIMPLEMENTED.
class RegionService final : public RegionsBase {
 public:
  explicit RegionService(Metrics* metrics) : metrics_(metrics) {}

  grpc::ServerUnaryReactor* OpenRegion(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CloseRegion(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  Metrics* metrics_;
};

}  // namespace longshore
