// SPDX-License-Identifier: Apache-2.0
// What is said where no adapter is at hand: without libraries, without adapters, or built without either's headers.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "rdma/connection_manager.h"
#include "rdma/device.h"

namespace cleat::rdma::adapter_test {
namespace {

bool ThisMachineHasAdapters() {
  std::error_code none;
  return std::filesystem::exists("/sys/class/infiniband", none) &&
         !std::filesystem::is_empty("/sys/class/infiniband", none);
}

// A person is told what to install, or to look at.
void ExpectHelp(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.message;
  EXPECT_TRUE(error.message.starts_with("RDMA: ")) << error.message;
  EXPECT_TRUE(error.message.find("rdma link") != std::string::npos ||
              error.message.find("librdmacm-dev") != std::string::npos)
      << error.message;
}

TEST(Adapter, WithoutOneNoneIsOpened) {
  if (ThisMachineHasAdapters()) GTEST_SKIP() << "this machine has RDMA adapters";
  const auto device = OpenDevice("192.0.2.1");
  ASSERT_FALSE(device.ok());
  ExpectHelp(device.error());
}

TEST(Adapter, WithoutOneThereIsNoConnectionManager) {
  if (ThisMachineHasAdapters()) GTEST_SKIP() << "this machine has RDMA adapters";
  const auto manager = OpenConnectionManager();
  ASSERT_FALSE(manager.ok());
  ExpectHelp(manager.error());
}

TEST(WorkStatusNames, AreAllDifferent) {
  std::set<std::string> names;
  for (const WorkStatus status : {WorkStatus::kDone, WorkStatus::kFlushed, WorkStatus::kRetriesExceeded,
                                  WorkStatus::kRemoteRefused, WorkStatus::kLocalError, WorkStatus::kOther})
    EXPECT_TRUE(names.insert(NameOf(status)).second) << NameOf(status);
}

}  // namespace
}  // namespace cleat::rdma::adapter_test
