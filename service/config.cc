#include "service/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "engine/core/error.h"
#include "engine/core/math.h"

namespace longshore {
namespace {

constexpr char kDefaultMetricsListen[] = "127.0.0.1:9464";
// Protobuf's limit is 2 GiB, and an answer can be a little larger than its request.
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;
constexpr int32_t kMaxThreads = 1024;
constexpr double kMaxDrainSeconds = 3600;
constexpr int32_t kRecallSampleEvery = 256;
constexpr double kMaxLeaseSeconds = 366.0 * 24 * 3600;

struct Unit {
  absl::string_view name;
  int64_t bytes;
};
constexpr std::array<Unit, 6> kUnits = {{{"", 1},
                                         {"B", 1},
                                         {"KiB", int64_t{1} << 10},
                                         {"MiB", int64_t{1} << 20},
                                         {"GiB", int64_t{1} << 30},
                                         {"TiB", int64_t{1} << 40}}};

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line,
                google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text_.empty()) {
      text_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status ReadAddress(const std::string& text,
                         bool allow_remote,
                         absl::string_view field,
                         std::vector<Address>* addresses) {
  absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) {
    return InvalidField(field, "is wrong: ", address.status().message());
  }
  if (!allow_remote && !IsLocal(*address)) {
    return InvalidField(field, address->ToString(),
                        " can be reached from other hosts, and there is no authentication: "
                        "use a loopback address or set allow_remote");
  }
  addresses->push_back(*std::move(address));
  return absl::OkStatus();
}

absl::Status ReadAddresses(const config::DaemonConfig& written, Config* config) {
  for (const std::string& text : written.listen()) {
    RETURN_IF_ERROR(ReadAddress(text, written.allow_remote(), "listen", &config->listen));
  }
  if (config->listen.empty()) {
    config->listen.push_back(DefaultAddress());
  }
  const std::string metrics =
      written.has_metrics_listen() ? written.metrics_listen() : kDefaultMetricsListen;
  if (metrics.empty()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(
      ReadAddress(metrics, written.allow_remote(), "metrics_listen", &config->metrics_listen));
  if (config->metrics_listen.front().is_unix()) {
    return InvalidField("metrics_listen", metrics, " is not host:port");
  }
  return absl::OkStatus();
}

absl::Status ReadBytes(const std::string& text, absl::string_view field, int64_t* bytes) {
  if (text.empty()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(*bytes, ParseBytes(text, field));
  return absl::OkStatus();
}

absl::Status ReadPoolBytes(const std::string& text, int64_t* pool_bytes) {
  RETURN_IF_ERROR(ReadBytes(text, "pool_bytes", pool_bytes));
  if (*pool_bytes < PagePool::kDefaultSlabBytes) {
    return InvalidField("pool_bytes", *pool_bytes, " is less than ", PagePool::kDefaultSlabBytes,
                        ", one slab of it");
  }
  if (*pool_bytes > PagePool::kMaxBytes) {
    return InvalidField("pool_bytes", *pool_bytes, " is more than ", PagePool::kMaxBytes,
                        ", the most that page ids can count");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadLimit(T value,
                       absl::string_view field,
                       T* limit,
                       T largest = std::numeric_limits<T>::max()) {
  if (value < 0) {
    return InvalidField(field, value, " is negative");
  }
  if (value > largest) {
    return InvalidField(field, value, " is more than ", largest);
  }
  *limit = value == 0 ? *limit : value;
  return absl::OkStatus();
}

absl::Status ReadByteLimits(const config::Limits& written, Config* config) {
  EngineOptions& engine = config->engine;
  RETURN_IF_ERROR(ReadBytes(written.max_message_bytes(), "limits.max_message_bytes",
                            &config->max_message_bytes));
  if (config->max_message_bytes > kMaxMessageBytes) {
    return InvalidField("limits.max_message_bytes", config->max_message_bytes, " is more than ",
                        kMaxMessageBytes);
  }
  RETURN_IF_ERROR(
      ReadBytes(written.max_queued_bytes(), "limits.max_queued_bytes", &config->max_queued_bytes));
  RETURN_IF_ERROR(
      ReadBytes(written.max_table_bytes(), "limits.max_table_bytes", &engine.max_table_bytes));
  return ReadBytes(written.max_score_bytes(), "limits.max_score_bytes", &engine.max_score_bytes);
}

absl::Status ReadCountLimits(const config::Limits& written, Config* config) {
  EngineOptions& engine = config->engine;
  RETURN_IF_ERROR(ReadLimit(written.max_sessions(), "limits.max_sessions", &engine.max_sessions));
  RETURN_IF_ERROR(ReadLimit(written.max_tokens_per_session(), "limits.max_tokens_per_session",
                            &engine.max_tokens_per_session, EngineOptions::kMaxTokens));
  RETURN_IF_ERROR(ReadLimit(written.max_items_per_call(), "limits.max_items_per_call",
                            &engine.max_items_per_call));
  RETURN_IF_ERROR(ReadLimit(written.max_rows_per_prefill(), "limits.max_rows_per_prefill",
                            &engine.max_rows_per_prefill, EngineOptions::kMaxTokens));
  RETURN_IF_ERROR(ReadLimit(written.max_rows_per_decode_item(), "limits.max_rows_per_decode_item",
                            &engine.max_rows_per_decode_item));
  RETURN_IF_ERROR(
      ReadLimit(written.max_queued_calls(), "limits.max_queued_calls", &config->max_queued_calls));
  return ReadLimit(written.max_steps_in_flight(), "limits.max_steps_in_flight",
                   &config->max_steps_in_flight);
}

absl::Status ReadSeconds(double seconds,
                         double largest,
                         absl::string_view field,
                         std::chrono::milliseconds* duration) {
  if (!(seconds >= 0 && seconds <= largest)) {
    return InvalidField(field, seconds, " is not in 0..", largest);
  }
  // Upwards: what is not 0 does not become it.
  *duration = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
  return absl::OkStatus();
}

absl::Status ReadLeases(const config::Limits& written, Config* config) {
  if (written.max_lease_seconds() != 0) {
    RETURN_IF_ERROR(ReadSeconds(written.max_lease_seconds(), kMaxLeaseSeconds,
                                "limits.max_lease_seconds", &config->max_lease));
    config->default_lease = std::min(config->default_lease, config->max_lease);
  }
  if (written.default_lease_seconds() != 0) {
    RETURN_IF_ERROR(ReadSeconds(written.default_lease_seconds(),
                                std::chrono::duration<double>(config->max_lease).count(),
                                "limits.default_lease_seconds", &config->default_lease));
  }
  return absl::OkStatus();
}

absl::Status ReadRecall(const config::Recall& written, Config* config) {
  const int32_t every = written.has_sample_every() ? written.sample_every() : kRecallSampleEvery;
  if (every < 0) {
    return InvalidField("recall.sample_every", every, " is negative");
  }
  config->engine.recall_sample_every = every;
  if (!written.has_max_time_share()) {
    return absl::OkStatus();
  }
  const double share = written.max_time_share();
  if (!(share > 0 && share <= 1)) {
    return InvalidField("recall.max_time_share", share, " is not above 0 and at most 1");
  }
  config->recall_max_time_share = share;
  return absl::OkStatus();
}

absl::Status ReadLogLevel(const std::string& name, Config* config) {
  if (name.empty()) {
    return absl::OkStatus();
  }
  config->log_level = spdlog::level::from_str(name);
  // from_str answers `off` for what it does not know.
  if (config->log_level == spdlog::level::off && name != "off") {
    return InvalidField("log_level", "\"", name,
                        "\" is not trace, debug, info, warning, error, critical or off");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text, absl::string_view field) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < trimmed.size() &&
         absl::ascii_isdigit(static_cast<unsigned char>(trimmed[digits]))) {
    ++digits;
  }
  const absl::string_view name = absl::StripLeadingAsciiWhitespace(trimmed.substr(digits));
  int64_t number = 0;
  for (const Unit& unit : kUnits) {
    if (unit.name != name || !absl::SimpleAtoi(trimmed.substr(0, digits), &number)) {
      continue;
    }
    const std::optional<int64_t> bytes = CheckedMul(number, unit.bytes);
    if (bytes.has_value() && *bytes > 0) {
      return *bytes;
    }
  }
  return InvalidField(field, "\"", text, "\" is not a number of bytes such as 1048576 or 4GiB");
}

absl::StatusOr<config::DaemonConfig> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  file.peek();  // a directory opens, and does not read
  if (file.fail()) {
    return absl::NotFoundError(absl::StrCat("config file ", path, " cannot be read"));
  }
  std::ostringstream text;
  text << file.rdbuf();
  config::DaemonConfig config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text.str(), &config)) {
    return absl::InvalidArgumentError(absl::StrCat("config file ", path, ", ", error.text()));
  }
  return config;
}

absl::StatusOr<Config> ResolveConfig(const config::DaemonConfig& written) {
  Config config;
  RETURN_IF_ERROR(ReadAddresses(written, &config));
  if (!written.backend().empty()) {
    config.backend.name = written.backend();
  }
  if (written.threads() < 0 || written.threads() > kMaxThreads) {
    return InvalidField("threads", written.threads(), " is not in 0..", kMaxThreads);
  }
  config.backend.threads = written.threads();
  RETURN_IF_ERROR(ReadPoolBytes(written.pool_bytes(), &config.engine.pool_bytes));
  config.allow_overcommit_memory = written.allow_overcommit_memory();
  RETURN_IF_ERROR(ReadLogLevel(written.log_level(), &config));
  if (written.has_drain_seconds()) {
    RETURN_IF_ERROR(ReadSeconds(written.drain_seconds(), kMaxDrainSeconds, "drain_seconds",
                                &config.drain_limit));
  }
  RETURN_IF_ERROR(ReadByteLimits(written.limits(), &config));
  RETURN_IF_ERROR(ReadCountLimits(written.limits(), &config));
  RETURN_IF_ERROR(ReadLeases(written.limits(), &config));
  RETURN_IF_ERROR(ReadRecall(written.recall(), &config));
  return config;
}

}  // namespace longshore
