// SPDX-License-Identifier: Apache-2.0
// Exports, which are controllers of the type NVMF: what the API takes, what is kept, and what engines are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <functional>
#include <string>
#include <vector>

#include "control/api/apply_host.h"
#include "control/model/reasons.h"
#include "control/store/migrations.h"
#include "control/store/sqlite_row.h"
#include "control/store/stored_rows.h"
#include "moves_rig.h"
#include "nvme/fabrics/names.h"
#include "reconciler_rig.h"
#include "requests.h"
#include "restored.h"

namespace cleat::control::exports_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> HostsOf(const v1::Controller& controller) {
  std::vector<std::string> hosts;
  for (const v1::ExportHost& host : controller.spec().exported().hosts()) hosts.push_back(host.nqn());
  return hosts;
}

std::string HostNumber(size_t number) {
  return "nqn.2014-08.org.example:number" + std::to_string(number);
}

class ExportsTest : public ReconcilerRig {
 protected:
  auto Create(const v1::CreateControllerRequest& request) { return state_->controllers().Create(request); }
  auto Change(const v1::UpdateControllerRequest& request) { return state_->controllers().Update(request); }
  v1::Controller Db() { return state_->controllers().Get(GetController("db")).value(); }
  void AttachDisk(const std::string& disk) {
    ASSERT_TRUE(state_->disks().Create(NullDisk(disk)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk, "db")).ok());
    Await(disk + " is attached", [&] {
      return state_->attachments().Get(GetAttachment("db", disk))->status().state() ==
             v1::ATTACHMENT_STATE_READY;
    });
  }
  void AwaitState(v1::ControllerState state) {
    Await(v1::ControllerState_Name(state), [&] { return Db().status().state() == state; });
  }
  // The engine that is played says nothing of it.
  void AwaitServed() {
    Await("it is served",
          [&] { return engine_.StateOf("controllers/db") == engine::v1::CONTROLLER_STATE_CONNECTING; });
  }
  void AwaitHosts(const std::vector<std::string>& hosts) {
    Await("the engine knows the hosts", [&] {
      const engine::v1::Export told = engine_.ControllerAt("controllers/db").exported();
      return std::vector<std::string>(told.hosts().begin(), told.hosts().end()) == hosts;
    });
  }
};

// ---- What the API takes

TEST_F(ExportsTest, AnExportGetsDefaultsAndANameForGood) {
  v1::CreateControllerRequest request = NewExport("db");
  v1::ExportSpec& asked = *request.mutable_controller()->mutable_spec()->mutable_exported();
  asked.add_addresses("[::]:4421");
  asked.clear_hosts();
  asked.add_hosts()->set_nqn(kHostTwo);
  asked.add_hosts()->set_nqn(kHostOne);
  const auto made = Create(request);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const v1::ExportSpec& spec = made->spec().exported();
  EXPECT_EQ(made->spec().queues(), 8U);
  EXPECT_EQ(made->spec().socket_mode(), v1::SOCKET_MODE_UNSPECIFIED);
  EXPECT_THAT(spec.nqn(), StartsWith(std::string(nvme::fabrics::kUuidNqnPrefix)));
  EXPECT_TRUE(nvme::fabrics::CheckNqn(spec.nqn(), "it").ok());
  EXPECT_THAT(spec.addresses(), ElementsAre("10.0.0.1:4420", "[::]:4421"));
  EXPECT_THAT(HostsOf(*made), ElementsAre(kHostOne, kHostTwo)) << "in one order";

  EXPECT_EQ(Create(request)->etag(), made->etag()) << "the same again";
  EXPECT_NE(Create(NewExport("other"))->spec().exported().nqn(), spec.nqn());
  RestartCleatd();
  EXPECT_EQ(Db().spec().SerializeAsString(), made->spec().SerializeAsString());
  EXPECT_EQ(Create(request)->etag(), made->etag());
  asked.set_nqn(spec.nqn());
  EXPECT_EQ(Create(request)->etag(), made->etag()) << "the name that it has, said aloud";
  asked.set_nqn("nqn.2014-08.org.example:db");
  EXPECT_EQ(Create(request).error().code, ErrorCode::kAlreadyExists);
}

TEST_F(ExportsTest, WhatIsWrongIsRefusedByItsField) {
  struct Case {
    std::string field;
    std::string says;
    std::function<void(v1::ControllerSpec&)> spoil;
  };
  const auto exported = [](auto change) {
    return [change](v1::ControllerSpec& spec) { change(*spec.mutable_exported()); };
  };
  const std::vector<Case> cases = {
      {"spec.socket_path", "no socket", [](auto& spec) { spec.set_socket_path("/run/vm"); }},
      {"spec.socket_mode", "no socket", [](auto& spec) { spec.set_socket_mode(v1::SOCKET_MODE_CLIENT); }},
      {"spec.memory_pinned", "no guest", [](auto& spec) { spec.set_memory_pinned(true); }},
      {"spec.exported", "is missing", [](auto& spec) { spec.clear_exported(); }},
      {"spec.exported", "only an NVMF controller",
       [](auto& spec) {
         spec.set_type(v1::CONTROLLER_TYPE_BLK);
         spec.set_socket_path("/run/vm");
       }},
      {"spec.queues", "it must be 1 to 64", [](auto& spec) { spec.set_queues(65); }},
      {"spec.exported.nqn", "is wrong", exported([](auto& e) { e.set_nqn("iqn.2014-08.org.example:a"); })},
      {"spec.exported.nqn", "discovery services",
       exported([](auto& e) { e.set_nqn(std::string(nvme::fabrics::kDiscoveryNqn)); })},
      {"spec.exported.addresses", "are missing", exported([](auto& e) { e.clear_addresses(); })},
      {"spec.exported.addresses", "are 9: give 8 at most", exported([](auto& e) {
         for (int i = 0; i < 8; ++i) e.add_addresses("10.0.0.2:" + std::to_string(5000 + i));
       })},
      {"spec.exported.addresses[0]", "is wrong",
       exported([](auto& e) { e.set_addresses(0, "target.example:4420"); })},
      {"spec.exported.addresses[1]", "give each once",
       exported([](auto& e) { e.add_addresses("10.0.0.1:4420"); })},
      {"spec.exported.addresses[1]", "is among those of exported.addresses[0], 10.0.0.1:4420",
       exported([](auto& e) { e.add_addresses("0.0.0.0"); })},
      {"spec.exported.standby_addresses", "are 9: give 8 at most", exported([](auto& e) {
         for (int i = 0; i < 9; ++i) e.add_standby_addresses("10.0.0.2:" + std::to_string(5000 + i));
       })},
      {"spec.exported.standby_addresses[0]", "is wrong",
       exported([](auto& e) { e.add_standby_addresses("standby.example:4420"); })},
      {"spec.exported.standby_addresses[1]", "is among those of exported.standby_addresses[0], 10.0.1.1:4420",
       exported([](auto& e) {
         e.add_standby_addresses("10.0.1.1");
         e.add_standby_addresses("10.0.1.1:4420");
       })},
      {"spec.exported.standby_addresses[0]", "is among those of exported.addresses[0], 10.0.0.1:4420",
       exported([](auto& e) { e.add_standby_addresses("10.0.0.1"); })},
      {"spec.exported.standby_addresses[0]", "is among those of exported.addresses[0], 10.0.0.1:4420",
       exported([](auto& e) { e.add_standby_addresses("0.0.0.0"); })},
      {"spec.exported.hosts[1].nqn", "is wrong", exported([](auto& e) { e.add_hosts()->set_nqn("me"); })},
      {"spec.exported.hosts[1].nqn", "is wrong", exported([](auto& e) { e.add_hosts(); })},
      {"spec.exported.hosts[1].nqn", "discovery services",
       exported([](auto& e) { e.add_hosts()->set_nqn(std::string(nvme::fabrics::kDiscoveryNqn)); })},
      {"spec.exported.hosts", "twice", exported([](auto& e) { e.add_hosts()->set_nqn(kHostOne); })},
      {"spec.exported.hosts", "are 65: give 64 at most", exported([](auto& e) {
         for (size_t i = 0; i < kExportHostsMax; ++i) e.add_hosts()->set_nqn(HostNumber(i));
       })},
  };
  for (const Case& wrong : cases) {
    v1::CreateControllerRequest request = NewExport("db");
    wrong.spoil(*request.mutable_controller()->mutable_spec());
    const auto refused = Create(request);
    ASSERT_FALSE(refused.ok()) << wrong.field << " " << wrong.says;
    EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_INVALID_FIELD) << refused.error().message;
    EXPECT_EQ(MetadataOf(refused.error(), "field"), wrong.field) << refused.error().message;
    EXPECT_THAT(refused.error().message, HasSubstr(wrong.says));
    EXPECT_THAT(refused.error().message, StartsWith("controllers/db: "));
  }
  EXPECT_FALSE(state_->controllers().Get(GetController("db")).ok());
  v1::CreateControllerRequest other_ports = NewExport("db");
  for (const char* address : {"0.0.0.0:4421", "[::]", "[fd00::1]:4422"})
    other_ports.mutable_controller()->mutable_spec()->mutable_exported()->add_addresses(address);
  other_ports.mutable_controller()->mutable_spec()->mutable_exported()->add_standby_addresses(
      "10.0.0.1:4423");
  EXPECT_TRUE(Create(other_ports).ok());
}

// An engine that stands by for one would listen beside the engine that serves the other.
TEST_F(ExportsTest, AStandbyAddressIsNoOtherExportsAddress) {
  v1::CreateControllerRequest first = NewExport("db");
  v1::ExportSpec& spec = *first.mutable_controller()->mutable_spec()->mutable_exported();
  spec.clear_addresses();
  spec.add_addresses("10.0.0.1:4420");
  spec.add_standby_addresses("10.0.0.1:4421");
  ASSERT_TRUE(Create(first).ok());
  v1::CreateControllerRequest second = NewExport("logs");
  v1::ExportSpec& other = *second.mutable_controller()->mutable_spec()->mutable_exported();
  other.clear_addresses();
  other.add_addresses("0.0.0.0:4421");
  const auto serving = Create(second);
  ASSERT_FALSE(serving.ok());
  EXPECT_THAT(serving.error().message, HasSubstr("controllers/db"));
  other.set_addresses(0, "10.0.0.1:4420");
  other.add_standby_addresses("10.0.0.1:4420");
  EXPECT_FALSE(Create(second).ok()) << "of its own, too";
  other.set_addresses(0, "10.0.0.1:4422");
  EXPECT_FALSE(Create(second).ok());
  other.set_addresses(0, "10.0.0.1:4420");
  other.set_standby_addresses(0, "10.0.0.1:4421");
  EXPECT_TRUE(Create(second).ok()) << "of the same kind they may be shared";
}

TEST_F(ExportsTest, NoTwoHaveOneName) {
  constexpr char kNqn[] = "nqn.2014-08.org.example:db";
  v1::CreateControllerRequest first = NewExport("db", kNqn);
  first.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(Create(first).ok());
  const auto refused = Create(NewExport("other", kNqn));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_NQN_TAKEN);
  EXPECT_EQ(MetadataOf(refused.error(), "conflict"), "controllers/db");
  EXPECT_THAT(refused.error().message, HasSubstr("cleatctl export delete db"));
  ASSERT_TRUE(Create(NewController("vm")).ok()) << "which has no name";
  ASSERT_TRUE(Create(NewController("vm2")).ok());

  ASSERT_TRUE(state_->controllers().Delete(DeleteController("db")).ok());
  const auto busy = Create(NewExport("other", kNqn));
  ASSERT_FALSE(busy.ok()) << "its engine may have the former one still";
  EXPECT_EQ(busy.error().code, ErrorCode::kAborted);
  ASSERT_TRUE(engine_.Connect());
  Await("db is gone", [&] { return !state_->controllers().Get(GetController("db")).ok(); });
  EXPECT_TRUE(Create(NewExport("other", kNqn)).ok());
}

TEST_F(ExportsTest, SixtyFourDisksAreItsMostAndNoneIsIncoming) {
  ASSERT_TRUE(Create(NewExport("db")).ok());
  const auto attach = [&](const std::string& disk, auto change) {
    EXPECT_TRUE(state_->disks().Create(NullDisk(disk)).ok());
    v1::AttachDiskRequest request = Attach(disk, "db");
    change(*request.mutable_attachment()->mutable_spec());
    return state_->attachments().Attach(request);
  };
  const auto too_far = attach("far", [](auto& spec) { spec.set_target(64); });
  ASSERT_FALSE(too_far.ok());
  EXPECT_THAT(too_far.error().message, HasSubstr("target is 64: it must be 0 to 63"));
  const auto incoming = attach("in", [](auto& spec) { spec.set_mode(v1::ATTACHMENT_MODE_INCOMING); });
  ASSERT_FALSE(incoming.ok());
  EXPECT_EQ(ReasonOf(incoming.error()), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(MetadataOf(incoming.error(), "field"), "spec.mode");

  for (uint32_t target = 0; target < 64; ++target) {
    const auto attached = attach("d" + std::to_string(target), [](auto&) {});
    ASSERT_TRUE(attached.ok()) << attached.error().message;
    EXPECT_EQ(attached->spec().target(), target);
  }
  const auto one_more = attach("more", [](auto&) {});
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(ReasonOf(one_more.error()), v1::REASON_TOO_MANY_RESOURCES);
  EXPECT_THAT(one_more.error().message, HasSubstr("has 64 disks"));
  const auto in_use = state_->controllers().Delete(DeleteController("db"));
  ASSERT_FALSE(in_use.ok());
  EXPECT_EQ(ReasonOf(in_use.error()), v1::REASON_CONTROLLER_IN_USE);
}

TEST_F(ExportsTest, OfWhatItIsTheHostsAloneChange) {
  const auto made = Create(NewExport("db"));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(Change(LetIn("db", {kHostOne}))->etag(), made->etag()) << "nothing changes";
  const auto changed = Change(LetIn("db", {kHostTwo, kHostOne}));
  ASSERT_TRUE(changed.ok()) << changed.error().message;
  EXPECT_THAT(HostsOf(*changed), ElementsAre(kHostOne, kHostTwo));
  EXPECT_NE(changed->etag(), made->etag());
  v1::UpdateControllerRequest stale = LetIn("db", {});
  stale.mutable_controller()->set_etag(made->etag());
  EXPECT_EQ(ReasonOf(Change(stale).error()), v1::REASON_ETAG_MISMATCH);
  v1::UpdateControllerRequest both = LetIn("db", {});
  both.mutable_update_mask()->add_paths("labels");
  (*both.mutable_controller()->mutable_labels())["of"] = "ann";
  ASSERT_TRUE(Change(both).ok());
  EXPECT_THAT(HostsOf(Db()), ElementsAre()) << "nobody";
  EXPECT_EQ(Db().labels().at("of"), "ann");
  EXPECT_EQ(Change(LetIn("db", {kHostOne}))->labels().at("of"), "ann") << "labels that are not named stay";

  for (const std::string path :
       {"spec.exported.nqn", "spec.exported.addresses", "spec.exported.standby_addresses", "spec.exported"}) {
    v1::UpdateControllerRequest other = LetIn("db", {kHostTwo});
    other.mutable_update_mask()->add_paths(path);
    const auto refused = Change(other);
    ASSERT_FALSE(refused.ok()) << path;
    EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_INVALID_UPDATE_MASK);
    EXPECT_EQ(MetadataOf(refused.error(), "field"), path);
    EXPECT_THAT(refused.error().message, HasSubstr("create that"));
  }
  EXPECT_EQ(MetadataOf(Change(LetIn("db", {"me"})).error(), "field"), "spec.exported.hosts[0].nqn");
  EXPECT_THAT(HostsOf(Db()), ElementsAre(kHostOne)) << "what was refused has changed nothing";
  ASSERT_TRUE(Create(NewController("vm")).ok());
  const auto no_export = Change(LetIn("vm", {kHostOne}));
  ASSERT_FALSE(no_export.ok());
  EXPECT_THAT(no_export.error().message, HasSubstr("only an export has hosts"));
}

TEST_F(ExportsTest, AreDeclaredAsTheRestOfAHostIs) {
  v1::ApplyHostRequest declared;
  v1::Controller& db = *declared.add_controllers();
  db = NewExport("db").controller();
  db.set_name("controllers/db");
  const auto apply = [&] { return ApplyHostCall(*state_, [] { return false; }).Apply(declared); };
  ASSERT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_CREATED);
  const std::string nqn = Db().spec().exported().nqn();
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UNCHANGED) << "though it does not say its name";
  db.mutable_spec()->mutable_exported()->add_hosts()->set_nqn(kHostTwo);
  declared.set_dry_run(true);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_THAT(HostsOf(Db()), ElementsAre(kHostOne)) << "in thought only";
  declared.set_dry_run(false);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_THAT(HostsOf(Db()), ElementsAre(kHostOne, kHostTwo));
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UNCHANGED);
  (*db.mutable_labels())["of"] = "ann";
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UPDATED);
  db.mutable_spec()->mutable_exported()->set_addresses(0, "10.0.0.2");
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_FAILED);
  EXPECT_EQ(Db().spec().exported().nqn(), nqn);
  EXPECT_THAT(Db().spec().exported().addresses(), ElementsAre("10.0.0.1:4420"));
}

// ---- What engines are told

TEST_F(ExportsTest, AnEngineIsToldAllOfItAndServesItOnceItsDisksAreThere) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  engine_.Hold("Attach");
  ASSERT_TRUE(Create(NewExport("db", "nqn.2014-08.org.example:db")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
  engine_.WaitForRequest("Attach controllers/db 0 disks/a");
  engine_.Release();
  AwaitServed();
  const engine::v1::Controller told = engine_.ControllerAt("controllers/db");
  EXPECT_EQ(told.type(), engine::v1::CONTROLLER_TYPE_NVMF);
  EXPECT_FALSE(told.has_socket_path() || told.has_socket_mode() || told.has_memory_pinned());
  EXPECT_EQ(told.queues(), 8U);
  EXPECT_EQ(told.exported().nqn(), "nqn.2014-08.org.example:db");
  EXPECT_THAT(told.exported().addresses(), ElementsAre("10.0.0.1:4420"));
  EXPECT_THAT(told.exported().hosts(), ElementsAre(kHostOne));
  EXPECT_NE(told.exported().hosts_revision(), 0U);
  EXPECT_EQ(told.last_disk(), 0U) << "no guest has a driver that may remember one";
  EXPECT_EQ(told.exported().serial().size(), 20U);
  EXPECT_EQ(told.exported().serial().find_first_not_of("0123456789abcdef"), std::string::npos);

  ASSERT_TRUE(Create(NewExport("other")).ok());
  Await("other is there", [&] { return engine_.ControllerAt("controllers/other").has_exported(); });
  EXPECT_NE(engine_.ControllerAt("controllers/other").exported().serial(), told.exported().serial());
  // Of both, when they begin anew.
  engine_.Restart();
  RestartCleatd();
  ASSERT_TRUE(engine_.Connect());
  AwaitServed();
  EXPECT_EQ(engine_.ControllerAt("controllers/db").SerializeAsString(), told.SerializeAsString());
}

TEST_F(ExportsTest, ChangedHostsAreToldInPlace) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(NewExport("db")).ok());
  AttachDisk("a");
  AwaitServed();
  const uint64_t revision = engine_.ControllerAt("controllers/db").revision();
  engine_.TakeRequests();
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  AwaitHosts({kHostTwo});
  EXPECT_EQ(engine_.TakeRequests(), Requests{"PutController controllers/db"});
  EXPECT_EQ(engine_.ControllerAt("controllers/db").revision(), revision) << "it is the same one";

  // While the engine is not there.
  engine_.Disconnect();
  ASSERT_TRUE(Change(LetIn("db", {})).ok());
  RestartCleatd();
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  AwaitHosts({});
  AttachDisk("b");
  const Requests requests = engine_.TakeRequests();
  EXPECT_THAT(requests, testing::Contains("PutController controllers/db"));
  EXPECT_THAT(requests, testing::Contains("Attach controllers/db 1 disks/b"));
  EXPECT_TRUE(engine_.Has("controllers/db", 0)) << "it was not detached";
  // Labels are no affair of the engine's.
  v1::UpdateControllerRequest labels;
  labels.mutable_controller()->set_name("controllers/db");
  (*labels.mutable_controller()->mutable_labels())["of"] = "ann";
  labels.mutable_update_mask()->add_paths("labels");
  ASSERT_TRUE(Change(labels).ok());
  AttachDisk("c");
  EXPECT_THAT(engine_.TakeRequests(), Not(testing::Contains("PutController controllers/db")));
}

TEST_F(ExportsTest, ItsStatusSaysWhatHostsHave) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(NewExport("db")).ok());
  AttachDisk("a");
  engine_.SetControllerState("controllers/db", engine::v1::CONTROLLER_STATE_READY);
  AwaitState(v1::CONTROLLER_STATE_READY);
  EXPECT_EQ(Db().status().last_disk(), "");
  ASSERT_TRUE(state_->attachments().Detach(Detach("db", "a")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("db", "a")).ok(); });
  EXPECT_EQ(Db().status().last_disk(), "") << "only a virtio-blk device has one";
}

TEST_F(ExportsTest, HostsThatWereChangedAfterABackupStayUntilSomebodySpeaksOfThem) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(NewExport("db")).ok());
  AttachDisk("a");
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  AwaitHosts({kHostTwo});
  ASSERT_TRUE(Restore(*state_, backup).ok());
  Stop();
  engine_.Disconnect();
  Start();
  engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  Await("it is left alone",
        [&] { return Db().status().message().find("after the backup") != std::string::npos; });
  EXPECT_THAT(HostsOf(Db()), ElementsAre(kHostOne)) << "as the store has it";
  EXPECT_THAT(engine_.TakeRequests(), Not(testing::Contains("PutController controllers/db")));
  ASSERT_TRUE(Change(LetIn("db", {kHostOne, kHostTwo})).ok());
  AwaitHosts({kHostOne, kHostTwo});
  EXPECT_TRUE(engine_.Has("controllers/db", 0)) << "it was not detached";
}

TEST_F(ExportsTest, OneThatTheRestoredStoreDoesNotKnowKeepsItsNameWhenItIsMadeAgain) {
  ASSERT_TRUE(engine_.Connect());
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(Create(NewExport("db")).ok());
  AttachDisk("a");
  const std::string nqn = Db().spec().exported().nqn();
  ASSERT_TRUE(Restore(*state_, backup).ok());
  Stop();
  engine_.Disconnect();
  Start();
  ASSERT_TRUE(engine_.Connect());
  Await("it is left alone", [&] {
    const auto engine = state_->engines().Get(GetEngine("engine-0"));
    return engine.ok() && engine->status().left_alone_total() == 1;
  });
  const auto again = Create(NewExport("db"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->spec().exported().nqn(), nqn) << "hosts know it by that";
}

// ---- Engines of before, and several

TEST_F(ExportsTest, AnEngineThatKnowsNoneIsGivenNone) {
  engine_.set_protocol(kProtocolExports - 1);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(NewExport("db")).ok());
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
  AwaitState(v1::CONTROLLER_STATE_FAILED);
  EXPECT_THAT(
      Db().status().message(),
      HasSubstr("engines/engine-0 (version 0.0.1, protocol 9) can't export disks over NVMe/TCP, which "
                "takes protocol 10: upgrade the engine"));
  ASSERT_TRUE(Create(NewController("vm")).ok());
  Await("others are served", [&] {
    return state_->controllers().Get(GetController("vm"))->status().state() == v1::CONTROLLER_STATE_IDLE;
  });
  EXPECT_THAT(engine_.TakeRequests(), Not(testing::Contains(HasSubstr("controllers/db"))));
  // The new engine under the same name.
  engine_.set_protocol(kProtocolExports);
  engine_.Restart();
  AwaitServed();
  EXPECT_TRUE(engine_.Has("controllers/db", 0));
}

class ExportsOfStandbys : public MovesRig {};

TEST_F(ExportsOfStandbys, WhoStandsByLetsInTheSameHosts) {
  green_.set_stands_by_for("engine-0");
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  v1::CreateControllerRequest request = NewExport("db");
  request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
  const auto hosts_of = [](FakeEngine& engine) {
    return engine.ControllerAt("controllers/db").exported().hosts();
  };
  Await("it stands by",
        [&] { return green_.StateOf("controllers/db", 0) == engine::v1::ATTACHMENT_STATE_STANDBY; });
  EXPECT_THAT(hosts_of(green_), ElementsAre(kHostOne));
  ASSERT_TRUE(state_->controllers().Update(LetIn("db", {kHostTwo})).ok());
  Await("both know", [&] {
    return hosts_of(blue_).size() == 1 && hosts_of(blue_)[0] == kHostTwo && hosts_of(green_).size() == 1 &&
           hosts_of(green_)[0] == kHostTwo;
  });
  EXPECT_EQ(green_.StateOf("controllers/db"), kStandby) << "it goes on standing by";
  EXPECT_EQ(green_.ControllerAt("controllers/db").exported().serial(),
            blue_.ControllerAt("controllers/db").exported().serial());
}

// ---- The store

// As the version before left it: controllers without a revision of their hosts.
TEST_F(ExportsTest, AStoreOfBeforeIsMigratedWithItsControllers) {
  v1::CreateControllerRequest vm = NewController("vm");
  vm.mutable_controller()->mutable_spec()->set_queues(3);
  (*vm.mutable_controller()->mutable_labels())["of"] = "ann";
  ASSERT_TRUE(Create(vm).ok());
  ControllerRow row = store_->Load()->controllers.front();
  row.last_disk = DiskIdentity(77);
  row.last_disk_name = "disks/former";
  Stop();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
  constexpr char kOld[] =
      "DROP TABLE controllers; PRAGMA user_version = 13; CREATE TABLE controllers (id TEXT PRIMARY KEY, spec "
      "BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL, engine TEXT NOT NULL, labels "
      "TEXT "
      "NOT NULL, intent_revision INTEGER NOT NULL, last_disk INTEGER NOT NULL, last_disk_name TEXT NOT NULL, "
      "sum INTEGER NOT NULL) WITHOUT ROWID;";
  ASSERT_EQ(sqlite3_exec(db, kOld, nullptr, nullptr, nullptr), SQLITE_OK);
  std::vector<SqlValue> values = ValuesOf(row);
  values.pop_back();
  values.emplace_back(RowSum(values));
  sqlite3_stmt* insert = nullptr;
  ASSERT_EQ(sqlite3_prepare_v2(db, "INSERT INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", -1,
                               &insert, nullptr),
            SQLITE_OK);
  {
    SqlRun run(insert);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(run.Bind(static_cast<int>(i) + 1, values[i]), SQLITE_OK);
    ASSERT_EQ(run.Step(), SQLITE_DONE);
  }
  sqlite3_finalize(insert);
  sqlite3_close(db);
  for (int i = 0; i < 2; ++i) {  // migrated, then as it is
    Start();
    const std::vector<ControllerRow> all = store_->Load()->controllers;
    ASSERT_EQ(all.size(), 1U);
    const ControllerRow& kept = all.front();
    EXPECT_EQ(kept.spec.SerializeAsString(), row.spec.SerializeAsString());
    EXPECT_EQ(kept.labels, row.labels);
    EXPECT_EQ(kept.revision, row.revision);
    EXPECT_EQ(kept.last_disk, row.last_disk);
    EXPECT_EQ(kept.last_disk_name, row.last_disk_name);
    EXPECT_EQ(kept.hosts_revision, 0U);
    Stop();
  }
  Start();
  ASSERT_TRUE(Create(NewExport("db")).ok());
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  const uint64_t revision = store_->Load()->controllers.front().hosts_revision;
  EXPECT_NE(revision, 0U);
  RestartCleatd();
  EXPECT_EQ(store_->Load()->controllers.front().hosts_revision, revision);
  EXPECT_THAT(HostsOf(Db()), ElementsAre(kHostTwo));
}

}  // namespace
}  // namespace cleat::control::exports_test
