// SPDX-License-Identifier: Apache-2.0
// What is wrong with a Ceph cluster: who says so, to whom, and until when.
#include <gtest/gtest.h>

#include <string>

#include "clusters_rig.h"

namespace cleat::control::cluster_faults_test {
namespace {

using ClusterFaultsTest = ClustersRig;

constexpr uint64_t kSinceS = 1'800'000'000;  // 2027-01-15T08:00:00Z

void IsSilent(engine::v1::CephCluster& cluster) {
  cluster.set_silent_since_s(kSinceS);
}

TEST_F(ClusterFaultsTest, AClusterSaysWhatIsWrongWithItUntilThatIsOver) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
  ReportWell();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_OK).message(), "");
  struct Case {
    std::function<void(engine::v1::CephCluster&)> change;
    v1::ClusterState state;
    std::string message;
  };
  const std::vector<Case> cases = {
      {IsSilent, v1::CLUSTER_STATE_NOT_ANSWERING,
       "clusters/ceph: its monitors do not answer engines/engine-0 since 2027-01-15T08:00:00Z: see that they "
       "run, "
       "have a quorum and can be reached from this host (ceph -s)"},
      {[](auto& cluster) {
         cluster.set_full_since_s(kSinceS);
         cluster.set_full("pool 'vms' (no space)");
       },
       v1::CLUSTER_STATE_FULL,
       "clusters/ceph: it is full, and writes wait: pool 'vms' (no space) since 2027-01-15T08:00:00Z: make "
       "room, or "
       "raise the pool's quota (ceph df, ceph health detail)"},
      {[](auto& cluster) { cluster.set_paused_since_s(kSinceS); }, v1::CLUSTER_STATE_NOT_ANSWERING,
       "clusters/ceph: its reads or writes are paused since 2027-01-15T08:00:00Z: 'ceph osd unpause' lets "
       "them go "
       "on"},
  };
  for (const Case& one : cases) {
    ReportCluster(one.change);
    const v1::ClusterStatus bad = AwaitCluster(one.state);
    EXPECT_EQ(bad.message(), one.message);
    EXPECT_EQ(bad.since().seconds(), kSinceS);
    EXPECT_TRUE(WaitFor("clusters/ceph").ok()) << "its settings are where they belong all the same";
    ReportWell();
    const v1::ClusterStatus well = AwaitCluster(v1::CLUSTER_STATE_OK);
    EXPECT_EQ(well.message(), "");
    EXPECT_FALSE(well.has_since());
  }
  // An engine that is gone knows nothing any more.
  ReportCluster(IsSilent);
  AwaitCluster(v1::CLUSTER_STATE_NOT_ANSWERING);
  engine_.Disconnect();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
}

// Each engine tells of the pools that its own disks are in.
TEST_F(ClusterFaultsTest, FullPoolsOfAllEnginesAreNamedAndThoseOfNoneAnyMoreAreNot) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  FakeEngine other(socket_, "engine-1");
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(other.Connect());
  const auto is_full = [](FakeEngine& engine, const std::string& pools, uint64_t since_s) {
    ReportClusterOf(engine, [&](engine::v1::CephCluster& cluster) {
      cluster.set_full_since_s(since_s);
      cluster.set_full(pools);
    });
  };
  const auto await_said = [this](const std::string& pools, const char* since) {
    const std::string message = fmt::format(
        "clusters/ceph: it is full, and writes wait: {} since 2027-01-15T08:00:{}Z: make room, or "
        "raise the pool's quota (ceph df, ceph health detail)",
        pools, since);
    std::string last;
    ReconcilerRig::Await(message, [&] {
      v1::GetClusterRequest get;
      get.set_name("clusters/ceph");
      last = state_->clusters().Get(get)->status().message();
      return last == message;
    });
    EXPECT_EQ(last, message);
  };
  is_full(engine_, "pool 'a' (no space)", kSinceS + 7);
  await_said("pool 'a' (no space)", "07");
  is_full(other, "pool 'b' (running out of quota)", kSinceS);
  await_said("pool 'a' (no space); pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'a' (no space), pool 'b' (running out of quota)", kSinceS + 7);
  await_said("pool 'a' (no space), pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'b' (running out of quota)", kSinceS + 7);
  await_said("pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'a' (no space)", kSinceS + 7);
  await_said("pool 'a' (no space); pool 'b' (running out of quota)", "00");
  ReportClusterOf(other, [](engine::v1::CephCluster&) {});
  await_said("pool 'a' (no space)", "07");
  ReportWell();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_OK).message(), "");
}

TEST_F(ClusterFaultsTest, WhatIsWrongIsToldToWatchersOnceAnEpisode) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("engines/engine-0").ok());
  ReportWell();
  AwaitCluster(v1::CLUSTER_STATE_OK);
  const auto watcher = state_->Watch(state_->NewestRevision());
  ASSERT_TRUE(watcher.ok());
  for (int i = 0; i < 3; ++i) {  // it is busy for longer and longer, say
    engine::v1::CephStatus status;
    status.set_clients_total(1);
    status.set_threads(static_cast<uint32_t>(i));
    status.add_clusters()->set_name("clusters/ceph");
    IsSilent(*status.mutable_clusters(0));
    engine_.ReportCeph(status);
  }
  AwaitCluster(v1::CLUSTER_STATE_NOT_ANSWERING);
  ReportWell();
  AwaitCluster(v1::CLUSTER_STATE_OK);
  std::vector<v1::ClusterState> seen;
  while (seen.empty() || seen.back() != v1::CLUSTER_STATE_OK) {
    const auto event = (*watcher)->Next(std::chrono::seconds(60));
    ASSERT_TRUE(event.ok() && *event != nullptr);
    if ((*event)->has_cluster()) seen.push_back((*event)->cluster().status().state());
  }
  EXPECT_EQ(seen, (std::vector{v1::CLUSTER_STATE_NOT_ANSWERING, v1::CLUSTER_STATE_OK}));
}

// A cluster's disks tell of their storage one by one, and the cluster tells of all of them.
TEST_F(ClusterFaultsTest, AClusterSaysThatItsDisksWaitOrFail) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  for (const auto& [disk, controller] : {std::pair("a", "vm1"), std::pair("b", "vm2")}) {
    AttachOne(disk, controller);
    ASSERT_TRUE(WaitFor(fmt::format("controllers/{}/attachments/{}", controller, disk)).ok());
  }
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING);
  engine_.SetStorage("controllers/vm2", 0, engine::v1::STORAGE_STATE_FAILING);
  const v1::ClusterStatus both = AwaitCluster([](const v1::ClusterStatus& status) {
    return status.message().find(
               "its storage fails requests of 1 attachment(s): controllers/vm2/attachments/b") !=
           std::string::npos;
  });
  EXPECT_EQ(both.state(), v1::CLUSTER_STATE_NOT_ANSWERING);
  EXPECT_NE(
      both.message().find("its storage does not answer 1 attachment(s): controllers/vm1/attachments/a since"),
      std::string::npos)
      << both.message();
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_OK);
  AwaitCluster(v1::CLUSTER_STATE_FAILING);
  // A disk that is detached says nothing any more.
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm2", "b")).ok());
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
}

TEST_F(ClusterFaultsTest, WhatWaitsForAClusterSaysWhy) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  for (const auto& [disk, controller] :
       {std::pair("a", "vm1"), std::pair("b", "vm2"), std::pair("c", "vm3")}) {
    AttachOne(disk, controller);
    ASSERT_TRUE(WaitFor(fmt::format("controllers/{}/attachments/{}", controller, disk)).ok());
  }
  const std::string waits = "waits for clusters/ceph: its monitors do not answer";
  const auto says = [&waits](const v1::Attachment& one) { return one.status().message().starts_with(waits); };
  const auto adds = [&waits](const v1::Attachment& one) {
    return one.status().message().starts_with("as its storage does; " + waits);
  };
  // Before it is known, and afterwards.
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING,
                     engine::v1::ATTACHMENT_STATE_OPENING);
  ReportCluster(IsSilent);
  Await("vm1", "a", says);
  engine_.SetStorage("controllers/vm2", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING);
  Await("vm2", "b", adds);
  const auto disk_says = [&](const std::string& id) {
    return state_->disks().Get(GetDisk(id))->status().message().starts_with(waits);
  };
  EXPECT_TRUE(disk_says("a"));
  EXPECT_TRUE(disk_says("b"));
  EXPECT_FALSE(disk_says("c")) << "it needs nothing of the monitors";
  const auto other = state_->attachments().Get(GetAttachment("vm3", "c"));
  EXPECT_EQ(other->status().message(), "");
  ReportWell();
  const auto says_nothing_of_it = [](const v1::Attachment& one) {
    return one.status().message().find("clusters/ceph") == std::string::npos;
  };
  Await("vm1", "a", says_nothing_of_it);
  Await("vm2", "b", says_nothing_of_it);
  EXPECT_FALSE(disk_says("a"));
}

}  // namespace
}  // namespace cleat::control::cluster_faults_test
