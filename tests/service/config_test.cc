#include "service/config.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace longshore {
namespace {

std::string WriteFile(const std::string& name, const std::string& text) {
  // ctest runs each case in a process of its own, several at a time.
  std::string path = absl::StrCat(::testing::TempDir(), getpid(), "_", name);
  std::ofstream(path) << text;
  return path;
}

absl::StatusOr<Config> Resolve(const std::string& text) {
  const absl::StatusOr<config::DaemonConfig> written =
      ReadConfigFile(WriteFile("longshore_config_test.textproto", text));
  return written.ok() ? ResolveConfig(*written) : written.status();
}

TEST(Config, BytesTakeBinaryUnits) {
  EXPECT_EQ(*ParseBytes("1048576", "f"), 1 << 20);
  EXPECT_EQ(*ParseBytes("512KiB", "f"), 512 << 10);
  EXPECT_EQ(*ParseBytes(" 4 GiB ", "f"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("2TiB", "f"), int64_t{2} << 40);
  for (const char* wrong : {"", "GiB", "4GB", "4G", "-1", "1.5GiB", "0", "99999999999999999999",
                            "9999999999999TiB", "4GiBx"}) {
    const absl::Status status = ParseBytes(wrong, "pool_bytes").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(status.message().substr(0, 11), "pool_bytes ") << status;
  }
}

TEST(Config, AnEmptyOneHasDefaults) {
  const absl::StatusOr<Config> config = Resolve("");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->listen.size(), 1U);
  EXPECT_TRUE(config->listen[0].is_unix());
  EXPECT_EQ(config->metrics_listen[0].ToString(), "127.0.0.1:9464");
  EXPECT_EQ(config->max_message_bytes, 64 << 20);
  EXPECT_EQ(config->drain_limit, std::chrono::milliseconds(5000));
  EXPECT_EQ(config->engine.pool_bytes, EngineOptions().pool_bytes);
  EXPECT_FALSE(config->allow_overcommit_memory);
  EXPECT_EQ(config->engine.recall_sample_every, 256);
  EXPECT_EQ(config->recall_max_time_share, 0.02);
}

TEST(Config, AFileSetsEverything) {
  const absl::StatusOr<Config> config = Resolve(R"(
      listen: "unix:/tmp/a.sock" listen: "[::1]:50051"
      backend: "cpu" threads: 3 pool_bytes: "1GiB"
      metrics_listen: "" log_level: "debug" drain_seconds: 0.5
      allow_overcommit_memory: true
      limits { max_sessions: 7 max_rows_per_prefill: 4096 max_message_bytes: "8MiB"
               max_tokens_per_session: 2147483584
               max_table_bytes: "3MiB" max_score_bytes: "5MiB" }
      recall { sample_every: 0 max_time_share: 0.5 })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen[0].ToString(), "unix:/tmp/a.sock");
  EXPECT_EQ(config->listen[1].ToString(), "[::1]:50051");
  EXPECT_EQ(config->backend.threads, 3);
  EXPECT_EQ(config->engine.pool_bytes, 1 << 30);
  EXPECT_TRUE(config->metrics_listen.empty());
  EXPECT_EQ(config->log_level, spdlog::level::debug);
  EXPECT_EQ(config->drain_limit, std::chrono::milliseconds(500));
  EXPECT_EQ(config->engine.max_sessions, 7);
  EXPECT_EQ(config->engine.max_rows_per_prefill, 4096);
  EXPECT_EQ(config->engine.max_items_per_call, EngineOptions().max_items_per_call);
  EXPECT_EQ(config->max_message_bytes, 8 << 20);
  EXPECT_EQ(config->engine.max_tokens_per_session, EngineOptions::kMaxTokens);
  EXPECT_EQ(config->engine.max_table_bytes, 3 << 20);
  EXPECT_EQ(config->engine.max_score_bytes, 5 << 20);
  EXPECT_TRUE(config->allow_overcommit_memory);
  EXPECT_EQ(config->engine.recall_sample_every, 0);
  EXPECT_EQ(config->recall_max_time_share, 0.5);
}

TEST(Config, WrongValuesAreNamed) {
  struct Case {
    std::string text;
    std::string in_message;
  };
  for (const Case& wrong : std::initializer_list<Case>{
           {"nonsense: 1", "line 1, column 9"},
           {"threads: \"x\"", "line 1, column 10"},
           {"threads: -1", "threads -1"},
           {"pool_bytes: \"4Gb\"", "pool_bytes \"4Gb\""},
           {"log_level: \"loud\"", "log_level \"loud\""},
           {"drain_seconds: -1", "drain_seconds -1"},
           {"drain_seconds: nan", "drain_seconds nan"},
           {"listen: \"localhost\"", "neither unix:/path nor host:port"},
           {"listen: \"unix:relative\"", "absolute path"},
           {"listen: \"unix:/" + std::string(200, 'x') + "\"", "the limit is 107"},
           {"listen: \"127.0.0.1:99999\"", "not in 0..65535"},
           {"listen: \"127.0.0.1:http\"", "\"http\""},
           {"listen: \":80\"", "no host"},
           {"listen: \"[::1:80\"", "[ without ]"},
           {"listen: \"0.0.0.0:80\"", "allow_remote"},
           {"listen: \"127.evil.example:80\"", "allow_remote"},
           {"metrics_listen: \"10.0.0.1:80\"", "allow_remote"},
           {"metrics_listen: \"unix:/tmp/x\"", "not host:port"},
           {"limits { max_sessions: -1 }", "limits.max_sessions -1"},
           {"limits { max_lease_seconds: 1e9 }", "limits.max_lease_seconds 1e+09"},
           {"limits { max_lease_seconds: 60 default_lease_seconds: 61 }",
            "limits.default_lease_seconds 61 is not in 0..60"},
           {"pool_bytes: \"1MiB\"", "pool_bytes 1048576 is less than 8388608"},
           {"pool_bytes: \"9TiB\"", "pool_bytes 9895604649984 is more than 8796093022208"},
           {"pool_bytes: \"7000000TiB\"", "is more than 8796093022208"},
           {"limits { max_tokens_per_session: 9223372036854775807 }",
            "limits.max_tokens_per_session 9223372036854775807 is more than 2147483584"},
           {"limits { max_rows_per_prefill: 2147483585 }",
            "limits.max_rows_per_prefill 2147483585 is more than 2147483584"},
           {"limits { max_table_bytes: \"1GB\" }", "limits.max_table_bytes \"1GB\""},
           {"limits { max_score_bytes: \"none\" }", "limits.max_score_bytes \"none\""},
           {"limits { max_message_bytes: \"3GiB\" }", "is more than 1073741824"},
           {"recall { sample_every: -5 }", "recall.sample_every -5 is negative"},
           {"recall { max_time_share: 0 }", "recall.max_time_share 0 is not above 0"},
           {"recall { max_time_share: 1.5 }", "recall.max_time_share 1.5 is not above 0"},
           {"recall { max_time_share: nan }", "recall.max_time_share nan is not above 0"},
       }) {
    const absl::Status status = Resolve(wrong.text).status();
    EXPECT_NE(status.message().find(wrong.in_message), absl::string_view::npos)
        << wrong.text << " -> " << status;
  }
}

// 0 would close every session at once.
TEST(Config, TheShortestLeaseIsAMillisecond) {
  const absl::StatusOr<Config> config = Resolve("limits { default_lease_seconds: 0.0001 }");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->default_lease, std::chrono::milliseconds(1));
}

TEST(Config, RemoteIsAllowedOnRequest) {
  EXPECT_TRUE(Resolve("listen: \"0.0.0.0:80\" allow_remote: true").ok());
  for (const char* local : {"127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(Resolve(absl::StrCat("listen: \"", local, "\"")).ok()) << local;
  }
}

TEST(Config, AFileThatIsNotThereIsNamed) {
  const absl::Status status = ReadConfigFile("/no/such/file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/no/such/file"), absl::string_view::npos);
  // One that opens and does not read is no empty file.
  EXPECT_EQ(ReadConfigFile("/").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(ReadConfigFile("/dev/null").ok());
}

}  // namespace
}  // namespace longshore
