// A prompt and some tokens through one layer, as a model runner would send them.
//
//   example [TARGET]

#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "longshore/client/client.h"

namespace {

using longshore::client::Attended;
using longshore::client::Client;
using longshore::client::ModelShape;
using longshore::client::RopeTable;
using longshore::client::Session;
using longshore::client::StepStream;

constexpr int32_t kHeads = 8;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 64;

// What a model's projections would give: [rows, heads, kHeadDim], before rotary embedding.
std::vector<float> Project(int64_t rows, int32_t heads) {
  static std::mt19937 random;
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * heads * kHeadDim));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

int Fail(const absl::Status& status) {
  const auto details = longshore::client::DetailsOf(status);
  std::fprintf(stderr, "%s [%s %s]\n", std::string{status.message()}.c_str(),
               details.reason.c_str(), details.field.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  absl::StatusOr<Client> client = Client::Connect(argc > 1 ? argv[1] : "");
  if (!client.ok()) {
    return Fail(client.status());
  }
  const ModelShape model{.num_layers = 1,
                         .num_heads = kHeads,
                         .num_kv_heads = kKvHeads,
                         .head_dim = kHeadDim,
                         .rope_tables = {RopeTable::FromBase(10000.0, kHeadDim, 8192)}};
  absl::StatusOr<Session> session =
      client->Open(model, {.policy = {.preset = "standard"}, .max_tokens = 8192});
  if (!session.ok()) {
    return Fail(session.status());
  }

  constexpr int64_t kPrompt = 3000;
  const std::vector<float> q = Project(kPrompt, kHeads);
  const std::vector<float> k = Project(kPrompt, kKvHeads);
  const std::vector<float> v = Project(kPrompt, kKvHeads);
  absl::StatusOr<Attended> attended = session->Prefill(0, q, k, v);
  if (!attended.ok()) {
    return Fail(attended.status());
  }
  std::printf("prefill of %ld tokens: %ld values of attention\n", static_cast<long>(kPrompt),
              static_cast<long>(attended->out.size()));

  StepStream stream = client->StreamSteps();
  for (int token = 0; token < 3; ++token) {
    const absl::StatusOr<StepStream::Tag> tag =
        stream.Decode(*session, 0, Project(1, kHeads), Project(1, kKvHeads), Project(1, kKvHeads),
                      {.log_sum_exp = true});
    attended = tag.ok() ? stream.Wait(*tag) : tag.status();
    if (!attended.ok()) {
      return Fail(attended.status());
    }
    std::printf("token %ld: log-sum-exp of head 0 is %.3f\n",
                static_cast<long>(session->tokens(0) - 1), attended->log_sum_exp[0]);
  }

  // Errors say which field, and what to do: here the position is not the layer's length.
  const std::vector<float> row_k = Project(1, kKvHeads);
  const absl::Status gap = session->Append(0, row_k, row_k, {.position = 9});
  std::printf("refused: %s, expected position %ld\n", longshore::client::ReasonOf(gap).c_str(),
              static_cast<long>(longshore::client::ExpectedPosition(gap).value_or(-1)));

  const absl::Status closed = session->Close();
  return closed.ok() ? 0 : Fail(closed);
}
