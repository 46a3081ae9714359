// SPDX-License-Identifier: Apache-2.0
// Guests whose disk lies on a file system that is full, and whose writes wait (ON_NO_SPACE_WAIT): none fails, and nothing is lost or
// written twice, when there is space again - also when the engine was exchanged or ended meanwhile. What waits fails when the disk is
// detached or is to fail. Costs 17 s.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/vhost_user/deadline.h"
#include "upgrade_rig.h"

namespace cleat::system_test::no_space_test {
namespace {

namespace fs = std::filesystem;

constexpr char kOtherId[] = "green";
constexpr uint32_t kDepth = 8;
constexpr uint16_t kQueues = 2;    // on one reactor: one that drains ends no wait of the other's
constexpr int kLookMs = 20;        // no event tells that a guest has found something
constexpr uint64_t kServed = 200;  // requests, after there is space
// A guest that has written so much meets the end of the space soon.
constexpr size_t kSpareBytes = size_t{256} << 10;

struct NoSpaceCase {
  const char* name;
  bool scsi;
  bool packed;
};

// A small file system with a filler, a disk with nothing but holes beside it, and a guest that writes.
class NoSpace : public testing::TestWithParam<NoSpaceCase> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting needs root: NOTHING was tested here";
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      GTEST_SKIP() << "no mount namespace: NOTHING was tested here";
    host_ = std::make_unique<Host>();
    ASSERT_TRUE(host_->ok());
    fs::create_directory(host_->Path("small"));
    ASSERT_EQ(mount("tmpfs", host_->Path("small").c_str(), "tmpfs", 0, "size=4m,mode=0755"), 0);
    Fill();
  }
  void TearDown() override {
    if (host_ == nullptr) return;
    MakeSpace();  // the load ends when what it has in flight does
    if (rig_ != nullptr) rig_->Stop();
    umount2(host_->Path("small").c_str(), MNT_DETACH);
  }

  void Fill() {
    const std::string spare = host_->Path("small/spare");
    WriteUntilFull(spare, kSpareBytes);
    WriteUntilFull(Filler(), SIZE_MAX);
    fs::remove(spare);
  }
  static void WriteUntilFull(const std::string& path, size_t bytes_max) {
    const UniqueFd file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const std::vector<char> piece(4096);
    for (size_t done = 0; done < bytes_max && write(file.get(), piece.data(), piece.size()) > 0;)
      done += piece.size();
  }
  std::string Filler() const { return host_->Path("small/filler"); }
  void MakeSpace() { fs::remove(Filler()); }

  void StartGuest(v1::OnNoSpace on_no_space) {
    rig_ = std::make_unique<CrashRig>(*host_, /*seed=*/1);
    const std::string path = host_->MakeFile("small/disk.img", CrashRig::kDiskBytes);
    v1::DiskSpec spec = FileDisk(CrashRig::kDiskBytes, path, false);
    spec.set_on_no_space(on_no_space);
    CrashCase what;
    what.scsi = GetParam().scsi;
    what.packed = GetParam().packed;
    what.queues = kQueues;
    what.spec = spec;
    what.storage = "full";
    id_ = what.Id();
    ASSERT_OK(rig_->Add(what, {.load = {.depth = kDepth, .only_reads_and_writes = true}}));
    ASSERT_OK(rig_->Start());
  }
  // Requests of the guest wait for space in this engine, which says so.
  void ExpectWaits(const std::string& engine) {
    Model last;
    ASSERT_TRUE(host_->api().WaitUntil(
        [&](const Model& model) {
          const auto controller = model.controllers.find("controllers/" + id_);
          return controller != model.controllers.end() &&
                 controller->second.status().engine() == "engines/" + engine &&
                 StatusIn(model).storage_state() == v1::STORAGE_STATE_NO_SPACE;
        },
        &last))
        << last.ToString();
    EXPECT_EQ(StatusIn(last).on_no_space(), v1::ON_NO_SPACE_WAIT);
    EXPECT_NE(StatusIn(last).message().find("requests wait for it since"), std::string::npos)
        << StatusIn(last).message();
    EXPECT_EQ(rig_->findings(), 0U) << rig_->FindingsText();
  }
  // All of them.
  void ExpectAllWait(const std::string& engine) {
    ExpectWaits(engine);
    ASSERT_TRUE(rig_->WaitAllInFlight(guest(), kQueues * kDepth)) << rig_->FindingsText();
  }
  void ExpectServedWithSpace() {
    MakeSpace();
    EXPECT_TRUE(guest().load().WaitProgress(kServed, kWaitTimeoutNs));
    EXPECT_TRUE(rig_->Stop());
    EXPECT_EQ(rig_->findings(), 0U) << rig_->FindingsText();
    EXPECT_TRUE(host_->api().WaitUntil(
        [&](const Model& model) { return StatusIn(model).storage_state() == v1::STORAGE_STATE_OK; }));
  }
  // The guest's judge has seen a request fail, and nothing worse.
  void ExpectFailure() {
    const perf::Deadline deadline(kWaitTimeoutNs);
    while (rig_->findings() == 0 && !deadline.passed()) poll(nullptr, 0, kLookMs);
    EXPECT_NE(rig_->FindingsText().find("failed"), std::string::npos) << rig_->FindingsText();
  }
  v1::AttachmentStatus StatusIn(const Model& model) const {
    const auto found = model.attachments.find("controllers/" + id_ + "/attachments/" + id_);
    return found == model.attachments.end() ? v1::AttachmentStatus() : found->second.status();
  }
  CrashGuest& guest() { return *rig_->guests().front(); }

  std::unique_ptr<Host> host_;
  std::unique_ptr<CrashRig> rig_;
  std::string id_;
};

TEST_P(NoSpace, WritesWaitUntilThereIsSpaceWhateverBecomesOfTheEngine) {
  StartGuest(v1::ON_NO_SPACE_WAIT);
  ExpectAllWait(kEngineId);
  host_->AddEngine(kOtherId);
  UpgradeRig upgrades(*host_, kEngineId, kOtherId, 1);
  EXPECT_EQ(upgrades.Upgrade(), "") << "what waits holds nothing up";
  ExpectWaits(kOtherId);
  EXPECT_EQ(upgrades.Upgrade(), "");
  ExpectWaits(kEngineId);
  host_->TerminateEngine();
  host_->StartEngine();
  ExpectWaits(kEngineId);
  ExpectServedWithSpace();
}

// Negative control: what the guest's judge says when a write fails.
TEST_P(NoSpace, WithoutWaitingWritesFail) {
  StartGuest(v1::ON_NO_SPACE_ERROR);
  ExpectFailure();
}

TEST_P(NoSpace, WhatWaitsFailsWhenTheDiskIsToFail) {
  StartGuest(v1::ON_NO_SPACE_WAIT);
  ExpectAllWait(kEngineId);
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name("disks/" + id_);
  request.mutable_disk()->mutable_spec()->set_on_no_space(v1::ON_NO_SPACE_ERROR);
  request.mutable_update_mask()->add_paths("spec.on_no_space");
  grpc::ClientContext context;
  v1::Disk disk;
  EXPECT_TRUE(host_->api().stub().UpdateDisk(&context, request, &disk).ok());
  ExpectFailure();
  EXPECT_TRUE(host_->api().WaitUntil(
      [&](const Model& model) { return StatusIn(model).on_no_space() == v1::ON_NO_SPACE_ERROR; }));
}

TEST_P(NoSpace, ADetachDoesNotWaitForSpace) {
  StartGuest(v1::ON_NO_SPACE_WAIT);
  ExpectAllWait(kEngineId);
  EXPECT_OK(host_->api().Detach(id_, id_));
  EXPECT_TRUE(host_->api().WaitUntil([](const Model& model) { return model.attachments.empty(); }));
  // A blk guest sees its ring again when its device is there again.
  if (!GetParam().scsi) {
    EXPECT_OK(host_->api().Attach(id_, id_));
  }
  ExpectFailure();
}

INSTANTIATE_TEST_SUITE_P(Guests, NoSpace,
                         testing::Values(NoSpaceCase{"Blk", false, true}, NoSpaceCase{"Scsi", true, false}),
                         [](const auto& guest) { return guest.param.name; });

}  // namespace
}  // namespace cleat::system_test::no_space_test
