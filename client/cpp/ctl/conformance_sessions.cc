// Sessions: open, describe, list, truncate, close, and whose they are.

#include <algorithm>
#include <string>

#include <absl/time/clock.h>

#include "client/cpp/ctl/conformance.h"
#include "client/cpp/src/random_id.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);  // for a lease of a second to end

bool Lists(const std::vector<v1::SessionInfo>& sessions, uint64_t session_id) {
  return std::any_of(sessions.begin(), sessions.end(), [&](const v1::SessionInfo& session) {
    return session.session_id() == session_id;
  });
}

absl::Status OpensDescribesLists(Wire& wire) {
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(OpenRequest("standard")));
  const uint64_t session = opened.session_id();
  if (opened.instance_id() != wire.info().instance_id) {
    return Fail("opened by instance ", opened.instance_id(), ", and GetServerInfo says ",
                wire.info().instance_id);
  }
  if (opened.policy().decode().rest().stages_size() == 0) {
    return Fail("the policy that comes back for a preset is not in full");
  }
  ASSIGN_OR_RETURN(const v1::SessionInfo info, wire.Describe(session));
  if (info.max_tokens() != kMaxTokens || info.model().num_heads() != kHeads ||
      info.name() != "longshorectl conformance" || info.page_bytes_used() != 0 ||
      info.page_bytes_reserved() <= 0) {
    return Fail("described with max_tokens ", info.max_tokens(), ", num_heads ",
                info.model().num_heads(), ", name \"", info.name(), "\", page_bytes_used ",
                info.page_bytes_used(), ", page_bytes_reserved ", info.page_bytes_reserved());
  }
  RETURN_IF_ERROR(ExpectTokens(wire, session, {0, 0}));
  ASSIGN_OR_RETURN(const std::vector<v1::SessionInfo> all, wire.List());
  return Lists(all, session) ? absl::OkStatus() : Fail("ListSessions leaves the session out");
}

absl::Status CloseForgets(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  RETURN_IF_ERROR(wire.Close(session));
  const auto gone = [](const absl::Status& status) {
    return ExpectError(status, absl::StatusCode::kNotFound, "SESSION_NOT_FOUND");
  };
  RETURN_IF_ERROR(gone(wire.Describe(session).status()));
  RETURN_IF_ERROR(gone(wire.Truncate(session, 0).status()));
  RETURN_IF_ERROR(gone(wire.Close(session)));
  const StepData data(1, 1);
  RETURN_IF_ERROR(gone(wire.Call(MakeStep<v1::AppendKVRequest>(session, 0, data)).status()));
  RETURN_IF_ERROR(gone(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, data)).status()));
  RETURN_IF_ERROR(gone(wire.Call(MakeStep<v1::DecodeStepRequest>(session, 0, data)).status()));
  ASSIGN_OR_RETURN(const std::vector<v1::SessionInfo> all, wire.List());
  return Lists(all, session) ? Fail("ListSessions has it still") : absl::OkStatus();
}

absl::Status UnknownSessionIsNotFound(Wire& wire) {
  const absl::Status status = wire.Describe(client::RandomId()).status();
  const client::ErrorDetails details = client::DetailsOf(status);
  if (details.reason != "INSTANCE_CHANGED") {  // a random id may look like one of this instance
    return ExpectError(status, absl::StatusCode::kNotFound, "SESSION_NOT_FOUND");
  }
  const auto instance = details.metadata.find("instance_id");
  return instance != details.metadata.end() && instance->second == wire.info().instance_id
             ? ExpectError(status, absl::StatusCode::kNotFound, "INSTANCE_CHANGED")
             : Fail("INSTANCE_CHANGED does not tell the daemon's instance_id");
}

absl::Status ReservesAndUses(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  ASSIGN_OR_RETURN(const v1::SessionInfo before, wire.Describe(session));
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::AppendKVRequest>(session, 0, StepData(65, 2))).status());
  ASSIGN_OR_RETURN(const v1::SessionInfo after, wire.Describe(session));
  const int64_t promised = before.page_bytes_reserved();
  if (after.page_bytes_used() <= 0 ||
      after.page_bytes_used() + after.page_bytes_reserved() != promised) {
    return Fail("promised ", promised, " bytes; after an append ", after.page_bytes_used(),
                " are used and ", after.page_bytes_reserved(), " reserved");
  }
  return absl::OkStatus();
}

absl::Status TruncateGoesBack(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  const StepData first(100, 3);
  const StepData second(9, 4);
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, first)).status());
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::AppendKVRequest>(session, 0, second, 1)).status());
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse once,
                   wire.Call(MakeStep<v1::DecodeStepRequest>(session, 100, second)));
  ASSIGN_OR_RETURN(const std::vector<int64_t> kept, wire.Truncate(session, 100));
  if (kept != std::vector<int64_t>{100, 9}) {
    return Fail("truncating to 100 left ", kept[0], " and ", kept[1], " tokens, not 100 and 9");
  }
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse again,
                   wire.Call(MakeStep<v1::DecodeStepRequest>(session, 100, second)));
  if (once.out().inline_data() != again.out().inline_data()) {
    return Fail("the same step after a truncate gives other bits");
  }
  return ExpectError(wire.Truncate(session, 500).status(), absl::StatusCode::kOutOfRange,
                     "TRUNCATE_PAST_END");
}

absl::Status OpenIdOpensOnce(Wire& wire) {
  v1::OpenSessionRequest request = OpenRequest("dense");
  request.set_open_id(client::RandomId());
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse first, wire.Open(request));
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse second, wire.Open(request));
  if (first.session_id() != second.session_id()) {
    return Fail("the same request opened ", first.session_id(), " and ", second.session_id());
  }
  request.set_open_id(client::RandomId());
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse other, wire.Open(request));
  return other.session_id() != first.session_id()
             ? absl::OkStatus()
             : Fail("another open_id answered with the same session");
}

absl::Status LeaseEnds(Wire& wire) {
  v1::OpenSessionRequest request = OpenRequest("dense");
  request.set_lease_seconds(1.0);
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(request));
  if (opened.lease_seconds() != 1.0) {
    return Fail("asked for a lease of 1 s, granted ", opened.lease_seconds());
  }
  // ListSessions names no session, so it renews nothing.
  for (const absl::Time start = absl::Now(); absl::Now() - start < kPatience;) {
    ASSIGN_OR_RETURN(const std::vector<v1::SessionInfo> all, wire.List());
    if (!Lists(all, opened.session_id())) {
      return ExpectError(wire.Describe(opened.session_id()).status(), absl::StatusCode::kNotFound,
                         "SESSION_EXPIRED");
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  return Fail("still listed ", absl::FormatDuration(kPatience), " after a lease of 1 s began");
}

absl::Status DefaultLeaseIsTheLimits(Wire& wire) {
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(OpenRequest("dense")));
  const double told = absl::ToDoubleSeconds(wire.info().limits.default_lease);
  return opened.lease_seconds() == told
             ? absl::OkStatus()
             : Fail("granted a lease of ", opened.lease_seconds(), " s, and Limits say ", told);
}

}  // namespace

std::span<const ConformanceCase> SessionCases() {
  static constexpr ConformanceCase kCases[] = {
      {"open, describe and list agree", OpensDescribesLists},
      {"close forgets; every call answers SESSION_NOT_FOUND", CloseForgets},
      {"an id that this instance gave nobody is not found", UnknownSessionIsNotFound},
      {"pages used are taken from those reserved", ReservesAndUses},
      {"truncate goes back, and the same step gives the same bits", TruncateGoesBack},
      {"the same open_id opens one session", OpenIdOpensOnce},
      {"the default lease is the one of Limits", DefaultLeaseIsTheLimits},
      {"a lease that nobody renews ends", LeaseEnds},
  };
  return kCases;
}

}  // namespace longshore::ctl
