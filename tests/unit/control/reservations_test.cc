// SPDX-License-Identifier: Apache-2.0
// Reservations of a subsystem's namespaces: what the API takes, who this host is in them and for how long, and what engines are told.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <memory>
#include <string>

#include "control/api/apply_host.h"
#include "control/model/reasons.h"
#include "control/store/sqlite_row.h"
#include "control/store/stored_rows.h"
#include "moves_rig.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::reservations_test {
namespace {

constexpr char kHostNqn[] = "nqn.2014-08.org.example:host";
constexpr char kHostId[] = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11";

v1::CreateSubsystemRequest WithReservations(v1::Reservations reservations) {
  v1::CreateSubsystemRequest request = NewSubsystem("array");
  request.mutable_subsystem()->mutable_spec()->set_reservations(reservations);
  return request;
}

class ReservationsTest : public ReconcilerRig {
 protected:
  auto Create(const v1::CreateSubsystemRequest& request) { return state_->subsystems().Create(request); }
  auto Change(const v1::CreateSubsystemRequest& wanted) {
    return state_->subsystems().Update(Update(wanted));
  }
  v1::Subsystem Array() {
    v1::GetSubsystemRequest request;
    request.set_name("subsystems/array");
    return state_->subsystems().Get(request).value();
  }
  std::string Family() { return Array().status().reservation_family(); }
  // What the engine is told of a disk of it.
  engine::v1::NvmeTcpBackend TellEngine() {
    EXPECT_TRUE(engine_.Connect());
    EXPECT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    EXPECT_TRUE(state_->controllers().Create(NewController("vm")).ok());
    AttachDisk();
    return engine_.DiskAt("controllers/vm", 0).nvme_tcp();
  }
  void AttachDisk() {
    EXPECT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    Await("the disk is attached", [&] {
      return state_->attachments().Get(GetAttachment("vm", "a"))->status().state() ==
             v1::ATTACHMENT_STATE_READY;
    });
  }
};

TEST_F(ReservationsTest, AreOffUnlessSomebodyAsksForThem) {
  const auto made = Create(NewSubsystem("array"));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->spec().reservations(), v1::RESERVATIONS_UNSPECIFIED);
  EXPECT_EQ(Family(), "");
  EXPECT_EQ(Create(WithReservations(v1::RESERVATIONS_OFF))->etag(), made->etag()) << "which is the same";
  EXPECT_EQ(Change(WithReservations(v1::RESERVATIONS_OFF))->etag(), made->etag());
  const engine::v1::NvmeTcpBackend told = TellEngine();
  EXPECT_FALSE(told.has_reservation_family() || told.has_reservation_proves());
}

TEST_F(ReservationsTest, OfAKindThatThisVersionDoesNotKnowAreRefused) {
  const auto made = Create(WithReservations(static_cast<v1::Reservations>(4)));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(ReasonOf(made.error()), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(MetadataOf(made.error(), "field"), "spec.reservations");
}

TEST_F(ReservationsTest, AnEngineIsToldWhoThisHostIsAndWhetherTheTargetProvesAnything) {
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  const engine::v1::NvmeTcpBackend told = TellEngine();
  EXPECT_NE(told.reservation_family(), 0U);
  EXPECT_FALSE(told.reservation_proves());
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("vm", "a")).ok(); });
  const auto changed = Change(WithReservations(v1::RESERVATIONS_PROOF));
  ASSERT_TRUE(changed.ok()) << "while no disk is attached: " << changed.error().message;
  AttachDisk();
  const engine::v1::NvmeTcpBackend again = engine_.DiskAt("controllers/vm", 0).nvme_tcp();
  EXPECT_EQ(again.reservation_family(), told.reservation_family());
  EXPECT_TRUE(again.reservation_proves());
}

TEST_F(ReservationsTest, AnEngineIsToldWhetherTimeProves) {
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_OFF)).ok());
  EXPECT_FALSE(TellEngine().quiesce_time_proves());
  v1::CreateSubsystemRequest proves = WithReservations(v1::RESERVATIONS_OFF);
  proves.mutable_subsystem()->mutable_spec()->set_quiesce_time_proves(true);
  EXPECT_FALSE(Change(proves).ok()) << "a disk is attached";
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("vm", "a")).ok(); });
  const auto changed = Change(proves);
  ASSERT_TRUE(changed.ok()) << changed.error().message;
  AttachDisk();
  EXPECT_TRUE(engine_.DiskAt("controllers/vm", 0).nvme_tcp().quiesce_time_proves());
}

TEST_F(ReservationsTest, ThisHostIsTheSameInThemForGood) {
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  const std::string family = Family();
  ASSERT_EQ(family.size(), 18U) << family;
  EXPECT_EQ(family.find_first_not_of("0123456789abcdef-"), std::string::npos) << family;
  RestartCleatd();
  EXPECT_EQ(Family(), family);
  ASSERT_TRUE(Change(WithReservations(v1::RESERVATIONS_OFF)).ok());
  EXPECT_EQ(Family(), family) << "it may have left registrations behind";
  ASSERT_TRUE(Change(WithReservations(v1::RESERVATIONS_PROOF)).ok());
  RestartCleatd();
  EXPECT_EQ(Family(), family);
}

// A copy of a machine with its store would be the same host.
TEST_F(ReservationsTest, AHostThatIsGivenAnotherIdentityIsAnotherOneInThemToo) {
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  const std::string family = Family();
  v1::CreateSubsystemRequest renamed = WithReservations(v1::RESERVATIONS_EXCLUSIVE);
  renamed.mutable_subsystem()->mutable_spec()->set_host_nqn(kHostNqn);
  renamed.mutable_subsystem()->mutable_spec()->set_host_id(kHostId);
  ASSERT_TRUE(Change(renamed).ok());
  EXPECT_EQ(Family().size(), family.size());
  EXPECT_NE(Family(), family);
}

TEST_F(ReservationsTest, OfASubsystemThatIsMadeAnewHaveThisHostAsAnotherOne) {
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  const std::string family = Family();
  v1::DeleteSubsystemRequest gone;
  gone.set_name("subsystems/array");
  ASSERT_TRUE(state_->subsystems().Delete(gone).ok());
  ASSERT_TRUE(Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  EXPECT_NE(Family(), family) << "machine identifiers are copied, random numbers are not";
}

TEST_F(ReservationsTest, StayWhileADiskIsAttached) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  TellEngine();
  const auto refused = Change(WithReservations(v1::RESERVATIONS_PROOF));
  ASSERT_FALSE(refused.ok()) << "its engine would not know";
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_SUBSYSTEM_IN_USE);
  EXPECT_EQ(Family(), "") << "nothing was kept";
}

TEST_F(ReservationsTest, AreDeclaredAsTheRestOfAHostIs) {
  v1::ApplyHostRequest declared;
  *declared.add_subsystems() = Update(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).subsystem();
  const auto apply = [&] { return ApplyHostCall(*state_, [] { return false; }).Apply(declared); };
  ASSERT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_CREATED);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UNCHANGED);
  declared.mutable_subsystems(0)->mutable_spec()->set_reservations(v1::RESERVATIONS_OFF);
  declared.set_dry_run(true);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(Array().spec().reservations(), v1::RESERVATIONS_EXCLUSIVE) << "in thought only";
  declared.set_dry_run(false);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(Array().spec().reservations(), v1::RESERVATIONS_UNSPECIFIED);
}

// As the version before left it.
TEST_F(ReservationsTest, AStoreOfBeforeIsMigratedWithItsSubsystems) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  const SubsystemRow row = store_->Load()->subsystems.front();
  Stop();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
  constexpr char kOld[] =
      "DROP TABLE subsystems; PRAGMA user_version = 11; CREATE TABLE subsystems (id TEXT PRIMARY KEY, spec "
      "BLOB NOT NULL, revision INTEGER NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL, sum "
      "INTEGER NOT NULL) WITHOUT ROWID;";
  ASSERT_EQ(sqlite3_exec(db, kOld, nullptr, nullptr, nullptr), SQLITE_OK);
  std::vector<SqlValue> values = ValuesOf(row);
  values.pop_back();
  values.emplace_back(RowSum(values));
  sqlite3_stmt* insert = nullptr;
  ASSERT_EQ(sqlite3_prepare_v2(db, "INSERT INTO subsystems VALUES (?, ?, ?, ?, ?, ?)", -1, &insert, nullptr),
            SQLITE_OK);
  {
    SqlRun run(insert);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(run.Bind(static_cast<int>(i) + 1, values[i]), SQLITE_OK);
    ASSERT_EQ(run.Step(), SQLITE_DONE);
  }
  sqlite3_finalize(insert);
  sqlite3_close(db);
  Start();
  EXPECT_EQ(Array().spec().SerializeAsString(), row.spec.SerializeAsString());
  EXPECT_EQ(Family(), "");
  ASSERT_TRUE(Change(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  const std::string family = Family();
  RestartCleatd();
  EXPECT_EQ(Family(), family);
}

// ---- Engines of before

class ReservationsOfOldEngines : public MovesRig {};

TEST_F(ReservationsOfOldEngines, AnEngineThatKnowsNothingOfThemIsGivenNoDiskToWriteTo) {
  blue_.set_protocol(kProtocolReservations - 1);
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(state_->subsystems().Create(WithReservations(v1::RESERVATIONS_EXCLUSIVE)).ok());
  v1::CreateDiskRequest disk = NvmeDisk("d");
  disk.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(disk).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("w", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12")).ok());
  for (const std::string id : {"reader", "writer"}) {
    auto request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
  }
  ASSERT_TRUE(state_->attachments().Attach(Attach("w", "writer")).ok());
  std::string message;
  Await("it has failed", [&] {
    const auto attachment = state_->attachments().Get(GetAttachment("writer", "w"));
    message = attachment->status().message();
    return attachment->status().state() == v1::ATTACHMENT_STATE_FAILED;
  });
  EXPECT_NE(message.find("which has reservations and takes protocol 7"), std::string::npos) << message;
  EXPECT_FALSE(blue_.Has("controllers/writer", 0));
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "reader", /*read_only=*/true)).ok());
  Await("who only reads is served", [&] { return blue_.Has("controllers/reader", 0); });
}

}  // namespace
}  // namespace cleat::control::reservations_test
