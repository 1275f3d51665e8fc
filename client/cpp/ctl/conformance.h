#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "client/cpp/src/connection.h"
#include "longshore/client/client.h"
#include "longshore/v1/attention.grpc.pb.h"
#include "longshore/v1/session.grpc.pb.h"

// The wire contract as a table of cases that any target must pass. A case sends what the contract
// allows or forbids, message by message, and says what came instead of what must come.
namespace longshore::ctl {

/// The model of the cases: two layers of four heads in two groups, in f32.
inline constexpr int32_t kLayers = 2;
inline constexpr int32_t kHeads = 4;
inline constexpr int32_t kKvHeads = 2;
inline constexpr int32_t kHeadDim = 64;
inline constexpr int64_t kMaxTokens = 1024;

client::ModelShape ConformanceModel();

/// A case's way to the daemon: single calls, nothing is repeated. Not thread-safe.
class Wire {
 public:
  Wire(const std::string& target, client::ServerInfo info, client::CallOptions options);

  const client::ServerInfo& info() const { return info_; }
  client::Connection& connection() { return connection_; }

  /// Opens what is closed with CloseAll().
  absl::StatusOr<v1::OpenSessionResponse> Open(const v1::OpenSessionRequest& request);
  /// The model of the cases under a preset.
  absl::StatusOr<uint64_t> Open(const std::string& preset = "dense");
  absl::Status Close(uint64_t session_id);
  /// Closes every session that is still open. After each case.
  void CloseAll();
  absl::StatusOr<v1::SessionInfo> Describe(uint64_t session_id);
  absl::StatusOr<std::vector<v1::SessionInfo>> List();
  absl::StatusOr<std::vector<int64_t>> Truncate(uint64_t session_id, int64_t position);
  absl::StatusOr<v1::AppendKVResponse> Call(const v1::AppendKVRequest& request);
  absl::StatusOr<v1::PrefillResponse> Call(const v1::PrefillRequest& request);
  absl::StatusOr<v1::DecodeStepResponse> Call(const v1::DecodeStepRequest& request);

 private:
  client::ServerInfo info_;
  client::CallOptions options_;
  client::Connection connection_;
  std::vector<uint64_t> open_;
};

v1::OpenSessionRequest OpenRequest(const std::string& preset);

/// [rows, heads, kHeadDim] f32.
v1::Tensor ToTensor(std::span<const float> values, int64_t rows, int64_t heads);
/// Normal deviates, the same for the same seed.
std::vector<float> Gaussian(int64_t count, uint32_t seed);
/// The elements of a tensor of f32.
std::vector<float> FloatsOf(const v1::Tensor& tensor);

/// q, k and v of some rows; the same for the same seed.
struct StepData {
  StepData(int64_t num_rows, uint32_t seed)
      : rows(num_rows),
        q(Gaussian(num_rows * kHeads * kHeadDim, 3 * seed)),
        k(Gaussian(num_rows * kKvHeads * kHeadDim, 3 * seed + 1)),
        v(Gaussian(num_rows * kKvHeads * kHeadDim, 3 * seed + 2)) {}
  int64_t rows;
  std::vector<float> q;  ///< [rows, kHeads, kHeadDim]
  std::vector<float> k;  ///< [rows, kKvHeads, kHeadDim]
  std::vector<float> v;  ///< as k
};

/// A step of `data` at `position`, with a random append_id.
template <typename Request>
Request MakeStep(uint64_t session_id, int64_t position, const StepData& data, int32_t layer = 0);
template <>
v1::AppendKVRequest MakeStep(uint64_t session_id,
                             int64_t position,
                             const StepData& data,
                             int32_t layer);
template <>
v1::PrefillRequest MakeStep(uint64_t session_id,
                            int64_t position,
                            const StepData& data,
                            int32_t layer);
template <>
v1::DecodeStepRequest MakeStep(uint64_t session_id,
                               int64_t position,
                               const StepData& data,
                               int32_t layer);

/// A failure: what must be, and what was.
template <typename... Parts>
absl::Status Fail(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}
/// Not a failure: the case does not apply to this daemon.
absl::Status Skip(const std::string& why);
bool IsSkip(const absl::Status& status);

/// OK if `status` is of this code and reason and, unless it is empty, names this field.
absl::Status ExpectError(const absl::Status& status,
                         absl::StatusCode code,
                         const std::string& reason,
                         const std::string& field = "");
/// OK if the layers hold these many tokens.
absl::Status ExpectTokens(Wire& wire, uint64_t session_id, const std::vector<int64_t>& tokens);

struct ConformanceCase {
  const char* name;
  absl::Status (*run)(Wire& wire);
};

// The cases, by question; conformance.cc puts them together.
std::span<const ConformanceCase> SessionCases();
std::span<const ConformanceCase> StepCases();
std::span<const ConformanceCase> RefusalCases();
std::span<const ConformanceCase> LimitCases();
std::span<const ConformanceCase> StreamCases();
std::span<const ConformanceCase> ValueCases();

}  // namespace longshore::ctl
