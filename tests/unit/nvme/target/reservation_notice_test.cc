// SPDX-License-Identifier: Apache-2.0
// What a host hears of reservations by its controller: the log of notices, its event, what it has masked, and what of it goes on in the next process.
#include "nvme/target/reservations/reservation_notices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::reservation_notice_test {
namespace {

constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint16_t kInvalid = status_field::kInvalidField | kDnr;
constexpr uint16_t kNoNamespace = status_field::kInvalidNamespace | kDnr;
constexpr uint64_t kReservationEvent = 0x0080'0006, kNamespaceEvent = 0x0004'0002;
constexpr uint32_t kNsid = 3, kOtherNsid = 5;
constexpr auto kReleased = ReservationNotice::kReservationReleased;
constexpr auto kPreempted = ReservationNotice::kReservationPreempted;
constexpr auto kUnregistered = ReservationNotice::kRegistrationPreempted;

fabrics::SubmissionEntry EventRequest(uint16_t cid) {
  fabrics::SubmissionEntry entry = Plain(AsyncEventRequest());
  entry.cid = cid;
  return entry;
}

Command GetFeature(Feature feature, uint32_t nsid) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kGetFeatures),
          .nsid = nsid,
          .cdw10 = static_cast<uint32_t>(feature)};
}
Command SetFeatureOf(Feature feature, uint32_t nsid, uint32_t value) {
  Command command = SetFeature(feature, value);
  command.nsid = nsid;
  return command;
}

struct Notice {
  uint64_t number = 0;
  int type = 0;
  int more = 0;
  uint32_t nsid = 0;
  bool operator==(const Notice&) const = default;
};

// With reservations, and namespaces 3 and 5.
struct Scene : Rig {
  explicit Scene(bool reservations = true) : Rig({.features = {.reservations = reservations}}) {
    NamespaceShape other = Shape();
    other.ids.uuid = fabrics::Uuid{0x55};
    EXPECT_TRUE(target.PutNamespace(kSubsystem, kOtherNsid, other));
  }
  void Notify(ReservationNotice notice, uint32_t nsid = kNsid, const fabrics::Uuid& host_id = kHostId) {
    target.NotifyOfReservation(kSubsystem, nsid, host_id, notice);
  }
  Notice ReadOne(TargetController& controller, bool retain = false) {
    Command command = GetLogPage(LogPage::kReservations, 0, kReservationLogBytes);
    if (retain) command.cdw10 |= 1U << 15;
    const std::vector<uint8_t> log = Read(controller, command, kReservationLogBytes);
    Notice notice{.type = log[8], .more = log[9]};
    std::memcpy(&notice.number, log.data(), sizeof(notice.number));
    std::memcpy(&notice.nsid, log.data() + 12, sizeof(notice.nsid));
    EXPECT_TRUE(std::all_of(log.begin() + 16, log.end(), [](uint8_t byte) { return byte == 0; }));
    return notice;
  }
  void Hold(TargetController& controller, uint16_t cid) {
    EXPECT_EQ(Do(controller, EventRequest(cid)).kind, Answer::Kind::kHeld);
  }
};

// ---- Events and the log

TEST(ReservationNotices, AreToldAndReadInTurn) {
  Scene scene;
  TargetController& controller = scene.Live();
  EXPECT_EQ(scene.ReadOne(controller), Notice());
  scene.Hold(controller, 7);
  scene.Hold(controller, 8);
  scene.Hold(controller, 9);
  scene.Notify(kReleased);
  scene.Notify(kPreempted, kOtherNsid);
  scene.Notify(kUnregistered);
  ASSERT_EQ(scene.heard.completed.size(), 1U) << "until the log is read the host comes to look anyway";
  EXPECT_EQ(scene.heard.completed[0].first, 7);
  EXPECT_EQ(scene.heard.completed[0].second.result, kReservationEvent);
  EXPECT_EQ(scene.ReadOne(controller), (Notice{.number = 1, .type = 2, .more = 2, .nsid = kNsid}));
  ASSERT_EQ(scene.heard.completed.size(), 2U) << "there is one more";
  EXPECT_EQ(scene.heard.completed[1].first, 8);
  EXPECT_EQ(scene.ReadOne(controller), (Notice{.number = 2, .type = 3, .more = 1, .nsid = kOtherNsid}));
  ASSERT_EQ(scene.heard.completed.size(), 3U);
  EXPECT_EQ(scene.ReadOne(controller), (Notice{.number = 3, .type = 1, .more = 0, .nsid = kNsid}));
  EXPECT_EQ(scene.heard.completed.size(), 3U);
  EXPECT_EQ(scene.ReadOne(controller), Notice());
  scene.Notify(kReleased);
  EXPECT_EQ(scene.Do(controller, EventRequest(10)).result, kReservationEvent) << "kept until a host asks";
  EXPECT_EQ(scene.ReadOne(controller).number, 4U);
}

TEST(ReservationNotices, StayWhereTheHostRetainsTheEvent) {
  Scene scene;
  TargetController& controller = scene.Live();
  scene.Hold(controller, 1);
  scene.Hold(controller, 2);
  scene.Notify(kReleased);
  const Notice first = scene.ReadOne(controller, /*retain=*/true);
  EXPECT_EQ(first.number, 1U);
  scene.Notify(kReleased);
  EXPECT_EQ(scene.heard.completed.size(), 1U);
  EXPECT_EQ(scene.ReadOne(controller, /*retain=*/true).number, 1U);
  EXPECT_EQ(scene.ReadOne(controller).number, 1U);
  EXPECT_EQ(scene.heard.completed.size(), 2U);
  EXPECT_EQ(scene.ReadOne(controller).number, 2U);
}

TEST(ReservationNotices, OfSoManyTheOldestAreLostAndTheHostSeesIt) {
  Scene scene;
  TargetController& controller = scene.Live();
  for (size_t i = 0; i < kReservationNoticesMax + 10; ++i) scene.Notify(kReleased);
  EXPECT_EQ(scene.ReadOne(controller),
            (Notice{.number = 11, .type = 2, .more = kReservationNoticesMax - 1, .nsid = kNsid}));
  for (size_t i = 1; i < kReservationNoticesMax; ++i) EXPECT_EQ(scene.ReadOne(controller).number, 11 + i);
  EXPECT_EQ(scene.ReadOne(controller), Notice());
}

TEST(ReservationNotices, AreNoneOfTheEventsThatAHostEnables) {
  Scene scene;
  TargetController& controller = scene.Live();
  EXPECT_TRUE(scene.Do(controller, SetFeature(Feature::kAsyncEvents, 0)).ok());
  scene.Hold(controller, 1);
  ASSERT_TRUE(scene.target.RemoveNamespace(kSubsystem, kOtherNsid));
  EXPECT_TRUE(scene.heard.completed.empty());
  scene.Notify(kReleased);
  EXPECT_EQ(scene.heard.completed.size(), 1U);
}

TEST(ReservationNotices, AreOfTheHostThatIsMeantByEachOfItsPaths) {
  Scene scene;
  TargetController& first = scene.Live();
  TargetController& second = scene.Live();
  ConnectCapsule other;
  other.data.host_id = fabrics::Uuid{0x99};
  TargetController& stranger = *scene.Connect(other).controller;
  scene.live.push_back(&stranger);
  EXPECT_TRUE(scene.Do(stranger, fabrics::PropertySet(fabrics::Property::kConfiguration, 0x00460001)).ok());
  scene.Notify(kReleased);
  EXPECT_EQ(scene.ReadOne(first).number, 1U);
  EXPECT_EQ(scene.ReadOne(second).number, 1U);
  EXPECT_EQ(scene.ReadOne(stranger), Notice());
  scene.Notify(kReleased, kNsid, fabrics::Uuid{0x99});
  EXPECT_EQ(scene.ReadOne(first), Notice());
  EXPECT_EQ(scene.ReadOne(stranger).number, 1U);
  scene.target.NotifyOfReservation("nqn.2024-01.com.example:none", kNsid, kHostId, kReleased);
  scene.Notify(kReleased, 9);
  EXPECT_EQ(scene.ReadOne(first), Notice()) << "of no namespace";
  const auto controllers = scene.target.ControllersOf(kSubsystem);
  ASSERT_EQ(controllers.size(), 3U);
  EXPECT_EQ(controllers[0].id, first.id());
  EXPECT_EQ(controllers[0].host_id, kHostId);
  EXPECT_EQ(controllers[2].host_id, fabrics::Uuid{0x99});
  first.End({ErrorCode::kUnavailable, "it leaves"});
  EXPECT_EQ(scene.target.ControllersOf(kSubsystem).size(), 2U);
  EXPECT_TRUE(scene.target.ControllersOf("nqn.2024-01.com.example:none").empty());
}

TEST(ReservationNotices, OfANamespaceThatIsGoneAreGone) {
  Scene scene;
  TargetController& controller = scene.Live();
  EXPECT_TRUE(scene.Do(controller, SetFeatureOf(Feature::kReservationMask, kNsid, 1U << 1)).ok());
  scene.Notify(kReleased);
  ASSERT_TRUE(scene.target.RemoveNamespace(kSubsystem, kNsid));
  EXPECT_EQ(scene.Do(controller, EventRequest(1)).result, kNamespaceEvent) << "and no other event";
  scene.Hold(controller, 2);
  EXPECT_EQ(scene.ReadOne(controller), Notice());
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, kNsid, Shape()));
  EXPECT_EQ(scene.Do(controller, GetFeature(Feature::kReservationMask, kNsid)).result, 0U);
  scene.Notify(kReleased, kOtherNsid);
  ASSERT_TRUE(scene.target.RemoveNamespace(kSubsystem, kNsid));
  EXPECT_EQ(scene.ReadOne(controller).nsid, kOtherNsid);
}

TEST(ReservationNotices, AreForgottenAtAReset) {
  Scene scene;
  TargetController& controller = scene.Live();
  EXPECT_TRUE(scene.Do(controller, SetFeatureOf(Feature::kReservationMask, kNsid, 1U << 1)).ok());
  scene.Notify(kReleased);
  for (const uint32_t configuration : {0U, 0x00460001U})
    EXPECT_TRUE(
        scene.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, configuration)).ok());
  EXPECT_EQ(scene.ReadOne(controller), Notice());
  EXPECT_EQ(scene.Do(controller, GetFeature(Feature::kReservationMask, kNsid)).result, 0U);
  scene.Hold(controller, 1);
  scene.Notify(kReleased);
  EXPECT_EQ(scene.ReadOne(controller).number, 1U) << "the count begins anew";
}

// ---- Features

TEST(ReservationMask, KeepsBackWhatAHostDoesNotWant) {
  Scene scene;
  TargetController& controller = scene.Live();
  const auto mask = [&](uint32_t nsid) {
    return scene.Do(controller, GetFeature(Feature::kReservationMask, nsid)).result;
  };
  const auto set = [&](uint32_t nsid, uint32_t value) {
    return scene.Do(controller, SetFeatureOf(Feature::kReservationMask, nsid, value)).status;
  };
  EXPECT_EQ(mask(kNsid), 0U);
  for (const auto notice : {kUnregistered, kReleased, kPreempted}) {
    EXPECT_EQ(set(kNsid, 0xeU & ~(1U << static_cast<uint32_t>(notice))), 0);
    for (const auto other : {kUnregistered, kReleased, kPreempted}) scene.Notify(other);
    const Notice read = scene.ReadOne(controller);
    EXPECT_EQ(read.type, static_cast<int>(notice));
    EXPECT_EQ(read.more, 0);
    EXPECT_EQ(read.number, static_cast<uint64_t>(notice)) << "what is masked is not counted";
  }
  EXPECT_EQ(set(kNsid, 0xe), 0);
  EXPECT_EQ(mask(kNsid), 0xeU);
  EXPECT_EQ(mask(kOtherNsid), 0U);
  scene.Hold(controller, 1);
  scene.Notify(kReleased);
  EXPECT_TRUE(scene.heard.completed.empty());
  scene.Notify(kReleased, kOtherNsid);
  EXPECT_EQ(scene.heard.completed.size(), 1U);
  EXPECT_EQ(set(kAllNamespaces, 1U << 2), 0);
  EXPECT_EQ(mask(kNsid), 4U);
  EXPECT_EQ(mask(kOtherNsid), 4U);
  EXPECT_EQ(set(kAllNamespaces, 0), 0);
  EXPECT_EQ(mask(kNsid), 0U);
  for (const uint32_t wrong : {1U, 0x10U, 0x8000'000eU}) EXPECT_EQ(set(kNsid, wrong), kInvalid);
  for (const uint32_t nsid : {0U, 4U, kNamespacesMax + 1}) {
    EXPECT_EQ(set(nsid, 0), kNoNamespace);
    EXPECT_EQ(scene.Do(controller, GetFeature(Feature::kReservationMask, nsid)).status, kNoNamespace);
  }
  EXPECT_EQ(scene.Do(controller, GetFeature(Feature::kReservationMask, kAllNamespaces)).status, kInvalid);
}

TEST(ReservationPersistence, IsWhatTheNamespaceHas) {
  Scene scene;
  TargetController& controller = scene.Live();
  const auto persists = [&](uint32_t nsid) {
    return scene.Do(controller, GetFeature(Feature::kReservationPersistence, nsid));
  };
  EXPECT_EQ(persists(kNsid).result, 0U);
  ASSERT_TRUE(scene.target.SetReservationPersists(kSubsystem, kNsid, true));
  EXPECT_EQ(persists(kNsid).result, 1U);
  EXPECT_EQ(persists(kOtherNsid).result, 0U);
  EXPECT_EQ(persists(4).status, kNoNamespace);
  EXPECT_EQ(persists(kAllNamespaces).status, kInvalid);
  for (const uint32_t nsid : {kNsid, kAllNamespaces}) {
    EXPECT_EQ(scene.Do(controller, SetFeatureOf(Feature::kReservationPersistence, nsid, 0)).status,
              status_field::kFeatureNotChangeable | kDnr);
  }
  ASSERT_TRUE(scene.target.SetReservationPersists(kSubsystem, kNsid, false));
  EXPECT_EQ(persists(kNsid).result, 0U);
  EXPECT_EQ(scene.target.SetReservationPersists(kSubsystem, 4, true).error().code, ErrorCode::kNotFound);
}

TEST(ReservationPages, SayWhetherThereAreReservations) {
  for (const bool there : {false, true}) {
    Scene scene(there);
    TargetController& controller = scene.Live();
    const auto page = [&](IdentifyCns cns, uint32_t nsid) {
      return scene.Read(controller, Identify(cns, nsid), kIdentifyBytes);
    };
    const auto log = [&](LogPage lid, uint32_t bytes) {
      return scene.Read(controller, GetLogPage(lid, 0, bytes), bytes);
    };
    EXPECT_EQ((page(IdentifyCns::kController, 0)[520] & 1U << 5) != 0, there) << "ONCS";
    EXPECT_EQ(page(IdentifyCns::kNamespace, kNsid)[31], there ? 0xff : 0) << "RESCAP";
    EXPECT_EQ(page(IdentifyCns::kIndependentNamespace, kNsid)[2], there ? 0xff : 0);
    EXPECT_EQ(log(LogPage::kSupportedPages, 1024)[4 * 0x80], there ? 1 : 0);
    const auto effects = log(LogPage::kFeatureEffects, 1024);
    EXPECT_EQ(effects[4 * 0x82], there ? 1 : 0);
    EXPECT_EQ(effects[4 * 0x83], there ? 1 : 0);
    const auto commands = log(LogPage::kCommandEffects, 4096);
    for (const size_t opcode : {0x0d, 0x0e, 0x11, 0x15})
      EXPECT_EQ(commands[1024 + 4 * opcode], there ? 1 : 0);
  }
}

TEST(ReservationPages, AreNoneWhereThereAreNoReservations) {
  Scene scene(/*reservations=*/false);
  TargetController& controller = scene.Live();
  scene.Hold(controller, 1);
  scene.Notify(kReleased);
  EXPECT_TRUE(scene.heard.completed.empty());
  EXPECT_EQ(scene
                .Do(controller,
                    ToHost(GetLogPage(LogPage::kReservations, 0, kReservationLogBytes), kReservationLogBytes))
                .status,
            status_field::kInvalidLogPage | kDnr);
  for (const Feature feature : {Feature::kReservationMask, Feature::kReservationPersistence}) {
    EXPECT_EQ(scene.Do(controller, GetFeature(feature, kNsid)).status, kInvalid);
    EXPECT_EQ(scene.Do(controller, SetFeatureOf(feature, kNsid, 0)).status, kInvalid);
  }
  Rig with({.features = {.reservations = true}});
  TargetController& discovery = with.Live(fabrics::kDiscoveryNqn);
  EXPECT_EQ(with.Do(discovery, GetFeature(Feature::kReservationMask, kNsid)).status, kInvalid);
}

// ---- Hand-over

TEST(ReservationNotices, GoOnInTheNextProcess) {
  Scene blue;
  TargetController& before = blue.Live();
  EXPECT_TRUE(blue.Do(before, SetFeatureOf(Feature::kReservationMask, kOtherNsid, 1U << 3)).ok());
  for (size_t i = 0; i < kReservationNoticesMax + 2; ++i) blue.Notify(kReleased);
  blue.Notify(kPreempted);
  Scene green;
  const auto restored = green.target.Restore(kSubsystem, before.Save(), green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  TargetController& controller = **restored;
  green.live.push_back(&controller);
  EXPECT_EQ(green.Do(controller, GetFeature(Feature::kReservationMask, kOtherNsid)).result, 8U);
  EXPECT_EQ(green.Do(controller, EventRequest(1)).result, kReservationEvent) << "to be told still";
  green.Hold(controller, 2);
  for (uint64_t number = 4; number <= kReservationNoticesMax + 3; ++number)
    EXPECT_EQ(green.ReadOne(controller).number, number);
  green.Notify(kPreempted, kOtherNsid);
  EXPECT_EQ(green.ReadOne(controller), Notice()) << "masked";
  green.Notify(kReleased);
  EXPECT_EQ(green.ReadOne(controller).number, kReservationNoticesMax + 4);
}

TEST(ReservationNotices, ThatWereToldAreNotToldAgainByTheNextProcess) {
  Scene blue;
  TargetController& before = blue.Live();
  blue.Notify(kReleased);
  EXPECT_EQ(blue.Do(before, EventRequest(1)).result, kReservationEvent);
  Scene green;
  const auto restored = green.target.Restore(kSubsystem, before.Save(), green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok());
  green.live.push_back(*restored);
  green.Hold(**restored, 2);
  green.Notify(kReleased);
  EXPECT_TRUE(green.heard.completed.empty()) << "the host has not read what it was told of";
  EXPECT_EQ(green.ReadOne(**restored).number, 1U);
  EXPECT_EQ(green.heard.completed.size(), 1U);
}

TEST(ReservationNotices, ThatNoControllerHasAreRefused) {
  Scene blue;
  TargetController& before = blue.Live();
  blue.Notify(kReleased);
  EXPECT_TRUE(blue.Do(before, SetFeatureOf(Feature::kReservationMask, kNsid, 1U << 1)).ok());
  const SavedController good = before.Save();
  Scene green;
  const auto refused = [&](Scene& scene, void (*change)(SavedController&)) {
    SavedController saved = good;
    change(saved);
    const auto restored = scene.target.Restore(kSubsystem, saved, scene.heard, scene.now_ns);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.error().code, ErrorCode::kInvalidArgument) << restored.error().message;
  };
  refused(green, [](SavedController& saved) { saved.reservation_notices[0].type = 0; });
  refused(green, [](SavedController& saved) { saved.reservation_notices[0].type = 4; });
  refused(green, [](SavedController& saved) { saved.reservation_notices[0].nsid = 0; });
  refused(green, [](SavedController& saved) { saved.reservation_notices[0].nsid = kNamespacesMax + 1; });
  refused(green, [](SavedController& saved) { saved.reservation_notices_count = 0; });
  refused(green, [](SavedController& saved) {
    saved.reservation_notices.resize(kReservationNoticesMax + 1, saved.reservation_notices[0]);
    saved.reservation_notices_count = 1000;
  });
  refused(green, [](SavedController& saved) { saved.reservation_notices.clear(); });
  refused(green, [](SavedController& saved) { saved.reservation_masks[kNsid] = 0; });
  refused(green, [](SavedController& saved) { saved.reservation_masks[kNsid] = 1; });
  refused(green, [](SavedController& saved) { saved.reservation_masks[0] = 2; });
  refused(green, [](SavedController& saved) { saved.reservation_masks[kNamespacesMax + 1] = 2; });
  Scene without(/*reservations=*/false);
  refused(without, [](SavedController&) {});
  EXPECT_TRUE(green.target.ControllersOf(kSubsystem).empty());
}

TEST(ReservationNotices, NumbersBeginAgainAtOneAndNeverAreNone) {
  SavedController saved;
  saved.reservation_notices_count = UINT64_MAX;
  ReservationNotices notices;
  ASSERT_TRUE(notices.Restore(saved, kNamespacesMax));
  EXPECT_TRUE(notices.Add(kNsid, kReleased));
  EXPECT_EQ(notices.Log()[0], 1);
}

}  // namespace
}  // namespace cleat::nvme::target::reservation_notice_test
