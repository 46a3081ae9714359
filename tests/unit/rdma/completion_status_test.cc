// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "rdma/ibverbs/completion_queue.h"

namespace cleat::rdma::completion_status_test {
namespace {

TEST(CompletionStatus, TellsThePeersFaultsFromOwnOnes) {
  EXPECT_EQ(StatusOf(IBV_WC_SUCCESS), WorkStatus::kDone);
  EXPECT_EQ(StatusOf(IBV_WC_WR_FLUSH_ERR), WorkStatus::kFlushed);
  EXPECT_EQ(StatusOf(IBV_WC_RETRY_EXC_ERR), WorkStatus::kRetriesExceeded);
  EXPECT_EQ(StatusOf(IBV_WC_RNR_RETRY_EXC_ERR), WorkStatus::kRetriesExceeded);
  EXPECT_EQ(StatusOf(IBV_WC_REM_ACCESS_ERR), WorkStatus::kRemoteRefused);
  EXPECT_EQ(StatusOf(IBV_WC_REM_INV_REQ_ERR), WorkStatus::kRemoteRefused);
  EXPECT_EQ(StatusOf(IBV_WC_LOC_LEN_ERR), WorkStatus::kLocalError);
  EXPECT_EQ(StatusOf(IBV_WC_LOC_PROT_ERR), WorkStatus::kLocalError);
  EXPECT_EQ(StatusOf(IBV_WC_MW_BIND_ERR), WorkStatus::kLocalError);
  EXPECT_EQ(StatusOf(IBV_WC_FATAL_ERR), WorkStatus::kOther);
}

}  // namespace
}  // namespace cleat::rdma::completion_status_test
