#include "longshore/client/session.h"

#include <utility>

#include <google/protobuf/text_format.h>

#include "client/cpp/src/connection.h"
#include "client/cpp/src/convert.h"
#include "client/cpp/src/session_state.h"
#include "client/cpp/src/status.h"
#include "client/cpp/src/step.h"

namespace longshore::client {
namespace {

constexpr absl::Duration kTimeToCloseQuietly = absl::Seconds(5);
// More than everything in a step's message besides its tensors.
constexpr int64_t kMessageOverheadBytes = 64 * 1024;

absl::Status ClosedError() { return absl::FailedPreconditionError("the session is closed"); }

// One unary call of a step, which is replayed if its connection is lost meanwhile.
template <typename Request, typename Response>
absl::StatusOr<Response> Send(Step step,
                              grpc::Status (v1::Attention::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&,
                                                                          Response*),
                              const CallOptions& call) {
  Connection& connection = *step.session->connection;
  Request request;
  step.FillTo(&request);
  step.Claim();
  Response response;
  const absl::Status status =
      connection.Call(connection.attention(), method, request, &response, Repeat::kReplay, call);
  if (!status.ok()) {
    step.GiveBack();
    return status;
  }
  return response;
}

// What may be sent at once: by rows and by bytes.
int64_t MaxRows(const Step& step) {
  const Limits& limits = step.session->limits;
  const int64_t bytes = step.k.bytes() + step.v.bytes() + (step.attends ? step.q.bytes() : 0);
  const int64_t row_bytes = std::max<int64_t>(1, bytes / step.rows);
  const int64_t fit = (limits.max_message_bytes - kMessageOverheadBytes) / row_bytes;
  return std::max<int64_t>(1, std::min(limits.max_rows_per_prefill, fit));
}

// Calls send(piece) for each piece of a step, until one fails.
template <typename SendPiece>
absl::Status ForEachPiece(const Step& step, SendPiece send) {
  const int64_t max_rows = MaxRows(step);
  const int64_t block = RowsToCutAt(step.session->policy, max_rows);
  uint64_t ordinal = 0;
  for (int64_t begin = 0; begin < step.rows;) {
    const int64_t rows = NextPiece(step.position + begin, step.rows - begin, max_rows, block);
    if (absl::Status status = send(step.Part(begin, rows, ordinal++)); !status.ok()) {
      return status;
    }
    begin += rows;
  }
  return absl::OkStatus();
}

// The pieces of one result, in order, as one.
class Joined {
 public:
  void Add(Attended piece) {
    if (bytes_.empty()) {
      bytes_ = piece.out.bytes();
      shape_ = piece.out.shape();
      dtype_ = piece.out.dtype();
    } else {
      bytes_ += piece.out.bytes();
      shape_[0] += piece.out.shape()[0];
    }
    lse_.insert(lse_.end(), piece.log_sum_exp.begin(), piece.log_sum_exp.end());
  }
  Attended Take() {
    return {Tensor(dtype_, std::move(shape_), std::move(bytes_)), std::move(lse_)};
  }

 private:
  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  std::string bytes_;
  std::vector<float> lse_;
};

}  // namespace

Session::Session(std::shared_ptr<SessionState> state) : state_(std::move(state)) {}

Session& Session::operator=(Session&& other) noexcept {
  if (this != &other) {
    Session old(std::move(state_));  // closes what was held here
    state_ = std::move(other.state_);
  }
  return *this;
}

Session::~Session() { Close({.timeout = kTimeToCloseQuietly}).IgnoreError(); }

uint64_t Session::id() const { return state_ == nullptr ? 0 : state_->id; }

const ModelShape& Session::model() const {
  static const ModelShape none{.num_layers = 0};
  return state_ == nullptr ? none : state_->model;
}

std::string Session::PolicyText() const {
  std::string text;
  if (state_ != nullptr) {
    google::protobuf::TextFormat::PrintToString(state_->policy, &text);
  }
  return text;
}

absl::Duration Session::lease() const {
  return state_ == nullptr ? absl::ZeroDuration() : state_->lease;
}

int64_t Session::tokens(int32_t layer) const {
  const bool there =
      state_ != nullptr && layer >= 0 && static_cast<size_t>(layer) < state_->tokens.size();
  return there ? state_->tokens[static_cast<size_t>(layer)] : 0;
}

absl::Status Session::Append(int32_t layer, Values k, Values v, const StepOptions& options) {
  const absl::StatusOr<Step> step =
      Step::Make(state_.get(), layer, false, {.k = k, .v = v}, options);
  if (!step.ok()) {
    return step.status();
  }
  return ForEachPiece(*step, [&](const Step& piece) {
    return Send(piece, &v1::Attention::Stub::AppendKV, options.call).status();
  });
}

absl::StatusOr<Attended> Session::Prefill(int32_t layer,
                                          Values q,
                                          Values k,
                                          Values v,
                                          const StepOptions& options) {
  const absl::StatusOr<Step> step =
      Step::Make(state_.get(), layer, true, {.q = q, .k = k, .v = v}, options);
  if (!step.ok()) {
    return step.status();
  }
  Joined joined;
  const absl::Status status = ForEachPiece(*step, [&](const Step& piece) {
    absl::StatusOr<v1::PrefillResponse> response =
        Send(piece, &v1::Attention::Stub::Prefill, options.call);
    if (response.ok()) {
      joined.Add(TakeAttended(&*response));
    }
    return response.status();
  });
  if (!status.ok()) {
    return status;
  }
  return joined.Take();
}

absl::StatusOr<Attended> Session::Decode(int32_t layer,
                                         Values q,
                                         Values k,
                                         Values v,
                                         const StepOptions& options) {
  const absl::StatusOr<Step> step =
      Step::Make(state_.get(), layer, true, {.q = q, .k = k, .v = v}, options);
  if (!step.ok()) {
    return step.status();
  }
  absl::StatusOr<v1::DecodeStepResponse> response =
      Send(*step, &v1::Attention::Stub::DecodeStep, options.call);
  if (!response.ok()) {
    return response.status();
  }
  return TakeAttended(&*response);
}

absl::Status Session::Truncate(int64_t position, const CallOptions& call) {
  if (state_ == nullptr) {
    return ClosedError();
  }
  v1::TruncateSessionRequest request;
  request.set_session_id(state_->id);
  request.set_position(position);
  v1::TruncateSessionResponse response;
  Connection& connection = *state_->connection;
  absl::Status status = connection.Call(connection.sessions(), &v1::Sessions::Stub::TruncateSession,
                                        request, &response, Repeat::kReplay, call);
  if (status.ok()) {
    state_->tokens.assign(response.layer_tokens().begin(), response.layer_tokens().end());
  }
  return status;
}

absl::StatusOr<SessionInfo> Session::Describe(const CallOptions& call) const {
  if (state_ == nullptr) {
    return ClosedError();
  }
  v1::DescribeSessionRequest request;
  request.set_session_id(state_->id);
  v1::DescribeSessionResponse response;
  Connection& connection = *state_->connection;
  const absl::Status status =
      connection.Call(connection.sessions(), &v1::Sessions::Stub::DescribeSession, request,
                      &response, Repeat::kReplay, call);
  if (!status.ok()) {
    return status;
  }
  return FromWire(response.session());
}

absl::Status Session::Sync(const CallOptions& call) {
  const absl::StatusOr<SessionInfo> info = Describe(call);
  if (info.ok()) {
    state_->tokens = info->layer_tokens;
  }
  return info.status();
}

absl::Status Session::Close(const CallOptions& call) {
  const std::shared_ptr<SessionState> state = std::move(state_);
  state_ = nullptr;
  if (state == nullptr) {
    return absl::OkStatus();
  }
  v1::CloseSessionRequest request;
  request.set_session_id(state->id);
  v1::CloseSessionResponse response;
  absl::Status status =
      state->connection->Call(state->connection->sessions(), &v1::Sessions::Stub::CloseSession,
                              request, &response, Repeat::kReplay, call);
  return status.code() == absl::StatusCode::kNotFound ? absl::OkStatus() : status;
}

uint64_t Session::Release() {
  const uint64_t session_id = id();
  state_ = nullptr;
  return session_id;
}

}  // namespace longshore::client
