// SPDX-License-Identifier: Apache-2.0
// A key-encryption key changes while disks, clusters and subsystems are on their way into the store: afterwards nothing there is under
// the former one, which its operator then drops.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control/state/host_state.h"
#include "held_syncs.h"
#include "keys/keyring.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::key_change_test {
namespace {

v1::CreateDiskRequest Encrypted(v1::CreateDiskRequest request) {
  std::string key;
  for (int i = 0; i < 64; ++i) key += static_cast<char>('a' + i);
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  return request;
}

v1::CreateDiskRequest Image(const std::string& id) {
  v1::CreateDiskRequest request = NullDisk(id);
  v1::RbdBackend& rbd = *request.mutable_disk()->mutable_spec()->mutable_rbd();
  rbd.set_cluster("clusters/ceph");
  rbd.set_pool("vms");
  rbd.set_image(id);
  return request;
}

v1::CreateClusterRequest NewCluster(const std::string& id, const std::string& user = "cleat") {
  v1::CreateClusterRequest request;
  request.set_cluster_id(id);
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.set_monitors("10.0.0.1");
  spec.set_user(user);
  spec.set_plain_key("AQBSdFRmAAAAABAAqqqqqqqqqqqqqqqqqqqqqg==");
  return request;
}

v1::UpdateClusterRequest Update(const v1::CreateClusterRequest& wanted) {
  v1::UpdateClusterRequest request;
  request.mutable_cluster()->set_name(ClusterName(wanted.cluster_id()));
  *request.mutable_cluster()->mutable_spec() = wanted.cluster().spec();
  request.mutable_update_mask()->add_paths("spec");
  return request;
}

class KeyChangeTest : public testing::Test {
 protected:
  KeyChangeTest() {
    WriteKek("former", '1');
    WriteKek("new", '2');
    CLEAT_CHECK(keyring_.SetFiles({dir_ / "former"}).ok());
    store_ = std::move(Store::Open(dir_.path()).value());
    state_ = std::move(
        HostState::Load(*store_, memory_, WatchHub::kQueueMax, &keyring_, KeepDeleted{.time_s = 86'400})
            .value());
    CLEAT_CHECK(state_->clusters().Create(NewCluster("ceph")).ok());
  }

  void WriteKek(const std::string& name, char digit) {
    std::ofstream(dir_ / name) << std::string(64, digit) << "\n";
    std::filesystem::permissions(dir_ / name, std::filesystem::perms::owner_read);
  }
  void ChangeKey() { ASSERT_TRUE(keyring_.SetFiles({dir_ / "new", dir_ / "former"}).ok()); }

  // The key changes while `first` is being synced and `second` waits for it.
  void ChangeKeyWhileWaiting(const std::function<bool()>& first, const std::function<bool()>& second) {
    HeldSyncs syncs;
    std::thread writer([&] { EXPECT_TRUE(first()); });
    ASSERT_TRUE(HeldSyncs::AwaitHeld());
    std::atomic<bool> done = false;
    std::thread waiter([&] {
      EXPECT_TRUE(second());
      done = true;
    });
    while (state_->waiting_changes() == 0 && !done) std::this_thread::yield();
    EXPECT_FALSE(done) << "nothing was waited for";
    ChangeKey();
    HeldSyncs::Release();
    writer.join();
    waiter.join();
  }
  // The key changes while `change` is being synced, and all of that kind, disks, clusters or subsystems, are wrapped anew.
  template <typename Kind>
  void RewrapWhileWriting(Kind& kind, const std::function<bool()>& change) {
    HeldSyncs syncs;
    std::thread writer([&] { EXPECT_TRUE(change()); });
    ASSERT_TRUE(HeldSyncs::AwaitHeld());
    ChangeKey();
    std::atomic<bool> done = false;
    std::thread rewrapper([&] {
      EXPECT_TRUE(kind.RewrapKeys().ok());
      done = true;
    });
    while (state_->waiting_changes() == 0 && state_->waiting_writes() == 0 && !done)
      std::this_thread::yield();
    HeldSyncs::Release();
    writer.join();
    rewrapper.join();
  }

  bool IsCurrent(const v1::WrappedKey& key) { return key.key_encryption_key() == keyring_.current_id(); }
  bool IsDiskCurrent(const std::string& id) {
    return IsCurrent(state_->disks().Row(id)->spec.encryption().wrapped_key());
  }
  bool IsClusterCurrent(const std::string& id) {
    return IsCurrent(state_->clusters().Row(id)->spec.wrapped_key());
  }
  bool IsSubsystemCurrent(const std::string& id) {
    v1::GetSubsystemRequest request;
    request.set_name(SubsystemName(id));
    return IsCurrent(state_->subsystems().Get(request)->spec().dhchap_secret().wrapped_key());
  }
  bool Undelete(const std::string& id) {
    v1::UndeleteDiskRequest request;
    request.set_name(DiskName(id));
    return state_->kept_disks().Undelete(request).ok();
  }

  test::TempDir dir_;
  MemfdKeeper memory_;
  keys::Keyring keyring_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

// ---- What has waited is wrapped when it need not wait any more ----

TEST_F(KeyChangeTest, ADiskThatWaitedForItsCluster) {
  ChangeKeyWhileWaiting([&] { return state_->clusters().Update(Update(NewCluster("ceph", "other"))).ok(); },
                        [&] { return state_->disks().Create(Encrypted(Image("d"))).ok(); });
  EXPECT_TRUE(IsDiskCurrent("d"));
}

TEST_F(KeyChangeTest, AClusterThatWaitedForAnother) {
  ChangeKeyWhileWaiting([&] { return state_->clusters().Create(NewCluster("first")).ok(); },
                        [&] { return state_->clusters().Create(NewCluster("second")).ok(); });
  EXPECT_TRUE(IsClusterCurrent("second"));
}

TEST_F(KeyChangeTest, AClusterThatGetsAnotherKeyAfterAnotherUpdate) {
  auto rekeyed = NewCluster("ceph");
  rekeyed.mutable_cluster()->mutable_spec()->set_plain_key("AQBSdFRmAAAAABAAu7u7u7u7u7u7u7u7u7u7uw==");
  ChangeKeyWhileWaiting([&] { return state_->clusters().Update(Update(NewCluster("ceph", "other"))).ok(); },
                        [&] { return state_->clusters().Update(Update(rekeyed)).ok(); });
  EXPECT_TRUE(IsClusterCurrent("ceph"));
}

TEST_F(KeyChangeTest, ASubsystemThatWaitedForAnother) {
  ChangeKeyWhileWaiting([&] { return state_->subsystems().Create(SecretSubsystem("first")).ok(); },
                        [&] { return state_->subsystems().Create(SecretSubsystem("second")).ok(); });
  EXPECT_TRUE(IsSubsystemCurrent("second"));
}

TEST_F(KeyChangeTest, ASubsystemThatGetsAnotherSecretAfterAnotherUpdate) {
  ASSERT_TRUE(state_->subsystems().Create(SecretSubsystem("s")).ok());
  auto moved = SecretSubsystem("s");
  moved.mutable_subsystem()->mutable_spec()->set_addresses(0, "10.0.0.2");
  ChangeKeyWhileWaiting(
      [&] { return state_->subsystems().Update(control::Update(moved)).ok(); },
      [&] {
        return state_->subsystems().Update(control::Update(SecretSubsystem("s", kOtherChapSecret))).ok();
      });
  EXPECT_TRUE(IsSubsystemCurrent("s"));
}

// ---- What is being written is wrapped anew with the others ----

TEST_F(KeyChangeTest, ADiskThatIsBeingCreated) {
  RewrapWhileWriting(state_->disk_keys(),
                     [&] { return state_->disks().Create(Encrypted(NullDisk("d"))).ok(); });
  EXPECT_TRUE(IsDiskCurrent("d"));
}

TEST_F(KeyChangeTest, ADiskThatIsBeingDeleted) {
  ASSERT_TRUE(state_->disks().Create(Encrypted(NullDisk("d"))).ok());
  RewrapWhileWriting(state_->disk_keys(), [&] { return state_->disks().Delete(DeleteDisk("d")).ok(); });
  ASSERT_TRUE(Undelete("d"));
  EXPECT_TRUE(IsDiskCurrent("d"));
}

TEST_F(KeyChangeTest, ADiskThatIsBeingUndeleted) {
  ASSERT_TRUE(state_->disks().Create(Encrypted(NullDisk("d"))).ok());
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("d")).ok());
  RewrapWhileWriting(state_->disk_keys(), [&] { return Undelete("d"); });
  EXPECT_TRUE(IsDiskCurrent("d"));
}

TEST_F(KeyChangeTest, AClusterThatIsBeingCreated) {
  RewrapWhileWriting(state_->clusters(), [&] { return state_->clusters().Create(NewCluster("k")).ok(); });
  EXPECT_TRUE(IsClusterCurrent("k"));
  EXPECT_TRUE(IsClusterCurrent("ceph"));
}

TEST_F(KeyChangeTest, ASubsystemThatIsBeingCreated) {
  ASSERT_TRUE(state_->subsystems().Create(SecretSubsystem("before")).ok());
  RewrapWhileWriting(state_->subsystems(),
                     [&] { return state_->subsystems().Create(SecretSubsystem("s")).ok(); });
  EXPECT_TRUE(IsSubsystemCurrent("s"));
  EXPECT_TRUE(IsSubsystemCurrent("before"));
}

}  // namespace
}  // namespace cleat::control::key_change_test
