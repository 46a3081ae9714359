// SPDX-License-Identifier: Apache-2.0
// What a slow disk under the store does: nobody who only reads waits for it, nothing is shown to anybody before it is durable, and
// changes of one object keep their order. Costs 2 s.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "control/state/writes/store_writes.h"
#include "held_syncs.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::slow_store_test {
namespace {

class SlowStore {
 public:
  SlowStore() {
    Open();
    ReportEngines(0);
  }

  // Two are connected, which take so many controllers each; 0: any number.
  void ReportEngines(uint32_t controllers_max) {
    for (const char* engine : {"e0", "e1"}) {
      v1::EngineStatus status;
      status.set_connected(true);
      status.set_protocol(kProtocolMoves);
      status.set_controllers_max(controllers_max);
      state().engines().Report(engine, status);
    }
  }

  HostState& state() { return *state_; }
  void Open() {
    state_.reset();
    store_.reset();
    auto store = Store::Open(dir_.path());
    CLEAT_CHECK(store.ok());
    store_ = std::move(*store);
    auto state =
        HostState::Load(*store_, memory_, WatchHub::kQueueMax, nullptr, KeepDeleted{.time_s = 86'400});
    CLEAT_CHECK(state.ok());
    state_ = std::move(*state);
  }

  // Straight into the store, as if they had been there when it was opened.
  void Put(const StoreChange& rows) {
    CLEAT_CHECK(store_->Apply(rows).ok());
    Open();
  }

  std::string EngineOf(const std::string& controller) {
    return state().controllers().Get(GetController(controller))->status().engine();
  }

  // All that callers see, or (`stored`) that of it which is in the store.
  std::string Seen(bool stored = false) {
    std::string seen;
    const auto add = [&](const auto& resources) {
      for (auto resource : resources) {
        if (stored) resource.clear_status();
        if (stored) resource.clear_revision();
        seen += resource.ShortDebugString() + "\n";
      }
    };
    v1::ListDisksRequest disks;
    disks.set_show_deleted(true);
    add(state().disks().List(disks)->disks());
    add(state().clusters().List({})->clusters());
    add(state().groups().List({})->groups());
    add(state().controllers().List({})->controllers());
    v1::ListAttachmentsRequest attachments;
    attachments.set_parent("controllers/-");
    add(state().attachments().List(attachments)->attachments());
    if (!stored) add(state().engines().List({})->engines());
    return seen;
  }

  // What the reconciler would look at.
  bool AnyMarked() {
    const ChangedIntent changed = state().TakeChanged();
    return !changed.controllers.empty() || !changed.disks.empty() || !changed.groups.empty() ||
           !changed.clusters.empty() || changed.upgrade;
  }

 private:
  test::TempDir dir_;
  MemfdKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

v1::CreateClusterRequest NewCluster(const std::string& id) {
  v1::CreateClusterRequest request;
  request.set_cluster_id(id);
  request.mutable_cluster()->mutable_spec()->set_monitors("10.0.0.1:6789");
  request.mutable_cluster()->mutable_spec()->set_user("cleat");
  request.mutable_cluster()->mutable_spec()->set_conf_file("/etc/ceph/" + id + ".conf");
  return request;
}

v1::UpdateDiskRequest LabelDisk(const std::string& id, const std::string& value) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  (*request.mutable_disk()->mutable_labels())["label"] = value;
  request.mutable_update_mask()->add_paths("labels");
  return request;
}

v1::CreateControllerRequest OnEngine(const std::string& id, const std::string& engine) {
  v1::CreateControllerRequest request = NewController(id);
  request.mutable_controller()->mutable_spec()->set_engine(EngineName(engine));
  return request;
}

struct Change {
  std::string name;
  std::function<void(HostState&)> before;
  std::function<bool(HostState&)> change;
  bool watched = true;  // whether watchers hear of it
};

void Attached(HostState& state) {
  ASSERT_TRUE(state.disks().Create(NullDisk("d")).ok());
  ASSERT_TRUE(state.controllers().Create(OnEngine("c", "e0")).ok());
  ASSERT_TRUE(state.attachments().Attach(Attach("d", "c")).ok());
}

void MakeDisk(HostState& state) {
  ASSERT_TRUE(state.disks().Create(NullDisk("d")).ok());
}

void MakeController(HostState& state) {
  ASSERT_TRUE(state.controllers().Create(OnEngine("c", "e0")).ok());
}

void MakeGroup(HostState& state) {
  ASSERT_TRUE(state.groups().Create(NewGroup("g")).ok());
}

void MakeCluster(HostState& state) {
  ASSERT_TRUE(state.clusters().Create(NewCluster("k")).ok());
}

void MakeDeleted(HostState& state) {
  MakeDisk(state);
  ASSERT_TRUE(state.disks().Delete(DeleteDisk("d")).ok());
}

void MakeTombstones(HostState& state) {
  Attached(state);
  ASSERT_TRUE(state.attachments().Detach(Detach("c", "d")).ok());
}

const std::vector<Change>& AllChanges() {
  static const std::vector<Change> kAll{
      {"CreateDisk", {}, [](HostState& s) { return s.disks().Create(NullDisk("d")).ok(); }},
      {"UpdateDisk", MakeDisk, [](HostState& s) { return s.disks().Update(LabelDisk("d", "x")).ok(); }},
      {"LimitDisk", MakeDisk, [](HostState& s) { return s.disks().Update(LimitDisk("d", 7)).ok(); }},
      {"DeleteDisk", MakeDisk, [](HostState& s) { return s.disks().Delete(DeleteDisk("d")).ok(); }},
      {"UndeleteDisk", MakeDeleted,
       [](HostState& s) {
         v1::UndeleteDiskRequest request;
         request.set_name("disks/d");
         return s.kept_disks().Undelete(request).ok();
       }},
      {"PurgeDisk", MakeDeleted,
       [](HostState& s) {
         v1::PurgeDiskRequest request;
         request.set_name("disks/d");
         return s.kept_disks().Purge(request).ok();
       },
       false},
      {"CreateCluster", {}, [](HostState& s) { return s.clusters().Create(NewCluster("k")).ok(); }},
      {"UpdateCluster", MakeCluster,
       [](HostState& s) {
         v1::UpdateClusterRequest request;
         *request.mutable_cluster() = NewCluster("k").cluster();
         request.mutable_cluster()->set_name("clusters/k");
         request.mutable_cluster()->mutable_spec()->set_user("other");
         request.mutable_update_mask()->add_paths("spec");
         return s.clusters().Update(request).ok();
       }},
      {"DeleteCluster", MakeCluster,
       [](HostState& s) {
         v1::DeleteClusterRequest request;
         request.set_name("clusters/k");
         return s.clusters().Delete(request).ok();
       }},
      {"CreateGroup", {}, [](HostState& s) { return s.groups().Create(NewGroup("g")).ok(); }},
      {"UpdateGroup", MakeGroup, [](HostState& s) { return s.groups().Update(LimitGroup("g", 9)).ok(); }},
      {"DeleteGroup", MakeGroup, [](HostState& s) { return s.groups().Delete(DeleteGroup("g")).ok(); }},
      {"CreateController", {}, [](HostState& s) { return s.controllers().Create(NewController("c")).ok(); }},
      {"UpdateController", MakeController,
       [](HostState& s) {
         v1::UpdateControllerRequest request;
         request.mutable_controller()->set_name("controllers/c");
         (*request.mutable_controller()->mutable_labels())["label"] = "x";
         request.mutable_update_mask()->add_paths("labels");
         return s.controllers().Update(request).ok();
       }},
      {"DeleteController", MakeController,
       [](HostState& s) { return s.controllers().Delete(DeleteController("c")).ok(); }},
      {"ForgetController",
       [](HostState& s) {
         MakeController(s);
         ASSERT_TRUE(s.controllers().Delete(DeleteController("c")).ok());
       },
       [](HostState& s) { return s.controllers().Forget("c").ok(); }},
      {"MoveController", MakeController,
       [](HostState& s) {
         return s.controllers().Move({{"c", "e1"}}).ok();
       }},
      {"AttachDisk",
       [](HostState& s) {
         MakeDisk(s);
         MakeController(s);
       },
       [](HostState& s) { return s.attachments().Attach(Attach("d", "c")).ok(); }},
      {"DetachDisk", Attached, [](HostState& s) { return s.attachments().Detach(Detach("c", "d")).ok(); }},
      {"ForgetAttachment", MakeTombstones,
       [](HostState& s) { return s.attachments().Forget("c", "d").ok(); }},
      {"AMigratedDisk", Attached,
       [](HostState& s) {
         s.attachments().Report("e0", {.controller = "c", .target = 0},
                                {.state = v1::ATTACHMENT_STATE_RELEASED});
         return true;
       }},
      {"BeginUpgrade", MakeController,
       [](HostState& s) {
         v1::UpgradeEngineRequest request;
         request.set_name("engines/e0");
         request.set_to("engines/e1");
         return s.upgrades().Begin(request).ok();
       }},
      {"EndOfAnUpgrade", MakeController,
       [](HostState& s) {
         v1::UpgradeStatus status;
         status.set_to("engines/e1");
         status.set_state(v1::UPGRADE_STATE_DONE);
         s.upgrades().Report("e0", status, Upgrades::Keep::kStored);
         return true;
       }},
  };
  return kAll;
}

class SlowStoreTest : public testing::TestWithParam<Change> {};

TEST_P(SlowStoreTest, IsShownWhenItIsDurableAndHoldsUpNobodyBefore) {
  SlowStore host;
  if (GetParam().before) GetParam().before(host.state());
  host.AnyMarked();
  const std::string before = host.Seen();
  const std::string stored_before = host.Seen(true);
  auto watcher = host.state().Watch(host.state().NewestRevision());
  ASSERT_TRUE(watcher.ok());
  ASSERT_TRUE((*(*watcher)->Next(std::chrono::milliseconds(0)))->has_synced());

  HeldSyncs syncs;
  bool done = false;
  std::thread caller([&] { done = GetParam().change(host.state()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld()) << "nothing is written";
  EXPECT_EQ(host.Seen(), before);  // returns while the sync hangs
  EXPECT_FALSE(host.AnyMarked()) << "an engine would be told what may be lost";
  EXPECT_EQ(*(*watcher)->Next(std::chrono::milliseconds(0)), nullptr)
      << "a watcher was told what may be lost";
  HeldSyncs::Release();
  caller.join();
  EXPECT_TRUE(done);
  EXPECT_NE(host.Seen(), before);
  EXPECT_EQ(*(*watcher)->Next(std::chrono::milliseconds(0)) != nullptr, GetParam().watched);

  const std::string stored = host.Seen(true);
  host.Open();
  EXPECT_EQ(host.Seen(true), stored);
}

INSTANTIATE_TEST_SUITE_P(, SlowStoreTest, testing::ValuesIn(AllChanges()),
                         [](const auto& each) { return each.param.name; });

// The second one looks at the disk when the first one is durable.
TEST(SlowStoreOrder, ChangesOfOneObjectKeepTheirOrder) {
  SlowStore host;
  MakeDisk(host.state());
  const std::string etag = host.state().disks().Get(GetDisk("d"))->etag();
  HeldSyncs syncs;
  std::thread first([&] { EXPECT_TRUE(host.state().disks().Update(LabelDisk("d", "first")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  Result<v1::Disk> refused = Error(ErrorCode::kInternal, "not called");
  Result<v1::Disk> last = Error(ErrorCode::kInternal, "not called");
  std::thread second([&] {
    auto with_etag = LabelDisk("d", "with the etag of before");
    with_etag.mutable_disk()->set_etag(etag);
    refused = host.state().disks().Update(with_etag);
    last = host.state().disks().Update(LabelDisk("d", "last"));
  });
  EXPECT_TRUE(host.state().disks().Get(GetDisk("d"))->labels().empty());
  HeldSyncs::Release();
  first.join();
  second.join();
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_ETAG_MISMATCH)
      << "it was checked against what was not there yet";
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(host.state().disks().Get(GetDisk("d"))->labels().at("label"), "last");
  host.Open();
  EXPECT_EQ(host.state().disks().Get(GetDisk("d"))->labels().at("label"), "last");
}

// An engine is told of the addresses as soon as the attachment is durable.
TEST(SlowStoreOrder, ASubsystemStaysWhereItIsWhileADiskOfItIsBeingAttached) {
  SlowStore host;
  ASSERT_TRUE(host.state().subsystems().Create(NewSubsystem("array")).ok());
  ASSERT_TRUE(host.state().disks().Create(NvmeDisk("d")).ok());
  MakeController(host.state());
  v1::UpdateSubsystemRequest update;
  *update.mutable_subsystem() = NewSubsystem("array").subsystem();
  update.mutable_subsystem()->set_name("subsystems/array");
  update.mutable_subsystem()->mutable_spec()->set_addresses(0, "10.0.0.2");
  update.mutable_update_mask()->add_paths("spec");
  HeldSyncs syncs;
  std::thread attach([&] { EXPECT_TRUE(host.state().attachments().Attach(Attach("d", "c")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  Result<v1::Subsystem> moved = Error(ErrorCode::kInternal, "not called");
  std::thread mover([&] { moved = host.state().subsystems().Update(update); });
  EXPECT_TRUE(host.state().subsystems().CheckUpdate(update).ok()) << "nothing is attached yet";
  HeldSyncs::Release();
  attach.join();
  mover.join();
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(ReasonOf(moved.error()), v1::REASON_SUBSYSTEM_IN_USE) << moved.error().message;
}

TEST(SlowStoreOrder, ChangesOfAllKindsShareACommit) {
  SlowStore host;
  MakeDisk(host.state());
  HeldSyncs syncs;
  std::vector<std::thread> callers;
  callers.emplace_back([&] { EXPECT_TRUE(host.state().disks().Update(LabelDisk("d", "x")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  const size_t before = HeldSyncs::count();
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back(
        [&, i] { EXPECT_TRUE(host.state().disks().Create(NullDisk(fmt::format("d{}", i))).ok()); });
    callers.emplace_back([&, i] {
      EXPECT_TRUE(host.state().controllers().Create(NewController(fmt::format("c{}", i))).ok());
    });
  }
  callers.emplace_back([&] { EXPECT_TRUE(host.state().clusters().Create(NewCluster("k")).ok()); });
  callers.emplace_back([&] { EXPECT_TRUE(host.state().groups().Create(NewGroup("g")).ok()); });
  while (host.state().waiting_writes() < 10) std::this_thread::yield();
  HeldSyncs::Release();
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(HeldSyncs::count() - before, 2U) << "ten changes wait for one commit";
}

// A disk that is being attached can't be deleted, and the cluster of one that is being made neither: they wait, and find it in use.
TEST(SlowStoreOrder, WhatAChangeWasCheckedAgainstStays) {
  SlowStore host;
  MakeGroup(host.state());
  HeldSyncs syncs;
  std::thread maker([&] { EXPECT_TRUE(host.state().controllers().Create(ControllerIn("c", "g")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  Result<v1::DeleteGroupResponse> deleted = v1::DeleteGroupResponse();
  std::thread deleter([&] { deleted = host.state().groups().Delete(DeleteGroup("g")); });
  HeldSyncs::Release();
  maker.join();
  deleter.join();
  ASSERT_FALSE(deleted.ok());
  EXPECT_EQ(ReasonOf(deleted.error()), v1::REASON_GROUP_IN_USE);
}

// Three controllers at once, and two engines with a place each.
TEST(SlowStoreLimits, AControllerThatIsBeingWrittenHasItsPlaceOnAnEngine) {
  SlowStore host;
  host.ReportEngines(1);
  HeldSyncs syncs;
  std::vector<std::thread> callers;
  const auto create = [&](const std::string& id) {
    callers.emplace_back(
        [&host, id] { EXPECT_TRUE(host.state().controllers().Create(NewController(id)).ok()); });
  };
  create("c0");
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  create("c1");
  while (host.state().waiting_writes() < 1) std::this_thread::yield();
  create("c2");
  while (host.state().waiting_writes() < 2) std::this_thread::yield();
  HeldSyncs::Release();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(host.EngineOf("c0"), "engines/e0");
  EXPECT_EQ(host.EngineOf("c1"), "engines/e1");
  EXPECT_EQ(host.EngineOf("c2"), "");
}

TEST(SlowStoreLimits, AControllerThatIsBeingWrittenCountsAgainstTheLimit) {
  SlowStore host;
  StoreChange rows;
  for (size_t i = 1; i < kControllersMax; ++i) {
    ControllerRow row;
    row.id = fmt::format("c{}", i);
    row.spec.set_socket_path("/run/" + row.id);
    rows.emplace_back(row);
  }
  host.Put(rows);
  HeldSyncs syncs;
  std::thread last([&] { EXPECT_TRUE(host.state().controllers().Create(NewController("x")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  const auto refused = host.state().controllers().Create(NewController("y"));  // returns while the sync hangs
  HeldSyncs::Release();
  last.join();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_TOO_MANY_RESOURCES);
}

TEST(SlowStoreLimits, ADeletedDiskThatIsBeingWrittenCountsAgainstTheLimit) {
  SlowStore host;
  StoreChange rows;
  for (size_t i = 1; i < kDeletedDisksMax; ++i) {
    DeletedDiskRow row;
    row.disk.id = "old";
    row.disk.revision = row.disk.intent_revision = i;
    row.purge_time_s = 86'400;
    rows.emplace_back(row);
  }
  host.Put(rows);
  for (const char* id : {"x", "y"}) ASSERT_TRUE(host.state().disks().Create(NullDisk(id)).ok());
  HeldSyncs syncs;
  std::thread last([&] { EXPECT_TRUE(host.state().disks().Delete(DeleteDisk("x")).ok()); });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  const auto refused = host.state().disks().Delete(DeleteDisk("y"));  // returns while the sync hangs
  HeldSyncs::Release();
  last.join();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_TOO_MANY_DELETED);
}

// One that names much does not starve behind those that come later and name little.
TEST(StoreWritesTest, WhoeverCameFirstIsServedFirst) {
  const test::TempDir dir;
  auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok());
  StateMutex mutex;
  const Tables tables;
  StoreWrites writes(**store, mutex, tables);
  std::vector<std::string> order;
  const auto await = [&](const WriteNames& names, const std::string& name, bool write) {
    const StateLock lock(mutex);
    writes.Await(names);
    order.push_back(name);
    DiskRow row;
    row.id = name;
    if (!write) return;
    EXPECT_TRUE(writes.Write(names, {row}).ok());
  };
  const auto await_waiting = [&](size_t count) {
    for (;;) {
      const StateLock lock(mutex);
      if (writes.waiting_for_names() == count || order.size() > 1) return;
      const StateUnlock unlocked(mutex);
      std::this_thread::yield();
    }
  };
  HeldSyncs syncs;
  std::thread first(await, WriteNames{.changes = {"a"}}, "a", true);
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  std::thread all(await, WriteNames{.changes = {}, .needs = {}, .everything = true}, "all", false);
  await_waiting(1);
  std::thread later(await, WriteNames{.changes = {"b"}}, "b", true);
  await_waiting(2);
  HeldSyncs::Release();
  for (std::thread* thread : {&first, &all, &later}) thread->join();
  EXPECT_EQ(order, (std::vector<std::string>{"a", "all", "b"}));
}

TEST(WriteNamesTest, WhatIsChangedIsNeitherChangedNorNeededByAnother) {
  const WriteNames disk{.changes = {"disks/a"}, .needs = {"clusters/k"}};
  EXPECT_TRUE(disk.ConflictsWith({.changes = {"disks/a"}}));
  EXPECT_TRUE(disk.ConflictsWith({.changes = {}, .needs = {"disks/a"}}));
  EXPECT_TRUE(disk.ConflictsWith({.changes = {"clusters/k"}}));
  EXPECT_FALSE(disk.ConflictsWith({.changes = {"disks/b"}, .needs = {"clusters/k"}}));
  EXPECT_FALSE(disk.ConflictsWith({}));
}

}  // namespace
}  // namespace cleat::control::slow_store_test
