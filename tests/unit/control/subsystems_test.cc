// SPDX-License-Identifier: Apache-2.0
// NVMe-oF subsystems and their disks: what the API takes, what is kept, and what engines are told.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <string>

#include "control/api/apply_host.h"
#include "control/model/reasons.h"
#include "control/state/pools/host_uid.h"
#include "nvme/fabrics/names.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::subsystems_test {
namespace {

constexpr char kNqn[] = "nqn.2014-08.org.example:array";
constexpr char kUuid[] = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11";
constexpr char kOtherUuid[] = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12";
constexpr char kHostNqn[] = "nqn.2014-08.org.example:host";

class SubsystemsTest : public ReconcilerRig {
 protected:
  auto Create(const v1::CreateSubsystemRequest& request) { return state_->subsystems().Create(request); }
  auto Get(const std::string& id) {
    v1::GetSubsystemRequest request;
    request.set_name(SubsystemName(id));
    return state_->subsystems().Get(request);
  }
  auto Delete(const std::string& id) {
    v1::DeleteSubsystemRequest request;
    request.set_name(SubsystemName(id));
    return state_->subsystems().Delete(request);
  }
  Result<v1::WaitResponse> WaitFor(const std::string& name) {
    v1::WaitRequest request;
    request.set_name(name);
    request.mutable_timeout()->set_seconds(60);
    return state_->waits().Wait(request, [] { return false; });
  }
  // Names what `change` makes wrong of a new subsystem, and is otherwise kept out.
  template <typename Change>
  void ExpectRefused(Change change, const std::string& field, std::string_view says) {
    v1::CreateSubsystemRequest request = NewSubsystem("array");
    change(*request.mutable_subsystem()->mutable_spec());
    const auto made = Create(request);
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(MetadataOf(made.error(), "field"), "spec." + field);
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
  }
  void AttachOne() {
    ASSERT_TRUE(Create(NewSubsystem("array")).ok());
    ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  }
};

// ---- What it may say ----

TEST_F(SubsystemsTest, WhatCantBeIsRefusedWithItsField) {
  ExpectRefused([](auto& spec) { spec.clear_nqn(); }, "nqn", "nqn is missing");
  ExpectRefused([](auto& spec) { spec.set_nqn("array"); }, "nqn", "nqn is wrong");
  ExpectRefused([](auto& spec) { spec.set_nqn("nqn.2014-08.org.nvmexpress.discovery"); }, "nqn",
                "discovery services");
  ExpectRefused([](auto& spec) { spec.clear_addresses(); }, "addresses", "addresses are missing");
  ExpectRefused([](auto& spec) { spec.set_addresses(0, "array.example.org:4420"); }, "addresses[0]",
                "'array.example.org:4420' is no address");
  ExpectRefused([](auto& spec) { spec.add_addresses("10.0.0.2:0"); }, "addresses[1]",
                "'10.0.0.2:0' is no address");
  ExpectRefused([](auto& spec) { spec.set_host_nqn(kHostNqn); }, "host_id", "host_id is missing");
  ExpectRefused([](auto& spec) { spec.set_host_id(kUuid); }, "host_nqn", "host_nqn is missing");
  ExpectRefused(
      [](auto& spec) {
        spec.set_host_nqn(kHostNqn);
        spec.set_host_id("7");
      },
      "host_id", "host_id is wrong");
  ExpectRefused(
      [](auto& spec) {
        spec.set_host_nqn("host");
        spec.set_host_id(kUuid);
      },
      "host_nqn", "host_nqn is wrong");
  ExpectRefused(
      [](auto& spec) {
        spec.set_host_nqn(kHostNqn);
        spec.set_host_id("00000000-0000-0000-0000-000000000000");
      },
      "host_id", "all zeroes");
  for (const uint32_t wrong : {nvme::fabrics::kKeepAliveMsMin - 1, nvme::fabrics::kKeepAliveMsMax + 1})
    ExpectRefused([&](auto& spec) { spec.set_keep_alive_ms(wrong); }, "keep_alive_ms", "1000 to 600000");
  EXPECT_FALSE(Create(NewSubsystem("Array")).ok());
}

TEST_F(SubsystemsTest, HasOneToEightAddresses) {
  const auto add = [](v1::SubsystemSpec& spec) {
    spec.add_addresses(fmt::format("10.0.1.{}", spec.addresses_size()));
  };
  v1::CreateSubsystemRequest request = NewSubsystem("array");
  v1::SubsystemSpec& spec = *request.mutable_subsystem()->mutable_spec();
  while (spec.addresses_size() < static_cast<int>(nvme::fabrics::kSubsystemAddressesMax)) add(spec);
  const auto made = Create(request);
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_EQ(made->spec().addresses_size(), spec.addresses_size());
  EXPECT_EQ(made->spec().addresses(0), "10.0.0.1:4420");
  EXPECT_EQ(made->spec().addresses(7), "10.0.1.7:4420") << "in the order in which they were given";
  RestartCleatd();
  EXPECT_EQ(Get("array")->spec().SerializeAsString(), made->spec().SerializeAsString());
  ExpectRefused(
      [&](auto& more) {
        more = spec;
        add(more);
      },
      "addresses", "addresses are 9: give 8 at most");
}

TEST_F(SubsystemsTest, NoTwoAddressesAreAlikeOnceTheyAreComplete) {
  ExpectRefused([](auto& spec) { spec.add_addresses("10.0.0.1:4420"); }, "addresses[1]",
                "addresses[1] is 10.0.0.1:4420, as addresses[0] is");
  ExpectRefused(
      [](auto& spec) {
        spec.add_addresses("[fd00::1]:4420");
        spec.add_addresses("[fd00:0::1]");
      },
      "addresses[2]", "addresses[2] is [fd00::1]:4420, as addresses[1] is");
  v1::CreateSubsystemRequest request = NewSubsystem("array");
  request.mutable_subsystem()->mutable_spec()->add_addresses("10.0.0.1:4421");
  EXPECT_TRUE(Create(request).ok()) << "another port";
}

TEST_F(SubsystemsTest, WhatADiskSaysIsCheckedBeforeItIsMade) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  const auto reason = [&](const v1::CreateDiskRequest& request) {
    return ReasonOf(state_->disks().Create(request).error());
  };
  EXPECT_EQ(reason(NvmeDisk("d", kUuid, "subsystems/other")), v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_EQ(reason(NvmeDisk("d", kUuid, "array")), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(reason(NvmeDisk("d", "4c0f")), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(reason(NvmeDisk("d", "")), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(reason(NvmeDisk("d", "00000000-0000-0000-0000-000000000000")), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(Get("array")->status().disks(), 0U);
}

TEST_F(SubsystemsTest, DefaultsAreFilledInAndOneFormIsKept) {
  v1::CreateSubsystemRequest request = NewSubsystem("array");
  request.mutable_subsystem()->mutable_spec()->set_addresses(0, "[fd00:0::1]");
  const auto made = Create(request);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->spec().addresses(0), "[fd00::1]:4420");
  EXPECT_EQ(made->spec().keep_alive_ms(), kKeepAliveMsDefault);
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a", "4C0F7D1E-8A55-4D0B-9A53-0B6B0F4D2F11")).ok());
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().nvme_tcp().namespace_uuid(), kUuid);
}

// ---- Who this host is ----

TEST_F(SubsystemsTest, WithoutAWordThisHostIsTheSameToAllSubsystemsForGood) {
  const auto first = Create(NewSubsystem("array"));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->spec().host_nqn(), "nqn.2014-08.org.nvmexpress:uuid:" + first->spec().host_id());
  EXPECT_EQ(first->spec().host_id()[14], '4') << "as a UUID whose bits mean nothing";
  const auto second = Create(NewSubsystem("other", std::string(kNqn) + "2"));
  ASSERT_TRUE(second.ok());
  if (HostUid() != pool::Uid{}) {
    EXPECT_EQ(second->spec().host_id(), first->spec().host_id());
  }
  RestartCleatd();
  EXPECT_EQ(Get("array")->spec().host_id(), first->spec().host_id());
  // To say nothing of it again means the same host.
  EXPECT_EQ(Create(NewSubsystem("array"))->etag(), first->etag());
  EXPECT_EQ(state_->subsystems().Update(Update(NewSubsystem("array")))->etag(), first->etag());
}

TEST_F(SubsystemsTest, WhoThisHostIsCanBeSaid) {
  v1::CreateSubsystemRequest request = NewSubsystem("array");
  request.mutable_subsystem()->mutable_spec()->set_host_nqn(kHostNqn);
  request.mutable_subsystem()->mutable_spec()->set_host_id("4C0F7D1E-8A55-4D0B-9A53-0B6B0F4D2F11");
  const auto made = Create(request);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->spec().host_nqn(), kHostNqn);
  EXPECT_EQ(made->spec().host_id(), kUuid);
}

// ---- Create, list, update, delete ----

TEST_F(SubsystemsTest, TheSameAgainIsTheSameAndSomethingElseIsNot) {
  const auto made = Create(NewSubsystem("array"));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(Create(NewSubsystem("array"))->revision(), made->revision());
  v1::CreateSubsystemRequest other = NewSubsystem("array");
  other.mutable_subsystem()->mutable_spec()->set_data_digest(true);
  EXPECT_EQ(ReasonOf(Create(other).error()), v1::REASON_CONTENT_DIFFERS);
  other = NewSubsystem("array");
  (*other.mutable_subsystem()->mutable_labels())["site"] = "b";
  EXPECT_FALSE(Create(other).ok());
}

// Claims go by the subsystem's name: two names for one subsystem would let two disks have one namespace.
TEST_F(SubsystemsTest, NoTwoHaveTheSameNqn) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  const auto second = Create(NewSubsystem("b"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ReasonOf(second.error()), v1::REASON_NQN_TAKEN);
  EXPECT_EQ(MetadataOf(second.error(), "conflict"), "subsystems/array");
  ASSERT_TRUE(Delete("array").ok());
  EXPECT_TRUE(Create(NewSubsystem("b")).ok());
}

TEST_F(SubsystemsTest, ThereAreNoMoreThanTheMost) {
  for (size_t i = 0; i < kSubsystemsMax; ++i)
    ASSERT_TRUE(Create(NewSubsystem(fmt::format("s{}", i), fmt::format("{}{}", kNqn, i))).ok());
  EXPECT_EQ(ReasonOf(Create(NewSubsystem("more")).error()), v1::REASON_TOO_MANY_RESOURCES);
  v1::ListSubsystemsRequest page;
  page.set_page_size(10);
  size_t listed = 0;
  do {
    const auto list = state_->subsystems().List(page);
    ASSERT_TRUE(list.ok());
    listed += static_cast<size_t>(list->subsystems_size());
    page.set_page_token(list->next_page_token());
  } while (!page.page_token().empty());
  EXPECT_EQ(listed, kSubsystemsMax);
}

TEST_F(SubsystemsTest, SettingsChangeWhileThereAreNoDisksAndLabelsAlways) {
  const auto made = Create(NewSubsystem("array"));
  ASSERT_TRUE(made.ok());
  v1::CreateSubsystemRequest wanted = NewSubsystem("array");
  wanted.mutable_subsystem()->mutable_spec()->set_addresses(0, "10.0.0.2:4421");
  wanted.mutable_subsystem()->mutable_spec()->set_header_digest(true);
  const auto updated = state_->subsystems().Update(Update(wanted));
  ASSERT_TRUE(updated.ok()) << updated.error().message;
  EXPECT_EQ(updated->spec().addresses(0), "10.0.0.2:4421");
  EXPECT_EQ(updated->spec().host_id(), made->spec().host_id());
  EXPECT_NE(updated->etag(), made->etag());
  v1::UpdateSubsystemRequest late = Update(NewSubsystem("array"));
  late.mutable_subsystem()->set_etag(made->etag());
  EXPECT_EQ(ReasonOf(state_->subsystems().Update(late).error()), v1::REASON_ETAG_MISMATCH);
  EXPECT_EQ(
      ReasonOf(state_->subsystems().Update(Update(NewSubsystem("array", "nqn.2014-08.org.b:b"))).error()),
      v1::REASON_INVALID_FIELD);

  // Other settings stay, also where the addresses differ too.
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  const auto refused = state_->subsystems().Update(Update(NewSubsystem("array")));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_SUBSYSTEM_IN_USE) << refused.error().message;
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(MetadataOf(refused.error(), "conflict"), "disks/a");
  EXPECT_EQ(state_->subsystems().CheckUpdate(Update(NewSubsystem("array"))).error().message,
            refused.error().message);
  EXPECT_TRUE(state_->subsystems().CheckUpdate(Update(wanted)).ok());
  EXPECT_TRUE(state_->subsystems().Update(Update(wanted)).ok()) << "nothing would change";
  v1::UpdateSubsystemRequest labels;
  labels.mutable_subsystem()->set_name("subsystems/array");
  (*labels.mutable_subsystem()->mutable_labels())["site"] = "b";
  labels.mutable_update_mask()->add_paths("labels");
  EXPECT_TRUE(state_->subsystems().Update(labels).ok());
  RestartCleatd();
  EXPECT_EQ(Get("array")->spec().addresses(0), "10.0.0.2:4421");
  EXPECT_EQ(Get("array")->labels().at("site"), "b");
  EXPECT_EQ(Get("array")->status().disks(), 1U);
}

TEST_F(SubsystemsTest, AddressesAloneChangeWhileNoDiskIsAttached) {
  ASSERT_TRUE(engine_.Connect());
  AttachOne();
  v1::CreateSubsystemRequest wanted = NewSubsystem("array");
  wanted.mutable_subsystem()->mutable_spec()->set_addresses(0, "10.0.0.2");
  wanted.mutable_subsystem()->mutable_spec()->add_addresses("10.0.1.2");
  const auto update = [&] { return state_->subsystems().Update(Update(wanted)); };
  const auto attached = update();
  ASSERT_FALSE(attached.ok()) << "its engine would not know";
  EXPECT_EQ(ReasonOf(attached.error()), v1::REASON_SUBSYSTEM_IN_USE);
  EXPECT_EQ(MetadataOf(attached.error(), "conflict"), "disks/a");
  EXPECT_NE(attached.error().message.find("cleatctl detach vm a"), std::string::npos)
      << attached.error().message;
  EXPECT_EQ(state_->subsystems().CheckUpdate(Update(wanted)).error().message, attached.error().message);

  engine_.Hold("Detach");
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
  engine_.WaitForRequest("Detach controllers/vm 0");
  const auto leaving = update();
  ASSERT_FALSE(leaving.ok()) << "its engine has the disk still";
  EXPECT_EQ(ReasonOf(leaving.error()), v1::REASON_RESOURCE_BUSY) << leaving.error().message;
  EXPECT_EQ(MetadataOf(leaving.error(), "conflict"), "controllers/vm/attachments/a");
  v1::ApplyHostRequest declared;
  declared.set_dry_run(true);
  *declared.add_subsystems() = Update(wanted).subsystem();
  const auto in_thought = ApplyHostCall(*state_, [] { return false; }).Apply(declared);
  ASSERT_TRUE(in_thought.ok());
  EXPECT_EQ(in_thought->results(0).action(), v1::APPLY_ACTION_UPDATED) << "the call itself waits for that";
  engine_.Release();
  Await("a is detached", [&] { return !state_->attachments().Get(GetAttachment("vm", "a")).ok(); });

  const auto updated = update();
  ASSERT_TRUE(updated.ok()) << updated.error().message;
  EXPECT_EQ(updated->spec().addresses(1), "10.0.1.2:4420");
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  const engine::v1::NvmeTcpBackend told = engine_.DiskAt("controllers/vm", 0).nvme_tcp();
  ASSERT_EQ(told.addresses_size(), 2);
  EXPECT_EQ(told.addresses(0), "10.0.0.2:4420");
  EXPECT_EQ(told.addresses(1), "10.0.1.2:4420");
}

// A disk that only reads counts too, and the others need not be attached.
TEST_F(SubsystemsTest, AddressesStayWhileAnyDiskIsAttached) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  v1::CreateDiskRequest reader = NvmeDisk("b", kOtherUuid);
  reader.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(reader).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("b", "vm", /*read_only=*/true)).ok());
  v1::CreateSubsystemRequest wanted = NewSubsystem("array");
  wanted.mutable_subsystem()->mutable_spec()->add_addresses("10.0.0.2");
  RestartCleatd();
  const auto refused = state_->subsystems().Update(Update(wanted));
  ASSERT_FALSE(refused.ok()) << "an engine is to be told of the present one";
  EXPECT_EQ(MetadataOf(refused.error(), "conflict"), "disks/b");
  EXPECT_EQ(Get("array")->spec().addresses_size(), 1);
}

TEST_F(SubsystemsTest, ItStaysAsLongAsItHasDisks) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  EXPECT_EQ(Get("array")->status().disks(), 1U);
  RestartCleatd();
  const auto refused = Delete("array");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_SUBSYSTEM_IN_USE);
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_EQ(Get("array")->status().disks(), 0U);
  ASSERT_TRUE(Delete("array").ok());
  EXPECT_TRUE(Delete("array").ok()) << "what is gone already";
  EXPECT_EQ(ReasonOf(Get("array").error()), v1::REASON_RESOURCE_NOT_FOUND);
  EXPECT_EQ(ReasonOf(WaitFor("subsystems/array").error()), v1::REASON_RESOURCE_NOT_FOUND);
}

TEST_F(SubsystemsTest, ANamespaceIsOneDisksUnlessBothOnlyRead) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  const auto second = state_->disks().Create(NvmeDisk("b", "4C0F7D1E-8A55-4D0B-9A53-0B6B0F4D2F11"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ReasonOf(second.error()), v1::REASON_NAMESPACE_TAKEN) << second.error().message;
  EXPECT_TRUE(state_->disks().Create(NvmeDisk("b", kOtherUuid)).ok());
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  v1::CreateDiskRequest reader = NvmeDisk("c");
  reader.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(reader).ok());
  reader.set_disk_id("d");
  EXPECT_TRUE(state_->disks().Create(reader).ok());
}

TEST_F(SubsystemsTest, ADiskOfOneMigratesOnlyWithReservations) {
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
  v1::AttachDiskRequest attach = Attach("a", "vm");
  attach.mutable_attachment()->mutable_spec()->set_mode(v1::ATTACHMENT_MODE_INCOMING);
  const auto incoming = state_->attachments().Attach(attach);
  ASSERT_FALSE(incoming.ok()) << "two hosts would write to the namespace";
  EXPECT_EQ(MetadataOf(incoming.error(), "field"), "spec.mode");
  EXPECT_NE(incoming.error().message.find("without reservations"), std::string::npos)
      << incoming.error().message;
  v1::CreateSubsystemRequest safe = NewSubsystem("safe");
  safe.mutable_subsystem()->mutable_spec()->set_nqn("nqn.2014-08.org.example:safe");
  safe.mutable_subsystem()->mutable_spec()->set_reservations(v1::RESERVATIONS_EXCLUSIVE);
  ASSERT_TRUE(Create(safe).ok());
  v1::CreateDiskRequest disk = NvmeDisk("b");
  disk.mutable_disk()->mutable_spec()->mutable_nvme_tcp()->set_subsystem("subsystems/safe");
  ASSERT_TRUE(state_->disks().Create(disk).ok());
  v1::AttachDiskRequest safe_attach = Attach("b", "vm");
  safe_attach.mutable_attachment()->mutable_spec()->set_mode(v1::ATTACHMENT_MODE_INCOMING);
  const auto attached = state_->attachments().Attach(safe_attach);
  EXPECT_TRUE(attached.ok()) << attached.error().message;
}

// ---- The store ----

TEST_F(SubsystemsTest, AStoredDiskWithoutItsSubsystemIsDamage) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  for (const std::string subsystem : {"", "subsystems/none"}) {
    SCOPED_TRACE(subsystem);
    auto rows = store_->Load();
    ASSERT_TRUE(rows.ok());
    DiskRow& row = rows->disks.front();
    row.spec.mutable_nvme_tcp()->set_subsystem(subsystem);
    ASSERT_TRUE(store_->Apply({row}).ok());
    MemfdKeeper memory;
    const auto loaded = HostState::Load(*store_, memory);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(ReasonOf(loaded.error()), v1::REASON_STORE_DAMAGED) << loaded.error().message;
  }
}

// As the version before subsystems left it, but for those steps that changed nothing of what is there.
TEST_F(SubsystemsTest, AStoreOfBeforeIsMigratedAndTakesSubsystems) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("n")).ok());
  Stop();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "DROP TABLE subsystems; PRAGMA user_version = 10", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  Start();
  EXPECT_TRUE(state_->disks().Get(GetDisk("n")).ok());
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  RestartCleatd();
  EXPECT_TRUE(Get("array").ok());
}

// A cleatd of before would leave secrets out, so that it may not read a store that can have some (StoreTest.AStoreOfANewerVersion...).
TEST_F(SubsystemsTest, AStoreOfBeforeSecretsBecomesOneThatACleatdOfThenRefuses) {
  constexpr int kOfThen = 11;
  Stop();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
  const std::string back =
      fmt::format("ALTER TABLE subsystems DROP COLUMN reservation_family; PRAGMA user_version = {}", kOfThen);
  ASSERT_EQ(sqlite3_exec(db, back.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  Start();
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  Stop();
  ASSERT_EQ(sqlite3_open((dir_ / "cleat.db").c_str(), &db), SQLITE_OK);
  int version = 0;
  const auto read = [](void* to, int, char** values, char**) {
    *static_cast<int*>(to) = std::stoi(values[0]);
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(db, "PRAGMA user_version", read, &version, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_GT(version, kOfThen);
  Start();
}

// ---- What engines are told, and tell ----

TEST_F(SubsystemsTest, AnEngineIsToldOfTheSubsystemWithEachDisk) {
  ASSERT_TRUE(engine_.Connect());
  AttachOne();
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/vm", "KeepMemory disks/a",
                                              "Attach controllers/vm 0 disks/a"}));
  const engine::v1::NvmeTcpBackend told = engine_.DiskAt("controllers/vm", 0).nvme_tcp();
  const v1::SubsystemSpec spec = Get("array")->spec();
  EXPECT_EQ(told.subsystem(), "subsystems/array");
  EXPECT_EQ(told.nqn(), kNqn);
  ASSERT_EQ(told.addresses_size(), 1);
  EXPECT_EQ(told.addresses(0), "10.0.0.1:4420");
  EXPECT_EQ(told.host_nqn(), spec.host_nqn());
  EXPECT_EQ(told.host_id(), spec.host_id());
  EXPECT_EQ(told.keep_alive_ms(), kKeepAliveMsDefault);
  EXPECT_FALSE(told.header_digest() || told.data_digest());
  EXPECT_EQ(told.namespace_uuid(), kUuid);
  EXPECT_TRUE(WaitFor("subsystems/array").ok());
}

TEST_F(SubsystemsTest, ANamespaceThatGrewIsTheDisksSizeForGood) {
  ASSERT_TRUE(engine_.Connect());
  AttachOne();
  engine_.GrowDisk("controllers/vm", 0, 3 * kMiB);
  Await("the disk's size",
        [this] { return state_->disks().Get(GetDisk("a"))->spec().size_bytes() == 3 * kMiB; });
  RestartCleatd();
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().size_bytes(), 3 * kMiB);
}

}  // namespace
}  // namespace cleat::control::subsystems_test
