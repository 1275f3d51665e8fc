#pragma once

#include <span>
#include <string_view>

#include <google/protobuf/message.h>

namespace longshore::fuzz {

/// One kind of bytes that the daemon takes from somebody else.
struct Target {
  const char* name;
  /// The message that the bytes should be; null for text.
  const google::protobuf::Message* prototype;
  /// Feeds the bytes through the daemon's own path, and aborts where the contract is broken.
  void (*run)(std::string_view bytes);
};

/// All of them, in the order of proto/longshore/v1: every request message, and the config file.
std::span<const Target> Targets();
/// Null for a name that is none.
const Target* FindTarget(std::string_view name);

// Of step_targets.cc.
void RunAppendKv(std::string_view bytes);
void RunPrefill(std::string_view bytes);
void RunDecodeStep(std::string_view bytes);
void RunStreamSteps(std::string_view bytes);
// Of session_targets.cc.
void RunOpenSession(std::string_view bytes);
void RunDescribeSession(std::string_view bytes);
void RunListSessions(std::string_view bytes);
void RunTruncateSession(std::string_view bytes);
void RunCloseSession(std::string_view bytes);
// Of server_targets.cc.
void RunGetServerInfo(std::string_view bytes);
void RunGetMetrics(std::string_view bytes);
void RunOpenRegion(std::string_view bytes);
void RunCloseRegion(std::string_view bytes);
void RunConfigFile(std::string_view bytes);

}  // namespace longshore::fuzz
