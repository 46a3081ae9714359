// SPDX-License-Identifier: Apache-2.0
// When a cluster is said not to answer, or to be full, and when no more: without a cluster, from what its clients and questions
// have come to.
#include "modules/rbd/cluster_watch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cleat::modules::cluster_watch_test {
namespace {

constexpr char kCluster[] = "clusters/c";
constexpr uint64_t kStartS = 1'000'000;  // UNIX time of the first second

const Error kTimedOut(ErrorCode::kUnavailable, "the cluster did not answer in time");

class ClusterWatchTest : public testing::Test {
 protected:
  ClusterWatch::Now Now() const { return {.ns = now_ns_, .unix_s = kStartS + now_ns_ / kNsPerSecond}; }
  void Pass(uint64_t ns) { now_ns_ += ns; }
  void Look(const std::vector<RadosClientStatus>& clients) { watch_.Look(clients, Now()); }

  static RadosClientStatus Connecting(uint64_t for_ns) {
    return {.cluster = kCluster, .id = {}, .images = 1, .busy_ns = for_ns};
  }
  static RadosClientStatus Connected() {
    return {.cluster = kCluster, .id = "client.1", .images = 1, .pools = {"vms"}};
  }
  bool Ask() {
    if (watch_.Due(Now()) != std::vector<std::string>{kCluster}) return false;
    watch_.Asked(kCluster, Now());
    return true;
  }
  // What is told; nothing: another name.
  ClusterCondition Told() {
    const std::vector<ClusterCondition> all = watch_.Report(Now());
    return all.empty() ? ClusterCondition{.cluster = "nothing"} : all.at(0);
  }
  uint64_t SilentSinceS() { return Told().silent_since_s; }

  ClusterWatch watch_;
  uint64_t now_ns_ = 100 * kNsPerSecond;
};

TEST_F(ClusterWatchTest, MonitorsThatLetNobodyConnectAreSilentAtOnceAndUntilSomebodyCould) {
  Look({Connecting(kNsPerSecond)});
  EXPECT_EQ(Told().cluster, "nothing") << "it may answer yet";
  Pass(kNsPerSecond);
  Look({Connecting(2 * kNsPerSecond)});
  const uint64_t began_s = Now().unix_s - 2;
  EXPECT_EQ(SilentSinceS(), began_s);
  // The attempt comes to nothing, and its client goes. The next one is to come.
  Pass(28 * kNsPerSecond);
  watch_.Opened(kCluster, kTimedOut, now_ns_ - 30 * kNsPerSecond, Now());
  Look({});
  EXPECT_EQ(SilentSinceS(), began_s);
  Pass(30 * kNsPerSecond);
  Look({Connecting(kNsPerMs)});
  EXPECT_EQ(SilentSinceS(), began_s);
  watch_.Opened(kCluster, Ok{}, now_ns_, Now());
  Look({Connected()});
  EXPECT_EQ(Told().cluster, kCluster);
  EXPECT_EQ(SilentSinceS(), 0U);
}

// A cluster that refuses is there.
TEST_F(ClusterWatchTest, ARefusalIsAnAnswer) {
  watch_.Opened(kCluster, kTimedOut, now_ns_, Now());
  EXPECT_NE(SilentSinceS(), 0U);
  watch_.Opened(kCluster, Error(ErrorCode::kPermissionDenied, "wrong key"), now_ns_, Now());
  EXPECT_EQ(SilentSinceS(), 0U);
}

TEST_F(ClusterWatchTest, AQuestionThatIsNotAnsweredSaysThatTheMonitorsAreAway) {
  Look({Connected()});
  ASSERT_TRUE(Ask());
  EXPECT_FALSE(Ask()) << "one at a time";
  const uint64_t asked_s = Now().unix_s;
  Pass(ClusterWatch::kSilentNs);
  EXPECT_EQ(SilentSinceS(), asked_s);
  // Given up, and asked again at once.
  Pass(28 * kNsPerSecond);
  watch_.Answered(kCluster, kTimedOut, Now());
  EXPECT_EQ(SilentSinceS(), asked_s);
  ASSERT_TRUE(Ask());
  watch_.Answered(kCluster, ClusterHealth(), Now());
  EXPECT_EQ(SilentSinceS(), 0U);
  EXPECT_FALSE(Ask());
  Pass(ClusterWatch::kAskEveryNs);
  EXPECT_TRUE(Ask());
  // A cluster that may not be asked is answered as well.
  watch_.Answered(kCluster, Error(ErrorCode::kPermissionDenied, "no capability"), Now());
  EXPECT_EQ(Told(), ClusterCondition{.cluster = kCluster});
}

TEST_F(ClusterWatchTest, AFullPoolOfOursAndAPauseAreToldUntilTheyAreOver) {
  Look({Connected()});
  ASSERT_TRUE(Ask());
  watch_.Answered(kCluster, ClusterHealth{.full = {{"backup", "no space"}}}, Now());
  EXPECT_EQ(Told().full_since_s, 0U) << "that has no disk of ours";
  Pass(ClusterWatch::kAskEveryNs);
  const ClusterHealth full{.full = {{"vms", "no space"}}, .paused = true};
  ASSERT_TRUE(Ask());
  watch_.Answered(kCluster, full, Now());
  const uint64_t since_s = Now().unix_s;
  Pass(ClusterWatch::kAskEveryNs);
  ASSERT_TRUE(Ask());
  watch_.Answered(kCluster, full, Now());
  const ClusterCondition expected{.cluster = kCluster,
                                  .full_since_s = since_s,
                                  .full = "pool 'vms' (no space)",
                                  .paused_since_s = since_s};
  EXPECT_EQ(Told(), expected);
  Pass(ClusterWatch::kAskEveryNs);
  ASSERT_TRUE(Ask());
  watch_.Answered(kCluster, ClusterHealth(), Now());
  EXPECT_EQ(Told(), ClusterCondition{.cluster = kCluster});
}

TEST_F(ClusterWatchTest, AClusterThatNobodyReachesForIsForgotten) {
  Look({Connected()});
  EXPECT_FALSE(watch_.empty());
  Look({});
  EXPECT_TRUE(watch_.empty());
  watch_.Opened(kCluster, kTimedOut, now_ns_, Now());
  Look({});
  EXPECT_FALSE(watch_.empty()) << "somebody may try again";
  Pass(ClusterWatch::kForgetNs);
  Look({});
  EXPECT_TRUE(watch_.empty());
}

}  // namespace
}  // namespace cleat::modules::cluster_watch_test
