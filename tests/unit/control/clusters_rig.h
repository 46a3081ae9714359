// SPDX-License-Identifier: Apache-2.0
// A host with a Ceph cluster, for the tests of clusters and of what is wrong with them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "keys/ceph_key.h"
#include "keys_rig.h"
#include "requests.h"

namespace cleat::control {

// Keys made by nobody; the second differs in one byte of the secret.
inline constexpr char kKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==";
inline constexpr char kOtherKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OUA==";

inline v1::CreateClusterRequest NewCluster(const std::string& id, const std::string& key = kKey) {
  v1::CreateClusterRequest request;
  request.set_cluster_id(id);
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.set_monitors("10.0.0.1");
  spec.set_user("cleat");
  if (!key.empty()) spec.set_plain_key(key);
  return request;
}

inline v1::CreateDiskRequest RbdDisk(const std::string& id, const std::string& image,
                                     const std::string& snapshot = {}) {
  v1::CreateDiskRequest request = NullDisk(id);
  v1::RbdBackend& rbd = *request.mutable_disk()->mutable_spec()->mutable_rbd();
  rbd.set_cluster("clusters/ceph");
  rbd.set_pool("vms");
  rbd.set_image(image);
  rbd.set_snapshot(snapshot);
  return request;
}

inline v1::UpdateClusterRequest Update(const v1::CreateClusterRequest& wanted) {
  v1::UpdateClusterRequest request;
  request.mutable_cluster()->set_name(ClusterName(wanted.cluster_id()));
  *request.mutable_cluster()->mutable_spec() = wanted.cluster().spec();
  request.mutable_update_mask()->add_paths("spec");
  return request;
}

inline v1::DeleteClusterRequest DeleteCluster(const std::string& id) {
  v1::DeleteClusterRequest request;
  request.set_name(ClusterName(id));
  return request;
}

class ClustersRig : public KeysRig {
 protected:
  static constexpr std::chrono::seconds kWaitMax{60};  // for what can only fail

  static bool HasPassed(std::chrono::steady_clock::time_point deadline, const std::string& what) {
    if (std::chrono::steady_clock::now() < deadline) return false;
    ADD_FAILURE() << what << " did not become what was waited for";
    return true;
  }

  // Until `done` is true of it.
  template <typename Done>
  v1::Attachment Await(const std::string& controller, const std::string& id, Done done) {
    const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
    for (;;) {
      const uint64_t revision = state_->NewestRevision();
      const auto attachment = state_->attachments().Get(GetAttachment(controller, id));
      if (attachment.ok() && done(*attachment)) return *attachment;
      if (HasPassed(deadline, controller + "'s " + id)) return {};
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  }

  void AttachOne(const std::string& disk, const std::string& controller) {
    ASSERT_TRUE(state_->disks().Create(RbdDisk(disk, disk)).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController(controller)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk, controller)).ok());
  }

  // Until `done` is true of the cluster.
  template <typename Done>
  v1::ClusterStatus AwaitCluster(Done done) {
    v1::GetClusterRequest get;
    get.set_name("clusters/ceph");
    const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
    for (;;) {
      const uint64_t revision = state_->NewestRevision();
      const auto cluster = state_->clusters().Get(get);
      if (cluster.ok() && done(cluster->status())) return cluster->status();
      if (HasPassed(deadline, get.name())) return {};
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  }
  v1::ClusterStatus AwaitCluster(v1::ClusterState state) {
    return AwaitCluster([state](const v1::ClusterStatus& status) { return status.state() == state; });
  }

  // The engine says of the cluster what `change` does to it.
  template <typename Change>
  void ReportCluster(Change change) {
    ReportClusterOf(engine_, change);
  }
  template <typename Change>
  static void ReportClusterOf(FakeEngine& engine, Change change) {
    engine::v1::CephStatus status;
    status.set_clients_total(1);
    engine::v1::CephCluster& cluster = *status.add_clusters();
    cluster.set_name("clusters/ceph");
    change(cluster);
    engine.ReportCeph(status);
  }
  void ReportWell() {
    ReportCluster([](engine::v1::CephCluster&) {});
  }

  // The binary key that the engine was given.
  std::string KeyAtEngine(const std::string& cluster) {
    const engine::v1::Cluster told = engine_.Clusters().at(cluster);
    const std::string& data = told.wrapped_key();
    const auto key = keyring_->Unwrap(told.key_encryption_key(),
                                      {reinterpret_cast<const uint8_t*>(data.data()), data.size()}, cluster,
                                      keys::Wrapping::kPadded);
    if (!key.ok()) return key.error().message;
    const keys::Secret text = keys::EncodeCephKey(*key);
    return {reinterpret_cast<const char*>(text.bytes().data()), text.size()};
  }
};

}  // namespace cleat::control
