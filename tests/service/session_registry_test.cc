#include "service/session_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/caller.h"
#include "service/errors.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Clock = SessionRegistry::Clock;

constexpr uint64_t kFirst = (uint64_t{7} << 32) | 100;
const Clock::time_point kNow = Clock::now();

SessionRegistry::Entry EntryOf(const std::string& owner, milliseconds lease = milliseconds(1000)) {
  SessionRegistry::Entry entry;
  entry.owner = owner;
  entry.lease = lease;
  entry.last_used = kNow;
  return entry;
}

ErrorDetails RefusalOf(SessionRegistry& registry, uint64_t id, const std::string& caller) {
  const absl::StatusOr<SessionRegistry::Use> use = registry.Begin(id, caller);
  EXPECT_TRUE(absl::IsNotFound(use.status())) << use.status();
  return DetailsOf(use.status()).value_or(ErrorDetails{});
}

TEST(SessionRegistry, ALeaseEndsWhenNobodyCalls) {
  SessionRegistry registry("me", kFirst);
  EXPECT_EQ(registry.NextExpiry(), Clock::time_point::max());
  registry.Add(kFirst, EntryOf("host:a", milliseconds(1000)));
  registry.Add(kFirst + 1, EntryOf("host:a", milliseconds(500)));
  EXPECT_EQ(registry.NextExpiry(), kNow + milliseconds(500));
  EXPECT_THAT(registry.Expire(kNow + milliseconds(499)), IsEmpty());
  EXPECT_THAT(registry.Expire(kNow + milliseconds(500)), ElementsAre(kFirst + 1));
  EXPECT_EQ(registry.NextExpiry(), kNow + milliseconds(1000));
  const ErrorDetails refusal = RefusalOf(registry, kFirst + 1, "host:a");
  EXPECT_EQ(refusal.reason, "SESSION_EXPIRED");
  EXPECT_EQ(refusal.field, "session_id");
  EXPECT_THAT(refusal.metadata, ElementsAre(std::pair("lease_seconds", "0.5")));
}

TEST(SessionRegistry, ACallHoldsAndRenewsTheLease) {
  SessionRegistry registry("me", kFirst);
  registry.Add(kFirst, EntryOf("host:a"));
  {
    const absl::StatusOr<SessionRegistry::Use> use = registry.Begin(kFirst, "host:a");
    ASSERT_TRUE(use.ok());
    EXPECT_EQ(registry.Find(kFirst).uses, 1);
    EXPECT_EQ(registry.NextExpiry(), Clock::time_point::max());
    EXPECT_THAT(registry.Expire(kNow + std::chrono::hours(1000)), IsEmpty());
  }
  EXPECT_EQ(registry.Find(kFirst).uses, 0);
  EXPECT_GT(registry.Find(kFirst).last_used, kNow);
  EXPECT_GT(registry.NextExpiry(), kNow + milliseconds(1000));
}

TEST(SessionRegistry, ACallThatClosesItsSessionLeavesNothing) {
  SessionRegistry registry("me", kFirst);
  registry.Add(kFirst, EntryOf("host:a"));
  {
    const absl::StatusOr<SessionRegistry::Use> use = registry.Begin(kFirst, "host:a");
    registry.Remove(kFirst);
  }
  EXPECT_EQ(RefusalOf(registry, kFirst, "host:a").reason, "SESSION_NOT_FOUND");
}

TEST(SessionRegistry, OthersAreToldThatThereIsNoSuchSession) {
  SessionRegistry registry("me", kFirst);
  registry.Add(kFirst, EntryOf("host:a"));
  EXPECT_EQ(RefusalOf(registry, kFirst, "host:b").reason, "SESSION_NOT_FOUND");
  EXPECT_TRUE(registry.Begin(kFirst, "host:a").ok());
  EXPECT_TRUE(registry.Begin(kFirst, kLocalCaller).ok());
  registry.Expire(kNow + std::chrono::hours(1));
  EXPECT_EQ(RefusalOf(registry, kFirst, "host:b").reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(RefusalOf(registry, kFirst, "host:a").reason, "SESSION_EXPIRED");
}

TEST(SessionRegistry, AnIdOfAnotherInstanceIsToldApart) {
  SessionRegistry registry("me", kFirst);
  const ErrorDetails refusal = RefusalOf(registry, (uint64_t{8} << 32) | 100, "host:a");
  EXPECT_EQ(refusal.reason, "INSTANCE_CHANGED");
  EXPECT_THAT(refusal.metadata, ElementsAre(std::pair("instance_id", "me")));
  EXPECT_EQ(RefusalOf(registry, kFirst + 5, "host:a").reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(RefusalOf(registry, 0, "host:a").reason, "SESSION_NOT_FOUND");
}

TEST(SessionRegistry, FindsWhatWasOpenedUnderAnId) {
  SessionRegistry registry("me", kFirst);
  SessionRegistry::Entry entry = EntryOf("host:a");
  entry.open_id = 42;
  registry.Add(kFirst, entry);
  registry.Add(kFirst + 1, EntryOf("host:a"));
  EXPECT_EQ(registry.FindOpened(42, "host:a"), kFirst);
  EXPECT_EQ(registry.FindOpened(42, "host:b"), 0);
  EXPECT_EQ(registry.FindOpened(0, "host:a"), 0);
  registry.Remove(kFirst);
  EXPECT_EQ(registry.FindOpened(42, "host:a"), 0);
}

TEST(SessionRegistry, ForgetsTheOldestOfManyThatExpired) {
  SessionRegistry registry("me", kFirst);
  for (uint64_t id = kFirst; id < kFirst + 1030; ++id) {
    registry.Add(id, EntryOf("host:a", milliseconds(1)));
    registry.Expire(kNow + milliseconds(1));
  }
  EXPECT_EQ(RefusalOf(registry, kFirst, "host:a").reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(RefusalOf(registry, kFirst + 1029, "host:a").reason, "SESSION_EXPIRED");
}

TEST(SessionRegistry, EveryInstanceHasIdsOfItsOwn) {
  const uint64_t first = InstanceSessionId();
  EXPECT_NE(first >> 32, InstanceSessionId() >> 32);
  EXPECT_NE(first >> 32, 0U);
  EXPECT_LT(first >> 32, uint64_t{1} << 30);
  EXPECT_LT(first & 0xffffffffU, uint64_t{1} << 30);  // room to count up
}

}  // namespace
}  // namespace longshore
