// SPDX-License-Identifier: Apache-2.0
// The newer half of the API, without gRPC where that adds nothing: updates, etags, labels, names, targets, waiting,
// watching on, applying a whole host; and the table of reasons.
#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "control/api/apply_host.h"
#include "control/daemon.h"
#include "control/model/reasons.h"
#include "control/reconcile/context/reconciler_options.h"
#include "daemon_options.h"
#include "fake_engine.h"
#include "requests.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::api_calls_test {
namespace {

v1::UpdateDiskRequest Grow(const std::string& id, uint64_t size_bytes) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  request.mutable_disk()->mutable_spec()->set_size_bytes(size_bytes);
  request.mutable_update_mask()->add_paths("spec.size_bytes");
  return request;
}

v1::CreateControllerRequest NewScsi(const std::string& id) {
  auto request = NewController(id);
  request.mutable_controller()->mutable_spec()->set_type(v1::CONTROLLER_TYPE_SCSI);
  return request;
}

v1::WaitRequest WaitFor(const std::string& name, v1::WaitCondition condition, int64_t milliseconds = 60'000) {
  v1::WaitRequest request;
  request.set_name(name);
  request.set_condition(condition);
  request.mutable_timeout()->set_seconds(milliseconds / 1000);
  request.mutable_timeout()->set_nanos(static_cast<int32_t>(milliseconds % 1000 * 1'000'000));
  return request;
}

bool Never() {
  return false;
}

class ApiCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    DaemonOptions options = OptionsIn(dir_);
    options.reconciler.retry_min_ns = kNsPerMs;
    options.reconciler.retry_max_ns = 20 * kNsPerMs;
    auto daemon = Daemon::Start(options);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
    engine_ = std::make_unique<FakeEngine>(options.engine_socket);
  }

  template <typename T>
  static void ExpectReason(const Result<T>& result, v1::Reason reason) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(ReasonName(ReasonOf(result.error())), ReasonName(reason)) << result.error().message;
  }
  HostState& state() { return daemon_->state(); }

  test::TempDir dir_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<FakeEngine> engine_;
};

// ---- Names ----

TEST_F(ApiCallsTest, AWwnIsMadeOfTheIdAloneAndIsUnique) {
  const auto a = state().disks().Create(NullDisk("a"));
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->spec().wwn().substr(0, 3), "0x3");
  EXPECT_EQ(a->spec().wwn().size(), 18u);
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("a")).ok());
  EXPECT_EQ(state().disks().Create(NullDisk("a", 2 * kMiB))->spec().wwn(), a->spec().wwn());
  auto b = NullDisk("b");
  b.mutable_disk()->mutable_spec()->set_wwn(a->spec().wwn());
  ExpectReason(state().disks().Create(b), v1::REASON_WWN_TAKEN);
  for (const char* wwn : {"0x123", "3000000000000001", "0x4000000000000001", "0x300000000000000g"}) {
    b.mutable_disk()->mutable_spec()->set_wwn(wwn);
    ExpectReason(state().disks().Create(b), v1::REASON_INVALID_FIELD);
  }
  b.mutable_disk()->mutable_spec()->set_wwn("0x5000C500A1B2C3D4");
  EXPECT_EQ(state().disks().Create(b)->spec().wwn(), "0x5000c500a1b2c3d4");
}

TEST_F(ApiCallsTest, AScsiControllerTakesEightDisksAtTheLowestFreeTargets) {
  ASSERT_TRUE(engine_->Connect());
  ASSERT_TRUE(state().controllers().Create(NewScsi("c")).ok());
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(state().disks().Create(NullDisk(fmt::format("d{}", i))).ok());
  for (uint32_t i = 0; i < 8; ++i) {
    const auto attached = state().attachments().Attach(Attach(fmt::format("d{}", i), "c"));
    ASSERT_TRUE(attached.ok()) << attached.error().message;
    EXPECT_EQ(attached->spec().target(), i);
    EXPECT_EQ(state().attachments().Attach(Attach(fmt::format("d{}", i), "c"))->spec().target(), i)
        << "again is the same";
  }
  ExpectReason(state().attachments().Attach(Attach("d8", "c")), v1::REASON_TOO_MANY_RESOURCES);
  auto taken = Attach("d8", "c");
  taken.mutable_attachment()->mutable_spec()->set_target(3);
  ExpectReason(state().attachments().Attach(taken), v1::REASON_TARGET_TAKEN);
  taken.mutable_attachment()->mutable_spec()->set_target(8);
  ExpectReason(state().attachments().Attach(taken), v1::REASON_INVALID_FIELD);
  ASSERT_TRUE(state().waits().Wait(WaitFor(AttachmentName("c", "d5"), v1::WAIT_CONDITION_READY), Never).ok());
  EXPECT_EQ(engine_->TypeOf("controllers/c"), engine::v1::CONTROLLER_TYPE_SCSI);
  EXPECT_EQ(engine_->DiskAt("controllers/c", 5).wwn() >> 60, 3u);
  ASSERT_TRUE(state().attachments().Detach(Detach("c", "d5")).ok());
  ASSERT_TRUE(state().waits().Wait(WaitFor(AttachmentName("c", "d5"), v1::WAIT_CONDITION_GONE), Never).ok());
  EXPECT_EQ(state().attachments().Attach(Attach("d8", "c"))->spec().target(), 5u);
}

// ---- Updates ----

TEST_F(ApiCallsTest, AnEtagGuardsAgainstChangesNotSeen) {
  const auto made = state().disks().Create(NullDisk("a"));
  ASSERT_TRUE(made.ok());
  v1::UpdateDiskRequest update;
  *update.mutable_disk() = *made;
  (*update.mutable_disk()->mutable_labels())["vm"] = "one";
  update.mutable_update_mask()->add_paths("labels");
  const auto updated = state().disks().Update(update);
  ASSERT_TRUE(updated.ok()) << updated.error().message;
  EXPECT_EQ(updated->labels().at("vm"), "one");
  EXPECT_NE(updated->etag(), made->etag());
  (*update.mutable_disk()->mutable_labels())["vm"] = "two";
  ExpectReason(state().disks().Update(update), v1::REASON_ETAG_MISMATCH);
  v1::DeleteDiskRequest erase = DeleteDisk("a");
  erase.set_etag(made->etag());
  ExpectReason(state().disks().Delete(erase), v1::REASON_ETAG_MISMATCH);
  state().disks().Report("a", v1::DISK_STATE_READY, "a status");
  EXPECT_EQ(state().disks().Get(GetDisk("a"))->etag(), updated->etag()) << "a status is no intent";
  erase.set_etag(updated->etag());
  EXPECT_TRUE(state().disks().Delete(erase).ok());
  EXPECT_TRUE(state().disks().Delete(erase).ok()) << "gone is gone";
}

TEST_F(ApiCallsTest, OnlyKnownPathsAreUpdated) {
  ASSERT_TRUE(state().disks().Create(NullDisk("a")).ok());
  auto update = Grow("a", 2 * kMiB);
  update.clear_update_mask();
  ExpectReason(state().disks().Update(update), v1::REASON_INVALID_UPDATE_MASK);
  update.mutable_update_mask()->add_paths("spec.serial");
  ExpectReason(state().disks().Update(update), v1::REASON_INVALID_UPDATE_MASK);
  ExpectReason(state().disks().Update(Grow("none", kMiB)), v1::REASON_RESOURCE_NOT_FOUND);
  ExpectReason(state().disks().Update(Grow("a", kMiB / 2)), v1::REASON_DISK_CANNOT_SHRINK);
  ExpectReason(state().disks().Update(Grow("a", kMiB + 1)), v1::REASON_INVALID_FIELD);
  EXPECT_TRUE(state().disks().Update(Grow("a", kMiB)).ok());
}

TEST_F(ApiCallsTest, LabelsAreBounded) {
  auto request = NullDisk("a");
  auto& labels = *request.mutable_disk()->mutable_labels();
  for (const char* key : {"", "A", "1", "a-", "a b"}) {
    labels.clear();
    labels[key] = "";
    ExpectReason(state().disks().Create(request), v1::REASON_INVALID_FIELD);
  }
  labels.clear();
  labels["a"] = std::string(257, 'x');
  ExpectReason(state().disks().Create(request), v1::REASON_INVALID_FIELD);
  labels["a"] = "line\nbreak";
  ExpectReason(state().disks().Create(request), v1::REASON_INVALID_FIELD);
  labels["a"] = "x=y";
  ASSERT_TRUE(state().disks().Create(request).ok());
  EXPECT_TRUE(state().disks().Create(request).ok());
  labels["a"] = "z";
  ExpectReason(state().disks().Create(request), v1::REASON_CONTENT_DIFFERS);
}

TEST_F(ApiCallsTest, AFileAndMemoryGrowAndTheGuestIsTold) {
  ASSERT_TRUE(engine_->Connect());
  const test::TempDir files;
  const std::string path = files / "disk.img";
  ASSERT_TRUE(state().controllers().Create(NewScsi("c")).ok());
  ASSERT_TRUE(state().disks().Create(FileDisk("f", path, true)).ok());
  ASSERT_TRUE(state().disks().Create(MemoryDisk("m")).ok());
  for (const char* disk : {"f", "m"}) {
    ASSERT_TRUE(state().attachments().Attach(Attach(disk, "c")).ok());
    ASSERT_TRUE(
        state().waits().Wait(WaitFor(AttachmentName("c", disk), v1::WAIT_CONDITION_READY), Never).ok());
  }
  engine_->FailResizes(1);
  ASSERT_TRUE(state().disks().Update(Grow("f", 2 * kMiB)).ok());
  EXPECT_EQ(std::filesystem::file_size(path), 2 * kMiB);
  ASSERT_TRUE(state().disks().Update(Grow("m", 3 * kMiB)).ok());
  const auto grown = state().waits().Wait(WaitFor(AttachmentName("c", "f"), v1::WAIT_CONDITION_READY), Never);
  ASSERT_TRUE(grown.ok()) << grown.error().message;
  EXPECT_EQ(grown->attachment().status().size_bytes(), 2 * kMiB);
  const auto memory = state().waits().Wait(WaitFor("disks/m", v1::WAIT_CONDITION_READY), Never);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(memory->disk().status().size_bytes(), 3 * kMiB);
  EXPECT_EQ(engine_->DiskAt("controllers/c", 1).size_bytes(), 3 * kMiB);
  struct stat info {};
  ASSERT_EQ(fstat(engine_->MemoryOf("disks/m").get(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), 3 * kMiB) << "the same memory";
}

TEST_F(ApiCallsTest, AnEngineThatWasAwayIsToldOfTheSizeWhenItIsBack) {
  ASSERT_TRUE(engine_->Connect());
  ASSERT_TRUE(state().controllers().Create(NewScsi("c")).ok());
  ASSERT_TRUE(state().disks().Create(NullDisk("d")).ok());
  ASSERT_TRUE(state().attachments().Attach(Attach("d", "c")).ok());
  ASSERT_TRUE(state().waits().Wait(WaitFor(AttachmentName("c", "d"), v1::WAIT_CONDITION_READY), Never).ok());
  engine_->Disconnect();
  ASSERT_TRUE(state().disks().Update(Grow("d", 4 * kMiB)).ok());
  ASSERT_TRUE(engine_->Connect());
  ASSERT_TRUE(state().waits().Wait(WaitFor(AttachmentName("c", "d"), v1::WAIT_CONDITION_READY), Never).ok());
  EXPECT_EQ(engine_->DiskAt("controllers/c", 0).size_bytes(), 4 * kMiB);
}

// ---- Waiting ----

TEST_F(ApiCallsTest, WaitEndsWithAReason) {
  ExpectReason(state().waits().Wait(WaitFor("disks/a", v1::WAIT_CONDITION_READY), Never),
               v1::REASON_RESOURCE_NOT_FOUND);
  ExpectReason(state().waits().Wait(WaitFor("disk a", v1::WAIT_CONDITION_READY), Never),
               v1::REASON_INVALID_NAME);
  EXPECT_EQ(state().waits().Wait(WaitFor("disks/a", v1::WAIT_CONDITION_GONE), Never)->gone(), "disks/a");
  ASSERT_TRUE(state().controllers().Create(NewController("c")).ok());
  const auto late = state().waits().Wait(WaitFor("controllers/c", v1::WAIT_CONDITION_READY, 1), Never);
  ExpectReason(late, v1::REASON_WAIT_TIMED_OUT);
  EXPECT_NE(late.error().message.find("PENDING"), std::string::npos) << late.error().message;
  auto endless = WaitFor("controllers/c", v1::WAIT_CONDITION_READY, 3'600'001);
  ExpectReason(state().waits().Wait(endless, Never), v1::REASON_INVALID_FIELD);
  EXPECT_FALSE(
      state().waits().Wait(WaitFor("controllers/c", v1::WAIT_CONDITION_READY), [] { return true; }).ok());
}

TEST_F(ApiCallsTest, WaitDoesNotMissAFailure) {
  ASSERT_TRUE(engine_->Connect());
  engine_->FailAttaches(1'000'000, "io", "the cable is out");
  ASSERT_TRUE(state().controllers().Create(NewController("c")).ok());
  ASSERT_TRUE(state().disks().Create(NullDisk("d")).ok());
  ASSERT_TRUE(state().attachments().Attach(Attach("d", "c")).ok());
  auto wait = WaitFor(AttachmentName("c", "d"), v1::WAIT_CONDITION_READY);
  wait.set_fail_fast(true);
  const auto failed = state().waits().Wait(wait, Never);
  ExpectReason(failed, v1::REASON_WAIT_FAILED);
  EXPECT_NE(failed.error().message.find("the cable is out"), std::string::npos) << failed.error().message;
  engine_->FailAttaches(0, "", "");
  wait.set_fail_fast(false);
  const auto ready = state().waits().Wait(wait, Never);
  ASSERT_TRUE(ready.ok()) << ready.error().message;
  EXPECT_EQ(ready->attachment().status().failures(), 0u);
}

TEST_F(ApiCallsTest, StoppingEndsAWait) {
  ASSERT_TRUE(state().controllers().Create(NewController("c")).ok());
  std::thread stopper([&] { state().StopWatchers(); });
  ExpectReason(state().waits().Wait(WaitFor("controllers/c", v1::WAIT_CONDITION_READY), Never),
               v1::REASON_STOPPING);
  stopper.join();
}

// ---- Watching on ----

TEST_F(ApiCallsTest, AWatcherGoesOnWhereItWas) {
  const uint64_t seen = state().disks().Create(NullDisk("a"))->revision();
  const uint64_t later = state().disks().Create(NullDisk("b"))->revision();
  ASSERT_TRUE(state().disks().Delete(DeleteDisk("a")).ok());
  const auto watcher = state().Watch(seen);
  ASSERT_TRUE(watcher.ok()) << watcher.error().message;
  const auto next = [&] { return *(*watcher)->Next(std::chrono::seconds(60)); };
  auto event = next();
  EXPECT_EQ(event->disk().name(), "disks/b");
  EXPECT_EQ(event->revision(), later);
  EXPECT_EQ(next()->gone(), "disks/a");
  EXPECT_TRUE(next()->has_synced());
  ExpectReason(state().Watch(state().NewestRevision() + 1), v1::REASON_WATCH_REVISION_GONE);
}

TEST(WatchHubTest, TheHistoryIsBoundedAndShared) {
  WatchHub hub;
  hub.StartHistory(10);
  const auto watcher = hub.Subscribe({});
  for (uint64_t i = 1; i <= WatchHub::kHistoryMax + 5; ++i) {
    auto event = std::make_shared<v1::WatchResponse>();
    event->set_revision(10 + i);
    hub.Publish(event);
  }
  EXPECT_FALSE(hub.Since(14).ok());
  const auto rest = hub.Since(15);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->size(), WatchHub::kHistoryMax);
  EXPECT_EQ(rest->front()->revision(), 16u);
}

// ---- Applying a host ----

class ApplyTest : public ApiCallsTest {
 protected:
  void SetUp() override {
    ApiCallsTest::SetUp();
    ASSERT_TRUE(engine_->Connect());
  }
  static v1::ApplyHostRequest Host() {
    v1::ApplyHostRequest request;
    for (const char* id : {"root", "data"}) {
      v1::Disk& disk = *request.add_disks();
      disk = NullDisk(id).disk();
      disk.set_name(DiskName(id));
      v1::Attachment& attachment = *request.add_attachments();
      attachment.set_name(AttachmentName("vm1", id));
      attachment.mutable_spec()->set_disk(DiskName(id));
    }
    v1::Controller& controller = *request.add_controllers();
    controller = NewScsi("vm1").controller();
    controller.set_name("controllers/vm1");
    return request;
  }
  // Removes as many objects as there may be.
  static v1::ApplyHostRequest Empty(uint32_t max_removals) {
    v1::ApplyHostRequest request;
    request.set_mode(v1::APPLY_MODE_EXACT);
    request.set_allow_empty(true);
    request.set_max_removals(max_removals);
    return request;
  }
  v1::Reason ReasonOfApply(const v1::ApplyHostRequest& request) {
    const auto response = ApplyHostCall(state(), Never).Apply(request);
    return response.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(response.error());
  }
  static constexpr const char* kAllUnchanged =
      "UNCHANGED disks/root, UNCHANGED disks/data, UNCHANGED controllers/vm1, UNCHANGED "
      "controllers/vm1/attachments/root, UNCHANGED controllers/vm1/attachments/data";
  // "CREATED disks/root, ..."
  std::string Apply(const v1::ApplyHostRequest& request) {
    const auto response = ApplyHostCall(state(), Never).Apply(request);
    if (!response.ok()) return response.error().message;
    std::string text;
    for (const v1::ApplyResult& result : response->results()) {
      const std::string action = v1::ApplyAction_Name(result.action()).substr(sizeof("APPLY_ACTION_") - 1);
      text += (text.empty() ? "" : ", ") + action + " " + result.name();
    }
    return text;
  }
};

TEST_F(ApplyTest, AHostIsMadeKeptChangedAndEmptied) {
  auto request = Host();
  request.set_dry_run(true);
  const std::string created =
      "CREATED disks/root, CREATED disks/data, CREATED controllers/vm1, CREATED "
      "controllers/vm1/attachments/root, "
      "CREATED controllers/vm1/attachments/data";
  EXPECT_EQ(Apply(request), created);
  EXPECT_FALSE(state().disks().Get(GetDisk("root")).ok()) << "a dry run does nothing";
  request.set_dry_run(false);
  EXPECT_EQ(Apply(request), created);
  EXPECT_EQ(Apply(request), kAllUnchanged);

  request.mutable_disks(0)->mutable_spec()->set_size_bytes(8 * kMiB);
  request.mutable_disks(1)->mutable_spec()->set_serial("another");
  EXPECT_EQ(Apply(request),
            "UPDATED disks/root, FAILED disks/data, UNCHANGED controllers/vm1, UNCHANGED "
            "controllers/vm1/attachments/root, UNCHANGED controllers/vm1/attachments/data");

  // The disk moves to another controller, in one call: it is detached there before it is attached here.
  auto moved = Host();
  moved.mutable_disks(0)->mutable_spec()->set_size_bytes(8 * kMiB);
  moved.set_mode(v1::APPLY_MODE_EXACT);
  moved.set_max_removals(4);
  moved.mutable_disks()->RemoveLast();
  moved.mutable_attachments()->RemoveLast();
  moved.mutable_controllers(0)->set_name("controllers/vm2");
  moved.mutable_controllers(0)->mutable_spec()->set_socket_path("/run/vm/vm2");
  moved.mutable_attachments(0)->set_name("controllers/vm2/attachments/root");
  EXPECT_EQ(Apply(moved),
            "DELETED controllers/vm1/attachments/data, DELETED controllers/vm1/attachments/root, DELETED "
            "controllers/vm1, DELETED disks/data, UNCHANGED disks/root, CREATED controllers/vm2, CREATED "
            "controllers/vm2/attachments/root");
  EXPECT_EQ(Apply(Empty(3)),
            "DELETED controllers/vm2/attachments/root, DELETED controllers/vm2, DELETED disks/root");
}

TEST_F(ApplyTest, ClustersComeBeforeTheirDisksAndGoAfterThem) {
  v1::ApplyHostRequest request;
  v1::Cluster& cluster = *request.add_clusters();
  cluster.set_name("clusters/ceph");
  cluster.mutable_spec()->set_conf_file("/etc/ceph/ceph.conf");
  cluster.mutable_spec()->set_user("cleat");
  v1::Disk& disk = *request.add_disks();
  disk = NullDisk("db").disk();
  disk.set_name("disks/db");
  disk.mutable_spec()->mutable_rbd()->set_cluster("clusters/ceph");
  disk.mutable_spec()->mutable_rbd()->set_pool("vms");
  disk.mutable_spec()->mutable_rbd()->set_image("db");
  request.set_dry_run(true);
  EXPECT_EQ(Apply(request), "CREATED clusters/ceph, CREATED disks/db");
  request.set_dry_run(false);
  EXPECT_EQ(Apply(request), "CREATED clusters/ceph, CREATED disks/db");
  EXPECT_EQ(Apply(request), "UNCHANGED clusters/ceph, UNCHANGED disks/db");
  cluster.mutable_spec()->set_monitors("10.0.0.1");
  EXPECT_EQ(Apply(request), "UPDATED clusters/ceph, UNCHANGED disks/db");
  // What an answer shows declares the same.
  v1::GetClusterRequest get;
  get.set_name("clusters/ceph");
  cluster = *state().clusters().Get(get);
  EXPECT_EQ(Apply(request), "UNCHANGED clusters/ceph, UNCHANGED disks/db");
  EXPECT_EQ(Apply(Empty(2)), "DELETED disks/db, DELETED clusters/ceph");
}

TEST_F(ApplyTest, SubsystemsComeBeforeTheirDisksAndGoAfterThem) {
  v1::ApplyHostRequest request;
  v1::Subsystem& subsystem = *request.add_subsystems();
  subsystem.set_name("subsystems/array");
  subsystem.mutable_spec()->set_nqn("nqn.2014-08.org.example:array");
  subsystem.mutable_spec()->add_addresses("10.0.0.1");
  request.set_dry_run(true);
  EXPECT_EQ(Apply(request), "CREATED subsystems/array");
  request.set_dry_run(false);
  EXPECT_EQ(Apply(request), "CREATED subsystems/array");
  EXPECT_EQ(Apply(request), "UNCHANGED subsystems/array") << "who this host is was not said either time";
  subsystem.mutable_spec()->set_data_digest(true);
  EXPECT_EQ(Apply(request), "UPDATED subsystems/array");
  v1::Disk& disk = *request.add_disks();
  disk = NullDisk("db").disk();
  disk.set_name("disks/db");
  disk.mutable_spec()->mutable_nvme_tcp()->set_subsystem("subsystems/array");
  disk.mutable_spec()->mutable_nvme_tcp()->set_namespace_uuid("4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11");
  EXPECT_EQ(Apply(request), "UNCHANGED subsystems/array, CREATED disks/db");
  subsystem.mutable_spec()->set_data_digest(false);
  for (const bool dry_run : {true, false}) {
    request.set_dry_run(dry_run);
    EXPECT_EQ(Apply(request), "FAILED subsystems/array, UNCHANGED disks/db") << "it has a disk";
  }
  subsystem.mutable_spec()->set_data_digest(true);
  subsystem.mutable_spec()->add_addresses("10.0.1.1");
  EXPECT_EQ(Apply(request), "UPDATED subsystems/array, UNCHANGED disks/db") << "which is not attached";
  v1::ApplyHostRequest without = Empty(1);
  subsystem.mutable_spec()->set_data_digest(false);
  *without.add_subsystems() = subsystem;
  without.set_dry_run(true);
  EXPECT_EQ(Apply(without), "DELETED disks/db, UPDATED subsystems/array") << "its disk would be gone by then";
  subsystem.mutable_spec()->set_data_digest(true);
  // What an answer shows declares the same.
  v1::GetSubsystemRequest get;
  get.set_name("subsystems/array");
  subsystem = *state().subsystems().Get(get);
  EXPECT_EQ(Apply(request), "UNCHANGED subsystems/array, UNCHANGED disks/db");
  EXPECT_EQ(Apply(Empty(2)), "DELETED disks/db, DELETED subsystems/array");
}

TEST_F(ApplyTest, ARequestThatNamesNothingRemovesNothingUnlessThatIsMeant) {
  Apply(Host());
  v1::ApplyHostRequest request = Empty(5);
  request.set_allow_empty(false);
  for (const bool dry_run : {true, false}) {
    request.set_dry_run(dry_run);
    EXPECT_EQ(ReasonOfApply(request), v1::REASON_HOST_EMPTIED);
  }
  EXPECT_EQ(Apply(Host()), kAllUnchanged);
  request.set_allow_empty(true);
  Apply(request);
  EXPECT_FALSE(state().disks().Get(GetDisk("root")).ok());
}

TEST_F(ApplyTest, DisksThatExactRemovesAreKept) {
  Apply(Host());
  v1::ApplyHostRequest request = Empty(100);
  const auto response = ApplyHostCall(state(), Never).Apply(request);
  ASSERT_TRUE(response.ok());
  EXPECT_TRUE(response->complete());
  EXPECT_EQ(state().kept_disks().Count(), 2U);
  for (const char* name : {"disks/root", "disks/data"}) {
    v1::UndeleteDiskRequest undelete;
    undelete.set_name(name);
    EXPECT_TRUE(state().kept_disks().Undelete(undelete).ok()) << name;
  }
}

TEST_F(ApplyTest, NoMoreIsRemovedThanTheRequestAllows) {
  Apply(Host());
  v1::ApplyHostRequest request = Host();
  request.set_mode(v1::APPLY_MODE_EXACT);
  EXPECT_EQ(Apply(request), kAllUnchanged) << "nothing is to be removed";
  request.mutable_attachments()->RemoveLast();
  request.mutable_disks()->RemoveLast();
  const std::string removed =
      "DELETED controllers/vm1/attachments/data, DELETED disks/data, UNCHANGED disks/root, UNCHANGED "
      "controllers/vm1, UNCHANGED controllers/vm1/attachments/root";
  for (const uint32_t allowed : {0, 1}) {
    request.set_max_removals(allowed);
    EXPECT_EQ(ReasonOfApply(request), v1::REASON_TOO_MANY_REMOVALS);
    EXPECT_EQ(Apply(Host()), kAllUnchanged);
  }
  request.set_dry_run(true);
  EXPECT_EQ(Apply(request), removed) << "a dry run tells how many there are";
  request.set_dry_run(false);
  request.set_max_removals(2);
  EXPECT_EQ(Apply(request), removed);
}

TEST_F(ApplyTest, APlanHoldsOnlyAsLongAsTheHostStays) {
  Apply(Host());
  v1::ApplyHostRequest request = Empty(100);
  request.set_dry_run(true);
  const auto plan = [&] { return ApplyHostCall(state(), Never).Apply(request)->etag(); };
  const auto stale = [&](const std::string& etag) {
    v1::ApplyHostRequest again = Empty(100);
    again.set_etag(etag);
    return ReasonOfApply(again) == v1::REASON_ETAG_MISMATCH;
  };
  std::string etag = plan();
  EXPECT_EQ(plan(), etag);
  ASSERT_TRUE(state().disks().Create(NullDisk("another")).ok());
  EXPECT_TRUE(stale(etag)) << "made since";
  etag = plan();
  v1::UpdateDiskRequest update;
  update.mutable_disk()->set_name("disks/another");
  (*update.mutable_disk()->mutable_labels())["a"] = "b";
  update.mutable_update_mask()->add_paths("labels");
  ASSERT_TRUE(state().disks().Update(update).ok());
  EXPECT_TRUE(stale(etag)) << "changed since";
  etag = plan();
  v1::DeleteDiskRequest remove;
  remove.set_name("disks/another");
  ASSERT_TRUE(state().disks().Delete(remove).ok());
  EXPECT_TRUE(stale(etag)) << "removed since";
  EXPECT_EQ(Apply(Host()), kAllUnchanged);
  EXPECT_FALSE(stale(plan()));
}

TEST_F(ApplyTest, WhatChangesMeanwhileIsNotRemoved) {
  Apply(Host());
  engine_->Hold("Detach");
  bool changed = false;
  ApplyHostCall applier(state(), [&] {
    if (!std::exchange(changed, true)) {
      v1::UpdateDiskRequest update;
      update.mutable_disk()->set_name("disks/root");
      (*update.mutable_disk()->mutable_labels())["a"] = "b";
      update.mutable_update_mask()->add_paths("labels");
      EXPECT_TRUE(state().disks().Update(update).ok());
      engine_->Release();
    }
    return false;
  });
  const auto response = applier.Apply(Empty(100));
  ASSERT_TRUE(response.ok());
  EXPECT_TRUE(changed);
  std::string failed;
  for (const v1::ApplyResult& result : response->results()) {
    if (result.action() == v1::APPLY_ACTION_FAILED) failed += result.name();
  }
  EXPECT_EQ(failed, "disks/root");
  EXPECT_TRUE(state().disks().Get(GetDisk("root")).ok());
}

TEST_F(ApplyTest, ARequestThatMakesNoSenseDoesNothing) {
  auto request = Host();
  *request.add_disks() = request.disks(0);
  EXPECT_NE(Apply(request).find("twice"), std::string::npos);
  request = Host();
  request.mutable_disks(0)->set_name("controllers/root");
  EXPECT_NE(Apply(request).find("not a name"), std::string::npos);
  EXPECT_FALSE(state().disks().Get(GetDisk("data")).ok());
}

// ---- Reasons ----

TEST(ReasonsTest, EachReasonHasACodeAMeaningAndAnAction) {
  for (const v1::Reason reason : AllReasons()) {
    const v1::ReasonInfo& info = InfoOf(reason);
    EXPECT_FALSE(info.meaning().empty()) << ReasonName(reason);
    EXPECT_FALSE(info.action().empty()) << ReasonName(reason);
    EXPECT_FALSE(info.code().empty()) << ReasonName(reason);
  }
}

// The table in the documentation is the one in the code.
TEST(ReasonsTest, TheDocumentationSaysTheSame) {
  std::ifstream file(test::SourceFile("docs/api.md"));
  std::set<std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `") && std::count(line.begin(), line.end(), '|') == 5) documented.insert(line);
  }
  for (const v1::Reason reason : AllReasons()) {
    const v1::ReasonInfo& info = InfoOf(reason);
    const std::string row = fmt::format("| `{}` | `{}` | {} | {} |", ReasonName(reason), info.code(),
                                        info.meaning(), info.action());
    EXPECT_EQ(documented.erase(row), 1u) << "docs/api.md lacks:\n" << row;
  }
  EXPECT_TRUE(documented.empty()) << "docs/api.md has what the code has not: " << *documented.begin();
}

}  // namespace
}  // namespace cleat::control::api_calls_test
