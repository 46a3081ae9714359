// SPDX-License-Identifier: Apache-2.0
// Our own initiator against our own target.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nvme/host/association.h"
#include "nvme/host/discovery.h"
#include "tests/unit/nvme/target/rig.h"
#include "tests/unit/nvme/target/target_queue.h"

namespace cleat::nvme::target::counterpart_test {
namespace {

using host::Association;
using host::AssociationInfo;

constexpr uint64_t kLife = 42;

fabrics::HostIdentity Identity() {
  return {.nqn = std::string(kHost), .id = kHostId};
}

host::AssociationConfig AssociationConfigOf() {
  host::AssociationConfig config;
  config.who = "it";
  config.life = kLife;
  config.host = Identity();
  config.subsystem_nqn = kSubsystem;
  config.wanted.ids.uuid = kDiskUuid;
  config.io_queues = 16;
  return config;
}

// An association with the target, in virtual time.
struct Scene final : host::AssociationOwner {
  explicit Scene(Target& target, host::AssociationConfig config = AssociationConfigOf())
      : queue(target), association(std::move(config), *this) {
    queue.owner = &association;
    association.Start(queue, queue.now_ns);
    association.Connected();
    queue.Serve();
  }
  ~Scene() {
    if (!gone) association.End(false);
    queue.Serve();
  }
  void Pass(uint64_t ns) {
    for (const uint64_t end = queue.now_ns + ns; queue.now_ns < end;) {
      queue.now_ns += Association::kTickNs;
      if (queue.controller != nullptr) queue.controller->Tick(queue.now_ns);
      association.Tick(queue.now_ns);
      queue.Serve();
    }
  }
  std::string text() const { return lost ? lost->message : "not lost"; }

  void Live(uint64_t /*life*/, const AssociationInfo& live) override { info = live; }
  void Changed(uint64_t /*life*/, uint32_t bits, const AssociationInfo& now) override {
    changed |= bits;
    info = now;
  }
  void Lost(uint64_t /*life*/, const Error& reason) override { lost = reason; }
  void Gone(uint64_t /*life*/) override { gone = true; }

  TargetQueue queue;
  std::optional<AssociationInfo> info;
  uint32_t changed = 0;
  std::optional<Error> lost;
  bool gone = false;
  Association association;
};

TEST(TargetAndInitiator, FindEachOtherAndTheNamespace) {
  Rig rig({.tcp = {.in_capsule_bytes = 8192}, .queue_entries_max = 256, .command_quiesce_ms = 500});
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 1, [] {
    NamespaceShape other = Shape();
    other.ids = {.uuid = fabrics::Uuid{1}, .nguid = {}, .eui64 = {}};
    return other;
  }()));
  Scene scene(rig.target);
  ASSERT_TRUE(scene.info) << scene.text();
  EXPECT_EQ(scene.info->nsid, 3U);
  EXPECT_EQ(scene.info->ids, Shape().ids);
  EXPECT_EQ(scene.info->space.blocks, Shape().blocks);
  EXPECT_EQ(scene.info->io_queues, 8U) << "granted";
  EXPECT_EQ(scene.info->queue_entries_max, 256U);
  EXPECT_EQ(scene.info->kato_ms, 5000U);
  EXPECT_EQ(scene.info->version, 0x00020000U);
  EXPECT_EQ(scene.info->command_set.write_zeroes_bytes_max, 1U << 21);
  EXPECT_EQ(scene.info->command_set.discard_blocks_max, (1U << 30) / 4096);
  EXPECT_EQ(scene.info->ana, fabrics::AnaState::kOptimized);
  EXPECT_TRUE(scene.info->ana_problem.empty());
  EXPECT_TRUE(scene.queue.controller->ready());
  EXPECT_EQ(scene.queue.controller->io_queues_max(), 8U);
}

TEST(TargetAndInitiator, StayTogetherAndPartInAnOrderlyWay) {
  Rig rig;
  Scene scene(rig.target);
  ASSERT_TRUE(scene.info) << scene.text();
  scene.Pass(600 * kSecondNs);
  EXPECT_FALSE(scene.lost) << scene.text();
  EXPECT_GT(scene.association.keep_alives_answered(), 200U);
  scene.association.End(true);
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.gone);
  EXPECT_EQ(rig.target.controllers(), 0U);
}

TEST(TargetAndInitiator, HearOfWhatChanges) {
  Rig rig;
  Scene scene(rig.target);
  ASSERT_TRUE(scene.info) << scene.text();
  NamespaceShape shape = Shape();
  for (int i = 0; i < 3; ++i) {
    shape.blocks *= 2;
    ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, shape));
    scene.Pass(2 * kSecondNs);
    EXPECT_EQ(scene.info->space.blocks, shape.blocks);
  }
  for (const auto state :
       {fabrics::AnaState::kInaccessible, fabrics::AnaState::kChange, fabrics::AnaState::kOptimized}) {
    scene.changed = 0;
    ASSERT_TRUE(rig.target.SetAna(kSubsystem, 3, state));
    scene.Pass(2 * kSecondNs);
    EXPECT_EQ(scene.info->ana, state);
    EXPECT_TRUE(scene.info->ana_problem.empty()) << scene.info->ana_problem;
    EXPECT_NE(scene.changed & host::kChangedAna, 0U);
  }
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  scene.Pass(2 * kSecondNs);
  EXPECT_FALSE(scene.info->present);
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, shape));
  scene.Pass(2 * kSecondNs);
  EXPECT_TRUE(scene.info->present);
  EXPECT_FALSE(scene.lost) << scene.text();
  EXPECT_GE(scene.association.events_seen(), 8U);
}

TEST(TargetAndInitiator, AHostThatIsNotLetInIsToldSo) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {}));
  Scene scene(rig.target);
  ASSERT_TRUE(scene.lost);
  EXPECT_EQ(scene.lost->code, ErrorCode::kPermissionDenied) << scene.text();
}

TEST(TargetAndInitiator, AHostThatIsNoLongerLetInLosesItsPath) {
  Rig rig;
  Scene scene(rig.target);
  ASSERT_TRUE(scene.info) << scene.text();
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {}));
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.lost);
  EXPECT_EQ(rig.target.controllers(), 0U);
}

TEST(TargetAndInitiator, AHostThatIsSilentIsGivenUp) {
  Rig rig;
  Scene scene(rig.target);
  ASSERT_TRUE(scene.info) << scene.text();
  scene.queue.mute = true;
  scene.Pass(5 * kSecondNs);
  EXPECT_TRUE(scene.lost);
  EXPECT_EQ(rig.target.controllers(), 0U);
}

// ---- The discovery service

struct Reading final : host::DiscoveryOwner {
  explicit Reading(Target& target, uint32_t kato_ms = 0)
      : queue(target), discovery({.who = "it", .host = Identity(), .chap = {}, .kato_ms = kato_ms}, *this) {
    queue.owner = &discovery;
    discovery.Start(queue, queue.now_ns);
    discovery.Connected();
    queue.Serve();
  }
  void Pass(uint64_t ns) {
    for (const uint64_t end = queue.now_ns + ns; queue.now_ns < end;) {
      queue.now_ns += host::Discovery::kTickNs;
      if (queue.controller != nullptr) queue.controller->Tick(queue.now_ns);
      discovery.Tick(queue.now_ns);
      queue.Serve();
    }
  }
  void Seen(const fabrics::DiscoveryLog& log) override { seen.push_back(log); }
  void Discovered(Result<fabrics::DiscoveryLog> log) override { result.emplace(std::move(log)); }

  TargetQueue queue;
  std::vector<fabrics::DiscoveryLog> seen;
  std::optional<Result<fabrics::DiscoveryLog>> result;
  host::Discovery discovery;
};

TEST(TargetAndInitiator, TheLogIsReadOnce) {
  Rig rig;
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(rig.target.Add(ConfigOf("nqn.2024-01.com.example:n" + std::to_string(i))));
  Reading reading(rig.target);
  reading.Pass(kSecondNs);
  ASSERT_TRUE(reading.result && *reading.result);
  EXPECT_EQ((*reading.result)->records.size(), 22U) << "in pieces";
  EXPECT_EQ((*reading.result)->skipped, 0U);
}

TEST(TargetAndInitiator, TheLogIsWatched) {
  Rig rig;
  Reading reading(rig.target, 5000);
  reading.Pass(kSecondNs);
  ASSERT_EQ(reading.seen.size(), 1U) << (reading.result ? reading.result->error().message : "");
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(rig.target.Add(ConfigOf("nqn.2024-01.com.example:n" + std::to_string(i))));
    reading.Pass(2 * kSecondNs);
    ASSERT_EQ(reading.seen.size(), 2U + i);
    EXPECT_EQ(reading.seen.back().records.size(), 3U + i);
  }
  reading.Pass(60 * kSecondNs);
  EXPECT_FALSE(reading.result) << reading.result->error().message;
  reading.discovery.GiveUp();
}

}  // namespace
}  // namespace cleat::nvme::target::counterpart_test
