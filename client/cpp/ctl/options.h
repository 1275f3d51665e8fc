#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/cpp/ctl/command_line.h"
#include "longshore/client/client.h"

namespace longshore::ctl {

/// Which daemon, and how long to wait for it.
struct DaemonOptions {
  std::string target = client::DefaultTarget();
  double timeout_seconds = 30.0;

  void AddTo(CommandLine& command);
  /// A client that repeats nothing that waiting alone does not mend.
  absl::StatusOr<client::Client> Connect() const;
  client::CallOptions call() const { return {.timeout = absl::Seconds(timeout_seconds)}; }
};

/// A model by its numbers; of rotary tables only their number and length matter.
struct ModelOptions {
  int32_t layers = 1;
  int32_t heads = 8;
  int32_t kv_heads = 0;  ///< 0: as many as heads
  int32_t head_dim = 128;
  std::string dtype = "f32";
  std::optional<int64_t> trained_tokens;
  std::optional<int64_t> sliding_window;
  std::string sliding_layers;

  void AddTo(CommandLine& command);
  /// INVALID_ARGUMENT where the layers of --sliding-layers are none.
  absl::StatusOr<client::ModelShape> Shape() const;
};

/// f32, bf16 or f16.
client::DType DTypeOf(const std::string& name);

/// A preset's name, or a file with an AttentionPolicy in protobuf text format.
absl::StatusOr<client::Policy> PolicyOf(const std::string& name_or_file,
                                        std::optional<int64_t> dense_below_tokens);

/// The same options, whichever command has them.
inline constexpr char kJsonHelp[] = "print JSON, for programs";
inline constexpr char kPolicyHelp[] = "a preset's name, or a file as `policy show` prints one";

}  // namespace longshore::ctl
