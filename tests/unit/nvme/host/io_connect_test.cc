// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/io_connect.h"

#include <gtest/gtest.h>

#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::io_connect_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

IoConnectConfig ConfigOf(uint16_t controller_id) {
  return {.who = "q",
          .host = fabrics::HostIdentityOfUuid({1}),
          .subsystem_nqn = "nqn.2016-06.io.cleat:a",
          .controller_id = controller_id,
          .queue_id = 2,
          .entries = 128,
          .timeout_ns = kSecondNs};
}

TEST(IoConnect, AQueueIsReadyWhenTheTargetSaysSo) {
  FakeTarget target;
  IoConnect connect(ConfigOf(7));
  connect.Send(target, 5);
  EXPECT_EQ(target.seen[0].cdw10, 2U << 16);
  EXPECT_FALSE(connect.Overdue(kSecondNs).has_value());
  EXPECT_TRUE(connect.Overdue(kSecondNs + 5).has_value());
  fabrics::CompletionEntry entry;
  entry.result = 7;
  EXPECT_TRUE(connect.Take(entry).ok());
  EXPECT_TRUE(connect.ready());
  EXPECT_FALSE(connect.Overdue(10 * kSecondNs).has_value());
  IoConnect other(ConfigOf(8));
  other.Send(target, 5);
  EXPECT_EQ(other.Take(entry).error().code, ErrorCode::kDataLoss) << "a queue of another controller";
  EXPECT_FALSE(other.ready());
}

}  // namespace
}  // namespace cleat::nvme::host::io_connect_test
