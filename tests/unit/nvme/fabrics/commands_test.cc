// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/commands.h"

#include <gtest/gtest.h>

#include "nvme/fabrics/events.h"

namespace cleat::nvme::fabrics {
namespace {

constexpr std::string_view kHost = "nqn.2024-01.com.example:host";
constexpr std::string_view kSubsystem = "nqn.2024-01.com.example:a";

CompletionEntry Answer(uint64_t result, uint8_t type = 0, uint8_t code = 0) {
  CompletionEntry entry;
  entry.result = result;
  entry.status_field = static_cast<uint16_t>((type << 8 | code) << 1);
  return entry;
}

std::string ErrorOf(const CompletionEntry& entry) {
  return ParseConnect(entry, "subsystems/a", kHost, kSubsystem).error().message;
}

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Connect, TheCommandAndItsDataAreWhereTheSpecificationHasThem) {
  const Command command = Connect({.queue_id = 3, .entries = 128, .kato_ms = 5000, .flow_control = false});
  EXPECT_EQ(command.opcode, 0x7f);
  EXPECT_EQ(command.nsid, 1U);
  EXPECT_EQ(command.cdw10, 3U << 16);
  EXPECT_EQ(command.cdw11, 127U | 4U << 16);
  EXPECT_EQ(command.cdw12, 5000U);
  const ConnectData data = ConnectDataOf({.nqn = std::string(kHost), .id = {9}}, kSubsystem, kAnyController);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&data);
  EXPECT_EQ(bytes[0], 9);
  EXPECT_EQ(bytes[16] | bytes[17] << 8, 0xffff);
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes + 256), kSubsystem.data());
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes + 512), kHost.data());
}

TEST(Connect, AnAnswerIsAControllerAndPerhapsAWishForAuthentication) {
  EXPECT_EQ(ParseConnect(Answer(7), "a", kHost, kSubsystem)->controller_id, 7);
  EXPECT_FALSE(ParseConnect(Answer(7), "a", kHost, kSubsystem)->authentication_required);
  EXPECT_TRUE(ParseConnect(Answer(7 | 1U << 17), "a", kHost, kSubsystem)->authentication_required);
  EXPECT_TRUE(Has(ErrorOf(Answer(0xffff)), "0xffff"));
}

TEST(Connect, AnErrorSaysWhatPeopleHaveToChange) {
  EXPECT_TRUE(Has(ErrorOf(Answer(0, 1, 0x84)), "does not let host nqn.2024-01.com.example:host in"));
  EXPECT_EQ(ParseConnect(Answer(0, 1, 0x84), "a", kHost, kSubsystem).error().code,
            ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Has(ErrorOf(Answer(256 | 1U << 16, 1, 0x82)), "the subsystem's NQN (SUBNQN)"));
  EXPECT_TRUE(Has(ErrorOf(Answer(44, 1, 0x82)), "the queue's size (SQSIZE)"));
  EXPECT_TRUE(Has(ErrorOf(Answer(0xffff | 1U << 16, 1, 0x82)), "a reserved field (byte 65535 of the data)"));
  EXPECT_TRUE(Has(ErrorOf(Answer(0, 1, 0x81)), "Controller Busy (1/81h)"));
  EXPECT_TRUE(Has(ErrorOf(Answer(0, 1, 0x80)), "Incompatible Format (1/80h)"))
      << "not Conflicting Attributes";
  EXPECT_TRUE(Has(ErrorOf(Answer(0, 0, 0x06)), "Internal Error"));
}

TEST(Properties, CapabilitiesAreRead) {
  const uint64_t value = 127 | uint64_t{20} << 24 | uint64_t{1} << 37 | uint64_t{1} << 48;
  const Capabilities capabilities = ParseCapabilities(value, "a").value();
  EXPECT_EQ(capabilities.queue_entries_max, 128U);
  EXPECT_EQ(capabilities.ready_timeout_ns, 10'000'000'000U);
  EXPECT_EQ(capabilities.page_shift_min, 13);
  EXPECT_EQ(EnabledConfiguration(capabilities), 0x00460081U);
  EXPECT_EQ(ShutdownConfiguration(0x00460081), 0x00464081U);
  EXPECT_FALSE(ParseCapabilities(0, "a").ok()) << "queues of one entry are none";
  EXPECT_GT(ParseCapabilities(1, "a")->ready_timeout_ns, 0U);
  EXPECT_EQ(EnabledConfiguration(ParseCapabilities(1 | uint64_t{1} << 43, "a").value()), 0x00460061U);
}

TEST(Properties, StatusAndVersionAreRead) {
  EXPECT_TRUE(ParseControllerStatus(1).ready);
  EXPECT_TRUE(ParseControllerStatus(2).fatal);
  EXPECT_TRUE(ParseControllerStatus(8).shutdown_done);
  EXPECT_FALSE(ParseControllerStatus(4).shutdown_done);
  EXPECT_EQ(TextOfVersion(0x00010400), "1.4");
  EXPECT_EQ(TextOfVersion(0x00020001), "2.0.1");
}

TEST(Events, KnownOnesHaveAKindAndAllHaveAName) {
  EXPECT_EQ(ParseEvent(0x040002).kind, EventKind::kNamespaceChanged);
  EXPECT_EQ(ParseEvent(0x0c0302).kind, EventKind::kAnaChanged);
  EXPECT_EQ(ParseEvent(0x70f002).kind, EventKind::kDiscoveryChanged);
  EXPECT_EQ(ParseEvent(0x020001).kind, EventKind::kSmart);
  EXPECT_EQ(ParseEvent(0xff01).kind, EventKind::kSmart) << "of a known type";
  EXPECT_EQ(ParseEvent(0x0300).kind, EventKind::kError);
  EXPECT_EQ(ParseEvent(0x4202).kind, EventKind::kOther);
  EXPECT_EQ(NameOf(ParseEvent(0x040002)), "namespace attribute changed (notice, 00h)");
  EXPECT_EQ(NameOf(ParseEvent(0x4202)), "event of type 2, information 42h");
}

}  // namespace
}  // namespace cleat::nvme::fabrics
