// SPDX-License-Identifier: Apache-2.0
// Ceph clusters and their disks: what the API takes, how keys are kept, what engines are told, and what they tell.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "clusters_rig.h"
#include "control/model/reasons.h"

namespace cleat::control::clusters_test {
namespace {

using ClustersTest = ClustersRig;

// ---- What it may say ----

TEST_F(ClustersTest, WhatCantBeIsRefusedWithItsField) {
  const auto refused = [&](auto change, std::string_view says) {
    v1::CreateClusterRequest request = NewCluster("ceph");
    change(*request.mutable_cluster()->mutable_spec());
    const auto made = state_->clusters().Create(request);
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  };
  refused([](auto& spec) { spec.clear_monitors(); }, "monitors and conf_file are missing");
  refused([](auto& spec) { spec.set_conf_file("ceph.conf"); }, "conf_file is 'ceph.conf'");
  refused([](auto& spec) { spec.clear_user(); }, "user is missing");
  refused([](auto& spec) { spec.set_user("client.cleat"); }, "leave 'client.' out");
  refused([](auto& spec) { spec.clear_key(); }, "neither a key nor a conf_file");
  refused([](auto& spec) { spec.set_plain_key("nonsense"); }, "no key of a Ceph user");
  refused([](auto& spec) { spec.set_images_per_client(65); }, "images_per_client is 65");
  refused([](auto& spec) { spec.mutable_connect_timeout()->set_nanos(500); }, "connect_timeout must be");
  refused([](auto& spec) { spec.mutable_connect_timeout()->set_seconds(301); }, "connect_timeout must be");

  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  const auto no_cluster = [&](auto change, v1::Reason reason) {
    v1::CreateDiskRequest request = RbdDisk("d", "image");
    change(*request.mutable_disk()->mutable_spec()->mutable_rbd());
    const auto made = state_->disks().Create(request);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(ReasonOf(made.error()), reason) << made.error().message;
  };
  no_cluster([](auto& rbd) { rbd.set_cluster("clusters/other"); }, v1::REASON_RESOURCE_NOT_FOUND);
  no_cluster([](auto& rbd) { rbd.set_cluster("ceph"); }, v1::REASON_INVALID_FIELD);
  no_cluster([](auto& rbd) { rbd.clear_image(); }, v1::REASON_INVALID_FIELD);
  no_cluster([](auto& rbd) { rbd.set_pool("a/b"); }, v1::REASON_INVALID_FIELD);
}

TEST_F(ClustersTest, TheKeyIsKeptWrappedAndNeverShown) {
  const auto made = state_->clusters().Create(NewCluster("ceph"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_FALSE(made->spec().has_plain_key());
  EXPECT_EQ(made->spec().wrapped_key().key_encryption_key(), keyring_->current_id());
  EXPECT_TRUE(made->spec().wrapped_key().data().empty());
  EXPECT_EQ(made->spec().images_per_client(), 16U);
  EXPECT_EQ(made->spec().connect_timeout().seconds(), 30);
  // The same again is the same, another key is not.
  EXPECT_EQ(state_->clusters().Create(NewCluster("ceph"))->revision(), made->revision());
  EXPECT_EQ(ReasonOf(state_->clusters().Create(NewCluster("ceph", kOtherKey)).error()),
            v1::REASON_CONTENT_DIFFERS);
  EXPECT_TRUE(state_->clusters().Create(NewCluster("ceph", "")).ok()) << "without a key: the present one";
  Restart();
  const std::string raw = RawFiles();
  EXPECT_EQ(raw.find(std::string("@ABCDEFGHIJKLMNO")), std::string::npos) << "the secret is in the store";
  EXPECT_EQ(raw.find("QEFCQ0RFRkdI"), std::string::npos);
  v1::GetClusterRequest get;
  get.set_name("clusters/ceph");
  const auto again = state_->clusters().Get(get);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->etag(), made->etag());
  EXPECT_TRUE(again->spec().wrapped_key().data().empty());
}

TEST_F(ClustersTest, AnImageIsOneDisksUnlessBothOnlyRead) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(state_->disks().Create(RbdDisk("a", "image")).ok());
  const auto second = state_->disks().Create(RbdDisk("b", "image"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ReasonOf(second.error()), v1::REASON_IMAGE_TAKEN) << second.error().message;
  EXPECT_TRUE(state_->disks().Create(RbdDisk("b", "image", "then")).ok()) << "its snapshot is another thing";
  v1::CreateDiskRequest reader = RbdDisk("c", "shared");
  reader.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(reader).ok());
  reader.set_disk_id("d");
  EXPECT_TRUE(state_->disks().Create(reader).ok());

  ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
  EXPECT_EQ(ReasonOf(state_->attachments().Attach(Attach("b", "vm")).error()), v1::REASON_READ_ONLY_REQUIRED);
  EXPECT_TRUE(state_->attachments().Attach(Attach("b", "vm", true)).ok());

  const auto refused = state_->clusters().Delete(DeleteCluster("ceph"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_CLUSTER_IN_USE);
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_TRUE(state_->disks().Create(RbdDisk("e", "image")).ok()) << "the image is free again";
}

TEST_F(ClustersTest, AKeyIsSparedWhereTheRequestSaysSo) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  v1::DeleteClusterRequest sparing = DeleteCluster("ceph");
  sparing.set_spare_key(true);
  const auto refused = state_->clusters().Delete(sparing);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_NOT_KEPT);
  EXPECT_TRUE(state_->clusters().Delete(DeleteCluster("ceph")).ok());
}

// ---- What engines are told ----

TEST_F(ClustersTest, TheClusterComesBeforeItsFirstDiskAndGoesWhenItIsDeleted) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  Requests told = engine_.TakeRequests();
  std::sort(told.begin(),
            told.begin() + std::min<ptrdiff_t>(2, std::ssize(told)));  // in any order, but before the third
  EXPECT_EQ(told, (Requests{"PutCluster clusters/ceph", "PutController controllers/vm1",
                            "Attach controllers/vm1 0 disks/a"}));
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).rbd().pool(), "vms");
  AttachOne("b", "vm2");
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/b").ok());
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"PutController controllers/vm2", "Attach controllers/vm2 0 disks/b"}));

  // Who has it all is asked for nothing.
  Restart();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{});

  ASSERT_TRUE(state_->clusters().Update(Update(NewCluster("ceph", kOtherKey))).ok());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{"PutCluster clusters/ceph"});
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kOtherKey);

  for (const auto& [disk, controller] : {std::pair("a", "vm1"), std::pair("b", "vm2")}) {
    ASSERT_TRUE(state_->attachments().Detach(Detach(controller, disk)).ok());
    engine_.WaitForRequest("Detach controllers/" + std::string(controller) + " 0");
    while (!state_->disks().Delete(DeleteDisk(disk)).ok()) {
      state_->waits().AwaitChange(state_->NewestRevision(),
                                  std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    }
  }
  ASSERT_TRUE(state_->clusters().Delete(DeleteCluster("ceph")).ok());
  engine_.WaitForRequest("DropCluster clusters/ceph");
}

TEST_F(ClustersTest, AnEngineThatKnowsNoClustersFailsTheirDisksAlone) {
  ASSERT_TRUE(engine_.Connect());
  engine_.FailClusters(1000000);
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  const v1::Attachment failed = Await("vm1", "a", [](const v1::Attachment& one) {
    return one.status().state() == v1::ATTACHMENT_STATE_FAILED && one.status().failures() > 1;
  });
  EXPECT_NE(failed.status().message().find("does not know such a message"), std::string::npos);
  ASSERT_TRUE(state_->disks().Create(NullDisk("n")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("vm2")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("n", "vm2")).ok());
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/n").ok());
  engine_.FailClusters(0);
  EXPECT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
}

TEST_F(ClustersTest, ANewKeyEncryptionKeyReachesTheEngineBeforeTheOldOneIsGone) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  const std::string before = engine_.Clusters().at("clusters/ceph").key_encryption_key();
  WriteKek("new", '2');
  Restart({"new", "kek"});
  v1::GetClusterRequest get;
  get.set_name("clusters/ceph");
  const std::string etag = state_->clusters().Get(get)->etag();
  ASSERT_TRUE(state_->RewrapKeys().ok());
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_NE(engine_.Clusters().at("clusters/ceph").key_encryption_key(), before);
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
  EXPECT_EQ(state_->clusters().Get(get)->etag(), etag) << "the intent is the same";
  Restart({"new"});
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
}

// ---- What engines tell ----

TEST_F(ClustersTest, AnImageThatGrewIsTheDisksSizeForGood) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  engine_.GrowDisk("controllers/vm1", 0, 3 * kMiB);
  Await("vm1", "a", [](const v1::Attachment& one) { return one.status().size_bytes() == 3 * kMiB; });
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().size_bytes(), 3 * kMiB);
  Restart();
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().size_bytes(), 3 * kMiB);
}

// Whoever opens the disk is told how large its image was for certain, until somebody has it as large as the disk.
TEST_F(ClustersTest, WhatAnImageHadIsToldUntilItHasGrown) {
  const auto resize = [this](uint64_t bytes) {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name("disks/a");
    request.mutable_disk()->mutable_spec()->set_size_bytes(bytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    return state_->disks().Update(request).ok();
  };
  const auto told = [this] { return engine_.DiskAt("controllers/vm1", 0).rbd(); };
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  const uint64_t before = state_->disks().Get(GetDisk("a"))->spec().size_bytes();
  ASSERT_TRUE(resize(before + kMiB));
  ASSERT_TRUE(resize(before + 2 * kMiB));
  Restart();
  engine_.FailAttaches(1, "unavailable", "gone");  // it died, say, with the image as it was
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).size_bytes(), before + 2 * kMiB);
  EXPECT_EQ(told().image_bytes(), before);

  // It has the size now; for an engine that comes next, too.
  const auto attach_anew = [this] {
    engine_.Die();
    Restart();
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  };
  attach_anew();
  EXPECT_FALSE(told().has_image_bytes());

  // While it is attached: the engine makes it larger at once, and says so.
  ASSERT_TRUE(resize(before + 3 * kMiB));
  ASSERT_TRUE(WaitFor("disks/a").ok());
  attach_anew();
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).size_bytes(), before + 3 * kMiB);
  EXPECT_FALSE(told().has_image_bytes());
}

TEST_F(ClustersTest, AFencedDiskIsTouchedByNobodyButWhoDetachesIt) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  engine_.TakeRequests();
  engine_.FenceAttachment("controllers/vm1", 0, "shut out");
  const auto fenced = [](const v1::Attachment& one) {
    return one.status().state() == v1::ATTACHMENT_STATE_FAILED && one.status().message() == "shut out" &&
           one.status().failures() == 1;
  };
  Await("vm1", "a", fenced);
  Restart();
  ASSERT_TRUE(engine_.Connect());
  Await("vm1", "a", fenced);
  // Whatever is looked at meanwhile.
  AttachOne("b", "vm2");
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/b").ok());
  const Requests requests = engine_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "Detach controllers/vm1 0"), 0);
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm1", "a")).ok());
  engine_.WaitForRequest("Detach controllers/vm1 0");
  v1::WaitRequest gone;
  gone.set_name("controllers/vm1/attachments/a");
  gone.set_condition(v1::WAIT_CONDITION_GONE);
  ASSERT_TRUE(state_->waits().Wait(gone, [] { return false; }).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm1")).ok());
  EXPECT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
}

TEST_F(ClustersTest, ConnectionsAreInTheEnginesStatusWhileItIsConnected) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("engines/engine-0").ok());
  engine::v1::CephStatus status;
  status.set_threads(14);
  status.set_clients_total(1);
  engine::v1::CephClient& client = *status.add_clients();
  client.set_cluster("clusters/ceph");
  client.set_id("client.7");
  client.set_images(3);
  client.set_busy_ns(2'500'000'000);
  engine_.ReportCeph(status);
  v1::GetEngineRequest get;
  get.set_name("engines/engine-0");
  v1::EngineStatus shown;
  while (!shown.has_ceph()) {
    const uint64_t revision = state_->NewestRevision();
    shown = state_->engines().Get(get)->status();
    if (!shown.has_ceph()) {
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    }
  }
  EXPECT_EQ(shown.ceph().threads(), 14U);
  EXPECT_EQ(shown.ceph().clients(0).busy().seconds(), 2);
  EXPECT_EQ(shown.ceph().clients(0).images(), 3U);
  engine_.Disconnect();
  while (state_->engines().Get(get)->status().connected()) {
    state_->waits().AwaitChange(state_->NewestRevision(),
                                std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(state_->engines().Get(get)->status().has_ceph());
}

}  // namespace
}  // namespace cleat::control::clusters_test
