#include "service/caller.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Caller, ComesFromWhatGrpcSaysOfThePeer) {
  EXPECT_EQ(CallerOfPeer("unix:"), "local");
  EXPECT_EQ(CallerOfPeer("unix:/run/longshored.sock"), "local");
  EXPECT_EQ(CallerOfPeer("ipv4:127.0.0.1:4711"), "host:127.0.0.1");
  EXPECT_EQ(CallerOfPeer("ipv6:%5B::1%5D:4711"), "host:[::1]");
  EXPECT_EQ(CallerOfPeer("ipv6:[::1]:4711"), "host:[::1]");
  EXPECT_EQ(CallerOfPeer("vsock:1:2"), "peer:vsock:1:2");
}

}  // namespace
}  // namespace longshore
