// SPDX-License-Identifier: Apache-2.0
// Commands that no honest host sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::hostile_test {
namespace {

constexpr uint32_t kCommands = 100'000;

// Mostly commands that there are, with fields that are random, or nearly right.
class Attacker {
 public:
  explicit Attacker(uint64_t seed) : random_(seed) {}

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_.Below(end)); }

  // Small numbers, limits and whatever.
  uint32_t Field() {
    switch (Below(4)) {
      case 0:
        return Below(8);
      case 1:
        return UINT32_MAX - Below(4);
      case 2:
        return 1U << Below(32);
      default:
        return static_cast<uint32_t>(random_.Next());
    }
  }

  fabrics::SubmissionEntry Entry() {
    constexpr uint8_t kOpcodes[] = {0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x7f, 0x00};
    fabrics::SubmissionEntry entry;
    entry.opcode = Below(8) == 0 ? static_cast<uint8_t>(Field()) : kOpcodes[Below(10)];
    entry.flags = Below(8) == 0 ? static_cast<uint8_t>(Field()) : fabrics::kFlagsSgl;
    entry.cid = static_cast<uint16_t>(Field());
    entry.nsid = Field();
    entry.data.type = Below(8) == 0 ? static_cast<uint8_t>(Field()) : fabrics::kSglByTransport;
    entry.data.length_bytes = Below(2) == 0 ? 4096 : Field();
    entry.cdw10 = Field();
    entry.cdw11 = Field();
    entry.cdw12 = Below(2) == 0 ? 0 : Field();
    entry.cdw13 = Below(2) == 0 ? 0 : Field();
    entry.cdw14 = Below(2) == 0 ? 0 : Field();
    if (entry.opcode == 0x02 || entry.opcode == 0x06 || entry.opcode == 0x09 || entry.opcode == 0x0a) {
      constexpr uint32_t kOften[] = {0x01, 0x0c, 0x70, 0x00};
      if (Below(2) == 0)
        entry.cdw10 = (Below(2) == 0 ? kOften[Below(4)] : Below(0x20)) | (Below(2) == 0 ? 0x3ffU << 16 : 0);
      if (Below(2) == 0) entry.nsid = Below(2) == 0 ? Below(70) : kAllNamespaces;
    }
    if (entry.opcode == 0x7f && Below(8) == 0) {
      entry.cdw11 = 0x14;  // CC
      entry.nsid = 0;
      entry.cdw10 = 0;
      entry.cdw12 = 0x00460000U | Below(2) | Below(4) << 14;
    }
    return entry;
  }

  uint64_t Next() { return random_.Next(); }

 private:
  Random random_;
};

class TargetUnderAttack : public testing::TestWithParam<const char*> {};

TEST_P(TargetUnderAttack, AnswersWithNoMoreThanThereIsRoomFor) {
  Rig rig;
  Attacker attacker(std::strlen(GetParam()));
  TargetController* controller = &rig.Live(GetParam());
  uint64_t held = 0, executed = 0, served = 0;
  for (uint32_t i = 0; i < kCommands; ++i) {
    const fabrics::SubmissionEntry entry = attacker.Entry();
    rig.now_ns += attacker.Below(1'000'000);
    const Answer answer = rig.Do(*controller, entry);
    ASSERT_LE(answer.data.size(), entry.data.length_bytes);
    ASSERT_LE(answer.data.size(), 1U << 20) << "nor than a command may carry";
    ASSERT_TRUE(answer.ok() || answer.data.empty());
    if (answer.kind == Answer::Kind::kHeld) ++held;
    if (answer.ok()) ++executed;
    // So that most of what comes is executed.
    if (!controller->ready() && !controller->ending() && attacker.Below(4) == 0) {
      (void)rig.Do(*controller, fabrics::PropertySet(fabrics::Property::kConfiguration, 0));
      (void)rig.Do(*controller, fabrics::PropertySet(fabrics::Property::kConfiguration, 0x00460001));
    }
    if (!answer.data.empty()) ++served;
    if (attacker.Below(64) == 0) {
      NamespaceShape shape = Shape();
      const uint32_t nsid = attacker.Below(kNamespacesMax) + 1;
      if (attacker.Below(2) == 0) {
        ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, nsid, shape));
      } else {
        (void)rig.target.RemoveNamespace(kSubsystem, nsid);
      }
    }
    ASSERT_LE(held, kEventRequestsMax + rig.heard.completed.size());
    if (controller->ending()) {
      rig.End(*controller);
      controller = &rig.Live(GetParam());
      held = 0;
      rig.heard.completed.clear();
    }
  }
  EXPECT_GT(executed, kCommands / 10) << "the attack gets far enough to be one";
  EXPECT_GT(served, kCommands / 200);
}

INSTANTIATE_TEST_SUITE_P(Both, TargetUnderAttack,
                         testing::Values(kSubsystem.data(), fabrics::kDiscoveryNqn.data()),
                         [](const auto& scene) {
                           return std::string(scene.index == 0 ? "Storage" : "Discovery");
                         });

TEST(TargetConnectUnderAttack, MakesNoControllerForWhatIsNoConnect) {
  Rig rig;
  Attacker attacker(7);
  for (uint32_t i = 0; i < kCommands; ++i) {
    ConnectCapsule capsule(static_cast<uint16_t>(attacker.Below(3)));
    auto* const bytes = reinterpret_cast<uint8_t*>(&capsule.data);
    const uint32_t changes = attacker.Below(4);
    for (uint32_t c = 0; c < changes; ++c)
      bytes[attacker.Below(sizeof(capsule.data))] = static_cast<uint8_t>(attacker.Next());
    if (attacker.Below(2) == 0) capsule.entry = attacker.Entry();
    const size_t length = attacker.Below(8) == 0 ? attacker.Below(1024) : 1024;
    const Connected connected = rig.target.Connect(capsule.entry, capsule.bytes().first(length), kLocal,
                                                   nullptr, rig.heard, rig.now_ns);
    ASSERT_EQ(connected.answer.ok(), connected.controller != nullptr);
    if (connected.controller == nullptr) continue;
    ASSERT_EQ(connected.queue_id, 0);
    ASSERT_EQ(connected.controller->host_nqn(), kHost) << "nobody else is let in";
    rig.target.End(*connected.controller);
  }
  EXPECT_EQ(rig.target.controllers(), 0U);
}

}  // namespace
}  // namespace cleat::nvme::target::hostile_test
