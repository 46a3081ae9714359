// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/reservation/reservation_commands.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "tests/unit/nvme/fabrics/target_pages.h"
#include "tests/unit/nvme/host/reservation_target.h"

namespace cleat::nvme::host::reservation_test {
namespace {

using fabrics::Page;

// A report of two registrants, the first of which holds the reservation.
std::vector<uint8_t> TwoRegistrants() {
  ReservationTarget target;
  target.registrants = {{.host_id = HostIdOf(kFamily, 1), .key = 0x11},
                        {.host_id = HostIdOf(kOtherFamily, 2), .key = 0x22}};
  target.type = ReservationType::kWriteExclusiveAll;
  target.generation = 77;
  return target.Report();
}

template <typename Number>
void Put(std::vector<uint8_t>& report, size_t offset, Number number) {
  std::memcpy(report.data() + offset, &number, sizeof(number));
}

void ExpectDamage(const std::vector<uint8_t>& report, std::string_view part) {
  const auto parsed = ParseReservationReport(report, "disk");
  ASSERT_FALSE(parsed.ok()) << part;
  EXPECT_EQ(parsed.error().code, ErrorCode::kDataLoss);
  EXPECT_TRUE(parsed.error().message.starts_with("disk: ")) << parsed.error().message;
  EXPECT_NE(parsed.error().message.find(part), std::string::npos) << parsed.error().message;
}

TEST(ReservationCommands, SayWhatTheSpecificationHas) {
  Command command =
      ReservationRegister(5, RegisterAction::kReplace, ExistingKey::kIgnored, PowerLoss::kForget);
  EXPECT_EQ(command.opcode, 0x0d);
  EXPECT_EQ(command.nsid, 5U);
  EXPECT_EQ(command.cdw10, 0x8000'000aU);
  command = ReservationRegister(5, RegisterAction::kUnregister, ExistingKey::kHasToFit, PowerLoss::kAsItIs);
  EXPECT_EQ(command.cdw10, 1U);
  command = ReservationAcquire(5, AcquireAction::kPreemptAndAbort, ReservationType::kWriteExclusiveAll);
  EXPECT_EQ(command.opcode, 0x11);
  EXPECT_EQ(command.cdw10, 0x0502U);
  command = ReservationRelease(5, ReleaseAction::kClear, ReservationType::kNone);
  EXPECT_EQ(command.opcode, 0x15);
  EXPECT_EQ(command.cdw10, 1U);
  command = ReservationReportOf(5, kReportBytes);
  EXPECT_EQ(command.opcode, 0x0e);
  EXPECT_EQ(command.cdw10, kReportBytes / 4 - 1) << "one less than the words of four bytes";
  EXPECT_EQ(command.cdw11, 1U) << "the extended form";
}

TEST(ReservationReport, SaysWhoIsThere) {
  const ReservationReport report = ParseReservationReport(TwoRegistrants(), "disk").value();
  EXPECT_EQ(report.generation, 77U);
  EXPECT_EQ(report.type, ReservationType::kWriteExclusiveAll);
  EXPECT_FALSE(report.persistent);
  ASSERT_EQ(report.registrants.size(), 2U);
  EXPECT_EQ(report.registrants[0],
            (Registrant{.host_id = HostIdOf(kFamily, 1), .key = 0x11, .holder = true}));
  EXPECT_FALSE(report.registrants[1].holder);
  EXPECT_EQ(report.Find(HostIdOf(kOtherFamily, 2))->key, 0x22U);
  EXPECT_EQ(report.Find(HostIdOf(kOtherFamily, 1)), nullptr);
  EXPECT_EQ(TextOf(report.registrants[0]),
            "host fa311700-0000-0001-0000-000000000001 with key 0000000000000011h");
}

TEST(ReservationReport, AHostOfSeveralControllersIsOneRegistrant) {
  std::vector<uint8_t> report = TwoRegistrants();
  std::memcpy(&report[128 + 8], &report[64 + 8], 24);
  report[128 + 2] = 1;
  report[64 + 2] = 0;
  const ReservationReport parsed = ParseReservationReport(report, "disk").value();
  ASSERT_EQ(parsed.registrants.size(), 1U);
  EXPECT_TRUE(parsed.registrants[0].holder);
  EXPECT_EQ(parsed.CountOf(0x11), 1U);
  Put<uint64_t>(report, 128 + 8, 0x33);
  ExpectDamage(report, "with two keys (RKEY)");
}

TEST(ReservationReport, DamageIsRefusedByTheNameOfItsField) {
  std::vector<uint8_t> report = TwoRegistrants();
  report.resize(63);
  ExpectDamage(report, "63 bytes");
  ExpectDamage({}, "0 bytes");
  report = TwoRegistrants();
  report[4] = 7;
  ExpectDamage(report, "RTYPE");
  report = TwoRegistrants();
  report[9] = 2;
  ExpectDamage(report, "PTPLS");
  report = TwoRegistrants();
  Put<uint16_t>(report, 5, 3);
  ExpectDamage(report, "3 registrants (REGCTL)");
  report = TwoRegistrants();
  report.pop_back();
  ExpectDamage(report, "2 registrants (REGCTL)");
  report = TwoRegistrants();
  Put<uint64_t>(report, 128 + 8, 0);
  ExpectDamage(report, "key 0 (RKEY)");
  report = TwoRegistrants();
  report[4] = 0;
  ExpectDamage(report, "holder (RCSTS)");
}

TEST(ReservationReport, MoreRegistrantsThanThereIsRoomForAreNoDamage) {
  std::vector<uint8_t> report(kReportBytes);
  Put<uint16_t>(report, 5, kRegistrantsMax + 1);
  const auto parsed = ParseReservationReport(report, "disk");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code, ErrorCode::kResourceExhausted);
  Put<uint16_t>(report, 5, kRegistrantsMax);
  for (uint32_t i = 0; i < kRegistrantsMax; ++i) {
    Put<uint64_t>(report, 64 + i * 64 + 8, i + 1);
    Put<uint64_t>(report, 64 + i * 64 + 16, i);
  }
  EXPECT_EQ(ParseReservationReport(report, "disk")->registrants.size(), kRegistrantsMax);
}

TEST(ReservationReport, AnyBytesAreReadOrRefused) {
  Random random(7);
  uint64_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> report = TwoRegistrants();
    for (int j = 0; j < 4; ++j) {
      const size_t at = random.Chance(1, 2) ? random.Below(10) : random.Below(report.size());
      report[at] = static_cast<uint8_t>(random.Chance(1, 2) ? random.Below(3) : random.Next());
    }
    report.resize(random.Below(report.size() + 64));
    const auto parsed = ParseReservationReport(report, "disk");
    if (!parsed) continue;
    ++taken;
    ASSERT_LE(parsed->registrants.size(), report.size() / kReportEntryBytes);
    for (const Registrant& registrant : parsed->registrants)
      ASSERT_EQ(parsed->Find(registrant.host_id), &registrant) << "a host twice";
  }
  EXPECT_GT(taken, 100U);
}

TEST(ReservationCapabilities, WhatIsMissingIsNamed) {
  ControllerInfo controller;
  fabrics::FabricsInfo fabrics;
  NamespaceInfo space;
  const auto says = [&](std::string_view part) {
    const auto status = CheckReservations(controller, fabrics, space, "disk");
    return !status && status.error().code == ErrorCode::kUnimplemented &&
           status.error().message.find(part) != std::string::npos;
  };
  EXPECT_TRUE(says("RESCAP"));
  space.write_exclusive_all = true;
  EXPECT_TRUE(says("CTRATT"));
  fabrics.long_host_ids = true;
  EXPECT_TRUE(says("ONCS"));
  controller.reservations = true;
  EXPECT_TRUE(CheckReservations(controller, fabrics, space, "disk"));
}

TEST(ReservationCapabilities, AreReadFromWhatControllerAndNamespaceSay) {
  Page page = fabrics::ControllerPage();
  EXPECT_FALSE(ParseController(page.data(), "a")->reservations);
  EXPECT_FALSE(fabrics::ParseFabrics(page.data(), "a")->long_host_ids);
  page.Put<uint16_t>(520, 1U << 5);
  page.Put<uint32_t>(96, 1);
  EXPECT_TRUE(ParseController(page.data(), "a")->reservations);
  EXPECT_TRUE(fabrics::ParseFabrics(page.data(), "a")->long_host_ids);
  Page space = fabrics::NamespacePage();
  EXPECT_FALSE(ParseNamespace(space.data(), {}, "a")->write_exclusive_all);
  space.Put<uint8_t>(31, 0x20);
  EXPECT_TRUE(ParseNamespace(space.data(), {}, "a")->write_exclusive_all);
  EXPECT_FALSE(ParseNamespace(space.data(), {}, "a")->registrants_persist);
  space.Put<uint8_t>(31, 0x01);
  EXPECT_TRUE(ParseNamespace(space.data(), {}, "a")->registrants_persist);
}

}  // namespace
}  // namespace cleat::nvme::host::reservation_test
