#include "client/cpp/src/connection.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <absl/strings/match.h>

#include "client/cpp/src/status.h"
#include "client/cpp/src/target.h"

namespace longshore::client {
namespace {

// How gRPC begins its message where nothing was sent because nobody listens.
constexpr char kNoConnection[] = "failed to connect";

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);  // the daemon says what it takes, and refuses with a reason
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

std::chrono::system_clock::time_point ToDeadline(absl::Time time) {
  // absl::ToChronoTime rounds what it cannot hold to the end of the clock, which gRPC understands.
  return absl::ToChronoTime(time);
}

Connection::Connection(std::string target, const RetryPolicy& retry)
    : target_(std::move(target)),
      retry_(retry) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(target_);
  attention_ = v1::Attention::NewStub(channel);
  sessions_ = v1::Sessions::NewStub(channel);
  server_ = v1::Server::NewStub(channel);
}

absl::Status Connection::ToStatus(const grpc::Status& status) const {
  if (status.ok()) {
    return absl::OkStatus();
  }
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    return StatusFromRpc(details);
  }
  const std::string& message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      absl::StartsWith(message, kNoConnection)) {
    const bool forbidden = absl::StrContains(message, "Permission denied");
    const std::string listen = target_ == DefaultTarget() ? "" : " --listen=" + target_;
    return MakeError(
        absl::StatusCode::kUnavailable,
        forbidden
            ? absl::StrCat("no permission to open ", target_, ": its owner and group may")
            : absl::StrCat("no daemon listens at ", target_, "; start one: longshored", listen),
        {.reason = kNotRunning, .field = {}, .metadata = {}, .retry_delay = std::nullopt});
  }
  return {static_cast<absl::StatusCode>(status.error_code()), absl::StrCat(target_, ": ", message)};
}

std::optional<absl::Duration> PauseBeforeRepeat(const absl::Status& status,
                                                Repeat repeat,
                                                const RetryPolicy& policy,
                                                int32_t attempts) {
  if (attempts >= policy.max_attempts) {
    return std::nullopt;
  }
  const ErrorDetails details = DetailsOf(status);
  bool repeats = false;
  if (status.code() == absl::StatusCode::kUnavailable) {
    const bool moment = repeat != Repeat::kReplay && details.retry_delay.has_value();
    repeats = details.reason.empty() || moment;
  } else if (status.code() == absl::StatusCode::kResourceExhausted) {
    repeats = policy.when_busy && repeat != Repeat::kRead && details.retry_delay.has_value();
  }
  if (!repeats) {
    return std::nullopt;
  }
  const absl::Duration doubled = policy.first_pause * std::pow(2.0, attempts - 1);
  return std::min(policy.max_pause, std::max(doubled, details.retry_delay.value_or(doubled)));
}

bool Connection::WaitToRepeat(const absl::Status& status,
                              Repeat repeat,
                              int32_t attempts,
                              absl::Time deadline) const {
  const std::optional<absl::Duration> pause = PauseBeforeRepeat(status, repeat, retry_, attempts);
  if (!pause.has_value() || absl::Now() + *pause >= deadline) {
    return false;
  }
  absl::SleepFor(*pause);
  return true;
}

}  // namespace longshore::client
