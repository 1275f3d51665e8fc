#pragma once

#include <cstddef>
#include <cstdint>

namespace longshore {

/// Every method that is counted. A step counts under its own name, whichever way it came;
/// kStreamSteps counts streams, not steps.
enum class Method : uint8_t {
  kOpenSession,
  kDescribeSession,
  kListSessions,
  kTruncateSession,
  kCloseSession,
  kAppendKv,
  kPrefill,
  kDecodeStep,
  kStreamSteps,
  kGetServerInfo,
  kOpenRegion,
  kCloseRegion,
  kGetMetrics,
};
inline constexpr size_t kNumMethods = 13;

const char* NameOf(Method method);

}  // namespace longshore
