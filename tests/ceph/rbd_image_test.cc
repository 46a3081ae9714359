// SPDX-License-Identifier: Apache-2.0
// Which pools count as used while images are opened and closed, on a librados and a librbd that are played here (their functions are this
// file's). A cluster is called full for the sake of these pools alone.
#include "modules/rbd/rbd_image.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "modules/rbd/rbd.h"
#include "modules/rbd/used_pools.h"

namespace {

struct PlayedCompletion {
  rbd_callback_t answered;
  void* arg;
};

struct PlayedCeph {
  int pool_result = 0;
  int open_result = 0;
  int64_t data_pool = -1;  // its name is "data"; none
  uint64_t image_bytes = 0;
  cleat::modules::UsedPools* pools = nullptr;
  std::set<std::string> while_opening = {};
  PlayedCompletion* closing = nullptr;
} ceph;

int image = 0;

}  // namespace

extern "C" {
int rados_ioctx_create(rados_t /*cluster*/, const char* /*pool*/, rados_ioctx_t* io) {
  *io = &image;
  return ceph.pool_result;
}
void rados_ioctx_destroy(rados_ioctx_t /*io*/) {}
void rados_ioctx_set_namespace(rados_ioctx_t /*io*/, const char* /*name*/) {}
int rados_pool_reverse_lookup(rados_t /*cluster*/, int64_t /*id*/, char* name, size_t bytes) {
  return std::snprintf(name, bytes, "data");
}
int rbd_open(rados_ioctx_t /*io*/, const char* /*name*/, rbd_image_t* opened, const char* /*snapshot*/) {
  *opened = &image;
  ceph.while_opening = ceph.pools->Copy();
  return ceph.open_result;
}
int rbd_close(rbd_image_t /*image*/) {
  return 0;
}
int rbd_aio_create_completion(void* arg, rbd_callback_t answered, rbd_completion_t* completion) {
  *completion = new PlayedCompletion{answered, arg};
  return 0;
}
void rbd_aio_release(rbd_completion_t completion) {
  delete static_cast<PlayedCompletion*>(completion);
}
ssize_t rbd_aio_get_return_value(rbd_completion_t /*completion*/) {
  return 0;
}
int rbd_aio_close(rbd_image_t /*image*/, rbd_completion_t completion) {
  ceph.closing = static_cast<PlayedCompletion*>(completion);
  return 0;
}
int64_t rbd_get_data_pool_id(rbd_image_t /*image*/) {
  return ceph.data_pool;
}
int rbd_get_features(rbd_image_t /*image*/, uint64_t* features) {
  *features = RBD_FEATURE_EXCLUSIVE_LOCK;
  return 0;
}
int rbd_get_id(rbd_image_t /*image*/, char* id, size_t bytes) {
  return std::snprintf(id, bytes, "1") < 0 ? -EIO : 0;
}
int rbd_stat(rbd_image_t /*image*/, rbd_image_info_t* info, size_t /*bytes*/) {
  *info = {};
  info->size = ceph.image_bytes;
  info->obj_size = uint64_t{4} << 20;
  return 0;
}
int rbd_config_image_list(rbd_image_t /*image*/, rbd_config_option_t* /*options*/, int* count) {
  *count = 0;
  return 0;
}
void rbd_config_image_list_cleanup(rbd_config_option_t* /*options*/, int /*count*/) {}
}

namespace cleat::modules::rbd_image_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 30;
using Pools = std::set<std::string>;

class RbdImagePools : public testing::Test {
 protected:
  RbdImagePools() {
    ceph = {};
    ceph.image_bytes = kDiskBytes;
    ceph.pools = pools_.get();
  }
  Result<std::shared_ptr<RbdImage>> Open(const std::string& pool) {
    const RadosConnection at{.cluster = nullptr, .id = "client.1", .address = {}, .pools = pools_};
    auto cluster = std::make_shared<ClusterOptions>();
    cluster->name = "clusters/c";
    const RbdOptions options({"disks/d", kDiskBytes, 512, 4096}, cluster, pool, "image",
                             block::AccessMode::kReadWrite);
    bool shut_out = false;
    return RbdImage::Open(at, options, &shut_out);
  }
  Pools Used() const { return pools_->Copy(); }

  const std::shared_ptr<UsedPools> pools_ = std::make_shared<UsedPools>();
};

TEST_F(RbdImagePools, AreUsedUntilTheLastImageInThemIsClosed) {
  const auto first = Open("vms");
  const auto second = Open("vms");
  const auto other = Open("more");
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(Used(), (Pools{"vms", "more"}));
  EXPECT_TRUE((*other)->Close().ok());
  EXPECT_EQ(Used(), Pools{"vms"});
  EXPECT_TRUE((*first)->Close().ok());
  EXPECT_EQ(Used(), Pools{"vms"});
  EXPECT_TRUE((*second)->Close().ok());
  EXPECT_EQ(Used(), Pools());
}

TEST_F(RbdImagePools, AreThoseOfTheDataToo) {
  ceph.data_pool = 7;
  const auto opened = Open("vms");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(Used(), (Pools{"vms", "data"}));
  EXPECT_TRUE((*opened)->Close().ok());
  EXPECT_EQ(Used(), Pools());
}

// The last writes of such an image may wait for its pool.
TEST_F(RbdImagePools, AreUsedByAnImageThatIsBeingClosedAside) {
  auto opened = Open("vms");
  ASSERT_TRUE(opened.ok());
  bool closed = false;
  RbdImage::CloseAside(*std::move(opened), [&closed](const Status& status) { closed = status.ok(); });
  EXPECT_EQ(Used(), Pools{"vms"});
  ceph.closing->answered(ceph.closing, ceph.closing->arg);
  EXPECT_TRUE(closed);
  EXPECT_EQ(Used(), Pools());
}

// An image of a full pool may wait in its opening.
TEST_F(RbdImagePools, AreUsedByAnImageThatIsBeingOpenedAndNotByOneThatCantBe) {
  ceph.open_result = -ENOENT;
  EXPECT_FALSE(Open("vms").ok());
  EXPECT_EQ(ceph.while_opening, Pools{"vms"});
  EXPECT_EQ(Used(), Pools());
  ceph.open_result = 0;
  ceph.image_bytes = kDiskBytes / 2;
  ceph.data_pool = 7;
  EXPECT_FALSE(Open("vms").ok()) << "somebody has cut it";
  EXPECT_EQ(Used(), Pools());
  ceph.pool_result = -ENOENT;
  EXPECT_FALSE(Open("vms").ok());
  EXPECT_EQ(Used(), Pools());
}

}  // namespace
}  // namespace cleat::modules::rbd_image_test
