#include "engine/core/error.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Error, DetailsTravelWithTheStatus) {
  const absl::Status status = MakeError(absl::StatusCode::kAborted, "a message",
                                        {.reason = "POSITION_GAP",
                                         .field = "items[1].position",
                                         .metadata = {{"a", "1"}, {"b", ""}}});
  const auto details = DetailsOf(status);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "a message");
  EXPECT_EQ(details->reason, "POSITION_GAP");
  EXPECT_EQ(details->field, "items[1].position");
  const std::vector<std::pair<std::string, std::string>> metadata = {{"a", "1"}, {"b", ""}};
  EXPECT_EQ(details->metadata, metadata);
}

TEST(Error, OtherStatusesHaveNoDetails) {
  EXPECT_FALSE(DetailsOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(DetailsOf(absl::InternalError("x")).has_value());
}

TEST(Error, InvalidFieldNamesTheFieldFirst) {
  const absl::Status status = InvalidField("keep_tokens", 8190, " is not a multiple of ", 32);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "keep_tokens 8190 is not a multiple of 32");
  EXPECT_EQ(DetailsOf(status)->reason, "INVALID_FIELD");
  EXPECT_EQ(DetailsOf(status)->field, "keep_tokens");
  EXPECT_EQ(NotImplemented("ranking", "score_max").code(), absl::StatusCode::kUnimplemented);
}

TEST(Error, PrefixGoesToFieldAndMessage) {
  const absl::Status inner = PrefixField("stages[1].", InvalidField("keep_tokens", 3, " is odd"));
  const absl::Status status = PrefixField("decode.", inner);
  EXPECT_EQ(status.message(), "decode.stages[1].keep_tokens 3 is odd");
  EXPECT_EQ(DetailsOf(status)->field, "decode.stages[1].keep_tokens");
  EXPECT_EQ(DetailsOf(status)->reason, "INVALID_FIELD");
  // A message that does not begin with the field stays as it is.
  const absl::Status other = MakeError(
      absl::StatusCode::kNotFound, "no session 7",
      {.reason = "SESSION_NOT_FOUND", .field = "session_id", .metadata = {{"key", "value"}}});
  EXPECT_EQ(PrefixField("items[0].", other).message(), "no session 7");
  EXPECT_EQ(DetailsOf(PrefixField("items[0].", other))->field, "items[0].session_id");
  EXPECT_EQ(DetailsOf(PrefixField("items[0].", other))->metadata[0].second, "value");
  EXPECT_EQ(PrefixField("x.", absl::InternalError("y")), absl::InternalError("y"));
}

}  // namespace
}  // namespace longshore
