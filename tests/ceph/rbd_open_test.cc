// SPDX-License-Identifier: Apache-2.0
// What can't be opened, and says why; and what others change about an image that is open.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "tests/ceph/cluster_key.h"
#include "tests/ceph/rbd_rig.h"

namespace cleat::modules::rbd_open_test {
namespace {

class RbdOpen : public testing::Test {
 protected:
  void Refused(const RbdOptions& options, ErrorCode code, const std::string& words) {
    const auto opened = host_.Open(options);
    ASSERT_FALSE(opened.ok()) << "expected: " << words;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_NE(opened.error().message.find(words), std::string::npos) << opened.error().message;
  }
  MiniCeph& ceph_ = MiniCeph::Shared();
  CephHost host_;
};

TEST_F(RbdOpen, SaysWhatIsWrong) {
  ceph_.CreateImage("there", 4 * kMiB);
  const auto cluster = ceph_.Cluster();
  auto options = CephHost::Options(cluster, "gone", kMiB);
  Refused(options, ErrorCode::kNotFound, "image rbd/gone of clusters/c can't be opened");
  options.image = "there";
  options.shape.size_bytes = 8 * kMiB;
  Refused(options, ErrorCode::kFailedPrecondition, "has 4194304 bytes, the disk has 8388608");
  options.shape.size_bytes = 4 * kMiB;
  options.pool = "nopool";
  Refused(options, ErrorCode::kNotFound, "pool nopool of clusters/c");
  options.pool = "rbd";
  options.name_space = "nobody";
  Refused(options, ErrorCode::kNotFound, "image rbd/nobody/there");
  options.name_space = "";
  options.snapshot = "never";
  Refused(options, ErrorCode::kInvalidArgument, "can only be read");
  options.access = AccessMode::kReadOnly;
  Refused(options, ErrorCode::kNotFound, "rbd/there@never");
  options.snapshot = "";
  options.shape.size_bytes = 1000;
  Refused(options, ErrorCode::kInvalidArgument, "1000 bytes");
}

TEST_F(RbdOpen, TellsAWrongKeyFromAMissingCluster) {
  ceph_.CreateImage("locked", 4 * kMiB);
  const auto wrong = ceph_.Cluster("clusters/wrong");
  wrong->key = test::ClusterKeyOf(ceph_.Key("admin"));
  Refused(CephHost::Options(wrong, "locked", kMiB), ErrorCode::kPermissionDenied,
          "client.cleat can't connect");
  const auto no_key = ceph_.Cluster("clusters/nonsense");
  no_key->key = modules::ClusterKey(keys::Secret::Zeroes(5));
  Refused(CephHost::Options(no_key, "locked", kMiB), ErrorCode::kInvalidArgument, "");
  const auto nobody = ceph_.Cluster("clusters/nobody");
  nobody->monitors = "[v2:127.0.0.1:1/0]";
  nobody->connect_timeout_ns = kNsPerSecond;
  // Others wait for longer, and still do when this one has given up.
  const auto patient = ceph_.Cluster("clusters/patient");
  patient->monitors = nobody->monitors;
  patient->connect_timeout_ns = 10 * kNsPerSecond;
  auto waiting = host_.BeginOpen(CephHost::Options(patient, "locked", kMiB));
  Refused(CephHost::Options(nobody, "locked", kMiB), ErrorCode::kUnavailable, "did not answer in time");
  const bool in_time = waiting.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  ASSERT_FALSE(waiting.get().ok());
  EXPECT_TRUE(in_time);
  // The same host, a moment later.
  EXPECT_TRUE(host_.Open(CephHost::Options(ceph_.Cluster(), "locked", kMiB)).ok());
}

TEST_F(RbdOpen, TakesNoSettingThatIsUnsafe) {
  const auto cluster = ceph_.Cluster();
  cluster->settings["rados_osd_op_timeout"] = "10";
  Refused(CephHost::Options(cluster, "x", kMiB), ErrorCode::kInvalidArgument, "rados_osd_op_timeout");
  ceph_.CreateImage("careless", 4 * kMiB);
  ceph_.SetMetadata("careless", "conf_rbd_disable_zero_copy_writes", "false");
  Refused(CephHost::Options(ceph_.Cluster(), "careless", kMiB), ErrorCode::kFailedPrecondition,
          "rbd_disable_zero_copy_writes = false");
  ceph_.CreateImageWithout("lockless", 4 * kMiB, RBD_FEATURE_EXCLUSIVE_LOCK);
  Refused(CephHost::Options(ceph_.Cluster(), "lockless", kMiB), ErrorCode::kFailedPrecondition,
          "exclusive lock");
  EXPECT_TRUE(host_.Open(CephHost::Options(ceph_.Cluster(), "lockless", kMiB, AccessMode::kReadOnly)).ok());
}

TEST_F(RbdOpen, SharesClientsUpToTheLimit) {
  const auto cluster = ceph_.Cluster();
  cluster->images_per_client = 2;
  std::vector<std::unique_ptr<test::HostDisk>> disks;
  for (int i = 0; i < 5; ++i) {
    const std::string image = "shared" + std::to_string(i);
    ceph_.CreateImage(image, 4 * kMiB);
    disks.push_back(host_.OpenDisk(CephHost::Options(cluster, image, 4 * kMiB)));
    ASSERT_NE(disks.back(), nullptr);
  }
  auto status = host_.ClientStatus();
  ASSERT_EQ(status.size(), 3U);
  EXPECT_EQ(status[0].images, 2U);
  EXPECT_EQ(status[2].images, 1U);
  disks.erase(disks.begin());
  disks.erase(disks.begin());
  status = host_.ClientStatus();
  EXPECT_EQ(status.size(), 2U);
}

// What a resize from outside or by us tells the device's owner.
class SizeWatch {
 public:
  std::function<void(uint64_t)> Hook() {
    return [this](uint64_t bytes) {
      const std::lock_guard lock(mutex_);
      last_ = bytes;
      changed_.notify_all();
    };
  }
  bool Becomes(uint64_t bytes) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, test::kWaitMax, [&] { return last_ == bytes; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
};

TEST_F(RbdOpen, HearsOfAResizeByOthers) {
  ceph_.CreateImage("grows", 4 * kMiB);
  SizeWatch writer;
  SizeWatch reader;
  auto options = CephHost::Options(ceph_.Cluster(), "grows", 4 * kMiB);
  options.events.resized = writer.Hook();
  const auto disk = host_.OpenDisk(options);
  options.access = AccessMode::kReadOnly;
  options.events.resized = reader.Hook();
  const auto other = host_.OpenDisk(options);
  ASSERT_TRUE(disk != nullptr && other != nullptr);
  ASSERT_EQ(ceph_.Resize("grows", 8 * kMiB), 0);
  EXPECT_TRUE(writer.Becomes(8 * kMiB));
  EXPECT_TRUE(reader.Becomes(8 * kMiB));
  EXPECT_EQ(disk->pipeline().geometry().size_bytes, 4 * kMiB);  // the owner decides
  Arena arena(4096);
  ASSERT_TRUE(disk->Resize(8 * kMiB).ok());
  EXPECT_EQ(disk->Do(Op::kWrite, 8 * kMiB - 4096, 4096, &arena), IoStatus::kOk);
  const Status beyond = other->Resize(16 * kMiB);
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.error().message.find("only be read here"), std::string::npos) << beyond.error().message;
  ASSERT_TRUE(disk->Resize(16 * kMiB).ok());
  EXPECT_TRUE(reader.Becomes(16 * kMiB));
  EXPECT_TRUE(other->Resize(16 * kMiB).ok());
  EXPECT_EQ(disk->Do(Op::kWrite, 16 * kMiB - 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(other->Do(Op::kRead, 16 * kMiB - 4096, 4096, &arena), IoStatus::kOk);
}

// A disk that became larger when nobody had its image.
TEST_F(RbdOpen, WhoOwnsAnImageMakesItAsLargeAsItsDisk) {
  ceph_.CreateImage("late", 4 * kMiB);
  auto options = CephHost::Options(ceph_.Cluster(), "late", 8 * kMiB);
  const auto unknown = host_.Open(options);  // it was as large as the disk
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kFailedPrecondition);
  options.image_bytes_min = 5 * kMiB;
  const auto smaller = host_.Open(options);
  ASSERT_FALSE(smaller.ok());
  EXPECT_NE(smaller.error().message.find("has 4194304 bytes, the disk has 5242880"), std::string::npos)
      << smaller.error().message;
  options.image_bytes_min = 4 * kMiB;
  options.access = AccessMode::kReadOnly;
  const auto reader = host_.Open(options);
  ASSERT_FALSE(reader.ok());
  EXPECT_NE(reader.error().message.find("only be read here"), std::string::npos) << reader.error().message;

  options.access = AccessMode::kReadWrite;
  const auto disk = host_.OpenDisk(options);
  ASSERT_NE(disk, nullptr);
  EXPECT_EQ(disk->pipeline().geometry().size_bytes, 8 * kMiB);
  EXPECT_EQ(ceph_.ReadAll("late").size(), 8 * kMiB);
  Arena arena(4096);
  EXPECT_EQ(disk->Do(Op::kWrite, 8 * kMiB - 4096, 4096, &arena), IoStatus::kOk);
}

// What was cut off is gone, so an image that shrank is not made larger again: not by who opened it before, either.
TEST_F(RbdOpen, AnImageThatSomebodyCutIsNotMadeLarger) {
  ceph_.CreateImage("cut", 4 * kMiB);
  auto options = CephHost::Options(ceph_.Cluster(), "cut", 8 * kMiB);
  options.image_bytes_min = 4 * kMiB;
  const auto disk = host_.OpenDisk(options);
  ASSERT_NE(disk, nullptr);
  ASSERT_TRUE(disk->Release().ok());
  ASSERT_EQ(ceph_.Resize("cut", 6 * kMiB), 0);
  const Status acquired = disk->Acquire();
  ASSERT_FALSE(acquired.ok());
  EXPECT_NE(acquired.error().message.find("has 6291456 bytes, the disk has 8388608"), std::string::npos)
      << acquired.error().message;
  EXPECT_EQ(ceph_.ReadAll("cut").size(), 6 * kMiB);
  ASSERT_EQ(ceph_.Resize("cut", 8 * kMiB), 0) << "its lock was given back";
  EXPECT_TRUE(disk->Acquire().ok());
}

// librbd keeps an image that somebody has open, so what can vanish is the object below the head.
TEST_F(RbdOpen, AnImageInUseCannotBeRemoved) {
  ceph_.CreateImage("kept", 4 * kMiB);
  const auto disk = host_.OpenDisk(CephHost::Options(ceph_.Cluster(), "kept", 4 * kMiB));
  ASSERT_NE(disk, nullptr);
  EXPECT_LT(rbd_remove(ceph_.io(), "kept"), 0);
}

}  // namespace
}  // namespace cleat::modules::rbd_open_test
