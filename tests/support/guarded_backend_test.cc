#include "tests/support/guarded_backend.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/support/device_memory.h"
#include "tests/support/engine_session.h"

namespace longshore {
namespace {

using Numbers = std::array<int32_t, 3>;

class GuardedBackendTest : public ::testing::Test {
 protected:
  GuardedBackendTest()
      : backend_(MakeTestBackend("cpu")),
        buffer_(*backend_.Allocate(MemorySpace::kDevice, sizeof(Numbers))) {}

  int32_t* device() { return reinterpret_cast<int32_t*>(buffer_.data()); }
  absl::Status Copy(void* to, const void* from) { return backend_.Copy(to, from, sizeof(Numbers)); }

  GuardedBackend backend_;
  Buffer buffer_;
};

TEST_F(GuardedBackendTest, DeviceMemoryIsZeroedAndAligned) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(device()) % 64, 0U);
  EXPECT_EQ(ReadDevice(&backend_, device(), 3), (std::vector<int32_t>{0, 0, 0}));
  const Buffer large = *backend_.Allocate(MemorySpace::kDevice, 10'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 64, 0U);
  const auto bytes = ReadDevice(&backend_, large.data(), 10'000);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), 10'000);
}

TEST_F(GuardedBackendTest, WhoTouchesDeviceMemoryDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  volatile int32_t* number = device();
  EXPECT_DEATH((void)*number, "");
  EXPECT_DEATH(*number = 1, "");
  WriteDevice<int32_t>(&backend_, Numbers{1, 2, 3}, device());
  EXPECT_DEATH((void)*number, "") << "after it was open";
}

// 64-byte steps are all that alignment leaves.
TEST_F(GuardedBackendTest, WhoCopiesPastABufferDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::array<std::byte, 256> bytes = {};
  ASSERT_TRUE(backend_.Copy(bytes.data(), buffer_.data(), 64).ok());
  ASSERT_TRUE(backend_.WaitForAll().ok());
  const auto too_much = [&] {
    (void)backend_.Copy(bytes.data(), buffer_.data(), 65);
    (void)backend_.WaitForAll();
  };
  EXPECT_DEATH(too_much(), "");
}

TEST_F(GuardedBackendTest, NothingHappensBeforeSomebodyWaits) {
  Numbers from = {1, 2, 3};
  Numbers to = {7, 7, 7};
  ASSERT_TRUE(Copy(device(), from.data()).ok());
  const Fence written = *backend_.Mark();
  ASSERT_TRUE(Copy(to.data(), device()).ok());
  const Fence read = *backend_.Mark();
  from[0] = 9;  // who does not leave it as it was copies something else
  ASSERT_TRUE(backend_.Wait(written).ok());
  EXPECT_EQ(backend_.queued(), 1U);
  EXPECT_EQ(to, (Numbers{7, 7, 7}));
  ASSERT_TRUE(backend_.Wait(read).ok());
  EXPECT_EQ(backend_.queued(), 0U);
  EXPECT_EQ(to, (Numbers{9, 2, 3}));
}

TEST_F(GuardedBackendTest, FreedMemoryServesWhatWasQueued) {
  Buffer other = *backend_.Allocate(MemorySpace::kDevice, sizeof(Numbers));
  const Numbers from = {1, 2, 3};
  Numbers to = {};
  ASSERT_TRUE(Copy(other.data(), from.data()).ok());
  ASSERT_TRUE(Copy(to.data(), other.data()).ok());
  { const Buffer freed = std::move(other); }
  EXPECT_EQ(to, from);
}

TEST_F(GuardedBackendTest, AVerbThatFailsIsHeardOfInWait) {
  const absl::Status burnt = absl::InternalError("burnt");
  class Burning final : public Backend {
   public:
    explicit Burning(absl::Status status) : status_(std::move(status)) {}
    const DeviceInfo& info() const override { return info_; }
    absl::StatusOr<Buffer> Allocate(MemorySpace /*space*/, int64_t /*bytes*/) override {
      return status_;
    }
    absl::Status Copy(void* /*to*/, const void* /*from*/, int64_t /*bytes*/) override {
      return status_;
    }
    absl::Status Append(const AppendArgs& /*args*/) override { return absl::OkStatus(); }
    absl::Status Prune(const PruneArgs& /*args*/) override { return status_; }
    absl::Status Attend(const AttendArgs& /*args*/) override { return status_; }
    absl::Status Admit(const AdmitArgs& /*args*/) override { return status_; }
    absl::StatusOr<Fence> Mark() override { return status_; }
    absl::Status Wait(Fence /*fence*/) override { return status_; }

   private:
    void Free(MemorySpace /*space*/, std::byte* /*data*/, int64_t /*bytes*/) override {}
    absl::Status status_;
    DeviceInfo info_;
  };
  GuardedBackend backend(std::make_unique<Burning>(burnt));
  EXPECT_TRUE(backend.Attend(AttendArgs{}).ok());
  EXPECT_EQ(backend.WaitForAll(), burnt);
  EXPECT_EQ(backend.Append(AppendArgs{}), burnt) << "from then on";
}

}  // namespace
}  // namespace longshore
