// SPDX-License-Identifier: Apache-2.0
// What Reservation Report says, and that our initiator reads it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nvme/fabrics/commands.h"
#include "nvme/host/reservation/reservation_commands.h"
#include "nvme/target/reservations/reservation_commands.h"
#include "tests/unit/nvme/target/reservation_scene.h"

namespace cleat::nvme::target::reservation_report_test {
namespace {

using fabrics::PowerLoss;
using fabrics::RegisterAction;
using fabrics::SubmissionEntry;
using host::ExistingKey;
using reservation_scene::HeldByA;
using reservation_scene::IsForAll;
using reservation_scene::kA;
using reservation_scene::kB;
using reservation_scene::kC;
using reservation_scene::kDnr;
using reservation_scene::kKeyA;
using reservation_scene::kKeyB;
using reservation_scene::kKeyC;
using reservation_scene::kNsid;
using reservation_scene::kTypes;
using reservation_scene::Namespace;

TEST(ReservationReport, IsWhatOurInitiatorReads) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    EXPECT_EQ(
        space.Change(kA, RegisterAction::kReplace, kKeyA, kKeyA, ExistingKey::kHasToFit, PowerLoss::kPersist),
        0);
    const std::vector<ReportedController> controllers = {{.id = 1, .host_id = kA},
                                                         {.id = 2, .host_id = kB},
                                                         {.id = 3, .host_id = kA},
                                                         {.id = 4, .host_id = {9}}};
    const SubmissionEntry entry = fabrics::EntryOf(host::ReservationReportOf(kNsid, host::kReportBytes));
    EXPECT_EQ(CheckReport(entry, host::kReportBytes), 0);
    EXPECT_EQ(ReportBytesOf(entry), host::kReportBytes);
    const std::vector<uint8_t> report = ReportOf(space.now, controllers, host::kReportBytes);
    ASSERT_EQ(report.size(), host::kReportBytes);
    const auto read = host::ParseReservationReport(report, "it");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->generation, 4U);
    EXPECT_EQ(read->type, type);
    EXPECT_TRUE(read->persistent);
    const std::vector<host::Registrant> all = {{.host_id = kA, .key = kKeyA, .holder = true},
                                               {.host_id = kB, .key = kKeyB, .holder = IsForAll(type)},
                                               {.host_id = kC, .key = kKeyC, .holder = IsForAll(type)}};
    EXPECT_EQ(read->registrants, all);
    EXPECT_EQ(report[5], 4) << "REGCTL: A has two controllers";
    const auto id = [&](size_t i) { return report[64 + 64 * i] | report[65 + 64 * i] << 8; };
    EXPECT_EQ(id(0), 1);
    EXPECT_EQ(id(1), 3);
    EXPECT_EQ(id(2), 2);
    EXPECT_EQ(id(3), 0xffff) << "C is registered, and not here";
  }
}

TEST(ReservationReport, IsCutWhereTheHostsRoomEnds) {
  const Namespace space = HeldByA(ReservationType::kWriteExclusive);
  const std::vector<uint8_t> whole = ReportOf(space.now, {}, 300);
  ASSERT_EQ(whole.size(), 300U);
  EXPECT_TRUE(std::all_of(whole.begin() + 256, whole.end(), [](uint8_t byte) { return byte == 0; }));
  for (uint32_t bytes = 0; bytes <= 300; ++bytes) {
    const std::vector<uint8_t> part = ReportOf(space.now, {}, bytes);
    EXPECT_EQ(part, std::vector(whole.begin(), whole.begin() + bytes));
  }
}

TEST(ReservationReport, OfShortHostIdentifiersOrWithoutRoomIsRefused) {
  SubmissionEntry entry = fabrics::EntryOf(host::ReservationReportOf(kNsid, 128));
  EXPECT_EQ(CheckReport(entry, 128), 0);
  EXPECT_EQ(CheckReport(entry, 124), status_field::kSglLengthInvalid | kDnr);
  entry.cdw10 = UINT32_MAX;
  EXPECT_EQ(CheckReport(entry, UINT32_MAX), status_field::kSglLengthInvalid | kDnr);
  entry = fabrics::EntryOf(host::ReservationReportOf(kNsid, 128));
  entry.cdw11 = 0;
  EXPECT_EQ(CheckReport(entry, 128), status_field::kHostIdFormat | kDnr);
}

}  // namespace
}  // namespace cleat::nvme::target::reservation_report_test
