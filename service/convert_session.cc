#include "service/convert_session.h"

#include "engine/core/error.h"
#include "service/convert_model.h"
#include "service/convert_policy.h"

namespace longshore {
namespace {

constexpr size_t kMaxNameBytes = 64;

}  // namespace

absl::StatusOr<SessionSpec> SpecFromWire(const v1::OpenSessionRequest& request) {
  SessionSpec spec;
  if (!request.has_model()) {
    return InvalidField("model", "is missing");
  }
  if (!request.has_policy()) {
    return InvalidField("policy", "is missing: set policy.preset or policy.policy");
  }
  if (request.name().size() > kMaxNameBytes) {
    return InvalidField("name", "has ", request.name().size(), " bytes, the limit is ",
                        kMaxNameBytes);
  }
  ASSIGN_OR_RETURN(spec.model, ModelFromWire(request.model(), "model"));
  ASSIGN_OR_RETURN(spec.policy, PolicyFromWire(request.policy(), "policy"));
  spec.name = request.name();
  spec.max_tokens = request.max_tokens();
  spec.overcommit = request.overcommit();
  return spec;
}

}  // namespace longshore
