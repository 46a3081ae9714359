// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/log_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace cleat::nvme::fabrics {
namespace {

using Bytes = std::vector<uint8_t>;
using Progress = LogReader::Progress;

template <typename Number>
void Put(Bytes& bytes, size_t offset, Number number) {
  std::memcpy(bytes.data() + offset, &number, sizeof(number));
}

Bytes DiscoveryBytes(uint64_t generation, uint64_t records) {
  Bytes bytes(1024 * (records + 1));
  Put<uint64_t>(bytes, 0, generation);
  Put<uint64_t>(bytes, 8, records);
  for (size_t i = 1; i <= records; ++i) {
    const size_t at = 1024 * i;
    bytes[at] = 3;
    bytes[at + 1] = 1;
    bytes[at + 2] = 2;
    std::memcpy(&bytes[at + 32], "4420   ", 7);
    std::memcpy(&bytes[at + 256], "nqn.2024-01.com.example:a", 25);
    std::memcpy(&bytes[at + 512], "10.0.0.1", 8);
  }
  return bytes;
}

// Groups 1 to n, each with the namespaces that are given, all optimized.
Bytes AnaBytes(uint64_t count, uint32_t groups, const std::vector<uint32_t>& namespaces = {}) {
  Bytes bytes(16 + groups * (32 + 4 * namespaces.size()));
  Put<uint64_t>(bytes, 0, count);
  Put<uint16_t>(bytes, 8, static_cast<uint16_t>(groups));
  size_t at = 16;
  for (uint32_t i = 1; i <= groups; ++i) {
    Put<uint32_t>(bytes, at, i);
    Put<uint32_t>(bytes, at + 4, static_cast<uint32_t>(namespaces.size()));
    bytes[at + 16] = 1;
    at += 32;
    for (const uint32_t nsid : namespaces) {
      Put<uint32_t>(bytes, at, nsid);
      at += 4;
    }
  }
  return bytes;
}

// Answers one command of a reader from `log`.
Result<Progress> Serve(LogReader& reader, const Bytes& log, uint32_t& largest) {
  const Command command = reader.command();
  const std::span<uint8_t> room = reader.room();
  const uint32_t asked = ((command.cdw10 >> 16) + 1) * 4;
  EXPECT_EQ(asked, room.size());
  largest = std::max(largest, asked);
  EXPECT_LE(command.cdw12 + asked, log.size());
  std::memcpy(room.data(), log.data() + command.cdw12, room.size());
  return reader.Take(room.size());
}

TEST(LogReader, ALongLogComesInPiecesThatTheControllerAllows) {
  LogReader reader = LogReader::Discovery(4096, "a");
  const Bytes log = DiscoveryBytes(5, 20);
  uint32_t largest = 0;
  Result<Progress> progress = Progress::kMore;
  while (progress && *progress == Progress::kMore) progress = Serve(reader, log, largest);
  ASSERT_TRUE(progress.ok());
  EXPECT_EQ(largest, 4096U);
  EXPECT_TRUE(std::ranges::equal(reader.log(), log));
  EXPECT_EQ(ParseDiscoveryLog(reader.log(), "a")->records.size(), 20U);
}

TEST(LogReader, ALogThatChangesMeanwhileIsReadAgain) {
  LogReader reader = LogReader::Discovery(0, "a");
  uint32_t largest = 0;
  ASSERT_EQ(Serve(reader, DiscoveryBytes(5, 2), largest).value(), Progress::kMore);
  ASSERT_EQ(Serve(reader, DiscoveryBytes(6, 3), largest).value(), Progress::kMore);
  ASSERT_EQ(Serve(reader, DiscoveryBytes(6, 3), largest).value(), Progress::kMore) << "the generation";
  Result<Progress> progress = Progress::kMore;
  while (progress && *progress == Progress::kMore) progress = Serve(reader, DiscoveryBytes(6, 3), largest);
  EXPECT_EQ(ParseDiscoveryLog(reader.log(), "a")->records.size(), 3U);
}

TEST(LogReader, ALogThatNeverStandsStillIsGivenUp) {
  LogReader reader = LogReader::Discovery(0, "a");
  uint32_t largest = 0;
  uint32_t commands = 0;
  Result<Progress> progress = Progress::kMore;
  while (progress && *progress == Progress::kMore)
    progress = Serve(reader, DiscoveryBytes(++commands, 2), largest);
  EXPECT_EQ(progress.error().code, ErrorCode::kAborted);
  EXPECT_EQ(commands, 3 * kLogTriesMax);
}

TEST(LogReader, SizesAreBoundedBeforeMemoryIsTaken) {
  LogReader reader = LogReader::Discovery(0, "a");
  Bytes log = DiscoveryBytes(1, 0);
  Put<uint64_t>(log, 8, UINT64_MAX);
  uint32_t largest = 0;
  EXPECT_EQ(Serve(reader, log, largest).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(reader.log().size(), 1024U);
  reader.Restart();
  EXPECT_FALSE(reader.Take(512).ok()) << "fewer bytes than were asked for";
}

TEST(LogReader, AnAnaLogWithoutOffsetsHasToFit) {
  LogReader fits = LogReader::Ana(4, false, 4096, "a");
  uint32_t largest = 0;
  EXPECT_EQ(Serve(fits, AnaBytes(1, 4), largest).value(), Progress::kDone);
  EXPECT_EQ(fits.command().cdw10 & 0x1ff, 0x10cU) << "groups only";
  LogReader large = LogReader::Ana(kAnaGroupsMax, false, 4096, "a");
  EXPECT_EQ(Serve(large, AnaBytes(1, kAnaGroupsMax), largest).error().code, ErrorCode::kUnimplemented);
}

TEST(DiscoveryLog, ARecordSaysWhereASubsystemIs) {
  Bytes log = DiscoveryBytes(9, 2);
  log[1024 + 3] = 1;
  log[1024 + 768] = 2;
  log[2048 + 256] = 'x';
  const DiscoveryLog parsed = ParseDiscoveryLog(log, "a").value();
  EXPECT_EQ(parsed.generation, 9U);
  ASSERT_EQ(parsed.records.size(), 1U);
  EXPECT_EQ(parsed.skipped, 1U) << "its subsystem's name is none";
  EXPECT_TRUE(parsed.records[0].tls);
  EXPECT_EQ(parsed.records[0].secure_channel, SecureChannel::kRequired);
  EXPECT_EQ(TextOfAddress(*parsed.records[0].address), "10.0.0.1:4420");
}

TEST(DiscoveryLog, ARecordOfRdmaHasAnAddressOfRdmaAndNoTls) {
  Bytes log = DiscoveryBytes(9, 1);
  log[1024] = static_cast<uint8_t>(TransportType::kRdma);
  log[1024 + 768] = 1;  // RDMA_QPTYPE: where TCP has SECTYPE
  const DiscoveryLog parsed = ParseDiscoveryLog(log, "a").value();
  ASSERT_EQ(parsed.records.size(), 1U);
  EXPECT_EQ(TextOfAddress(*parsed.records[0].address), "rdma://10.0.0.1:4420");
  EXPECT_FALSE(parsed.records[0].tls);
}

TEST(DiscoveryLog, ADamagedRecordIsSkippedAndItsFieldNamed) {
  const auto why = [](size_t offset, uint8_t value) {
    Bytes log = DiscoveryBytes(9, 3);
    log[2048 + offset] = value;
    const DiscoveryLog parsed = ParseDiscoveryLog(log, "a").value();
    EXPECT_EQ(parsed.records.size(), parsed.skipped == 0 ? 3U : 2U);
    return parsed.why_skipped;
  };
  EXPECT_EQ(why(0, 3), "");
  EXPECT_EQ(why(2, 9), "record 1 has type 9 (SUBTYPE), which is not known");
  EXPECT_NE(why(3, 3).find("(TREQ)"), std::string::npos);
  EXPECT_NE(why(256, 'x').find("(SUBNQN)"), std::string::npos);
  EXPECT_NE(why(32, 7).find("(TRSVCID)"), std::string::npos) << "no text";
  EXPECT_NE(why(32, 'x').find("TRSVCID"), std::string::npos) << "no number";
  EXPECT_NE(why(512 + 8, 0xff).find("(TRADDR)"), std::string::npos) << "no text";
  EXPECT_NE(why(512, 'x').find("TRADDR"), std::string::npos) << "no address";
  EXPECT_NE(why(1, 2).find("ADRFAM 2"), std::string::npos) << "an address of the other family";
}

TEST(DiscoveryLog, ATextThatFillsItsFieldEndsWithIt) {
  Bytes log = DiscoveryBytes(9, 1);
  std::fill_n(log.begin() + 1024 + 512, 256, 'a');
  std::fill_n(log.begin() + 1024 + 256, 256, 'n');
  EXPECT_EQ(ParseDiscoveryLog(log, "a")->skipped, 1U) << "the name has no end";
  std::memset(&log[1024 + 256], 0, 256);
  std::memcpy(&log[1024 + 256], "nqn.2024-01.com.example:a", 25);
  log[1024] = 2;
  log[1024 + 1] = 4;
  const DiscoveryLog parsed = ParseDiscoveryLog(log, "a").value();
  ASSERT_EQ(parsed.records.size(), 1U) << "Fibre Channel has addresses of its own: " << parsed.why_skipped;
  EXPECT_EQ(parsed.records[0].address_text.size(), 256U);
  EXPECT_FALSE(parsed.records[0].address);
}

TEST(AnaLog, GroupsAreFoundWithTheirState) {
  Bytes log = AnaBytes(3, 2);
  log[16 + 32 + 16] = 0x0f;
  const AnaLog parsed = ParseAnaLog(log, "a").value();
  EXPECT_EQ(parsed.Find(1)->state, AnaState::kOptimized);
  EXPECT_EQ(parsed.Find(2)->state, AnaState::kChange);
  EXPECT_EQ(parsed.Find(3), nullptr);
  EXPECT_EQ(ParseAnaLog(AnaBytes(1, 1, {4, 2}), "a")->namespaces[0].first, 2U);
}

TEST(AnaLog, DamageIsRefused) {
  const auto refused = [](const Bytes& log, std::string_view part) {
    const auto parsed = ParseAnaLog(log, "a");
    return !parsed.ok() && parsed.error().message.find(part) != std::string::npos;
  };
  EXPECT_TRUE(refused(Bytes(15), "header"));
  EXPECT_TRUE(refused(AnaBytes(1, 2, {5}), "namespace 5 twice"));
  Bytes log = AnaBytes(1, 2);
  Put<uint32_t>(log, 16 + 32, 1);
  EXPECT_TRUE(refused(log, "group 1 twice"));
  Put<uint32_t>(log, 16 + 32, 0);
  EXPECT_TRUE(refused(log, "group 0"));
  log = AnaBytes(1, 2);
  log[16 + 16] = 5;
  EXPECT_TRUE(refused(log, "state 5h"));
  log = AnaBytes(1, 2);
  Put<uint32_t>(log, 16 + 4, UINT32_MAX);
  EXPECT_TRUE(refused(log, "namespaces"));
  Put<uint32_t>(log, 16 + 4, 100);
  EXPECT_TRUE(refused(log, "ends within an entry's namespaces"));
  log = AnaBytes(1, 2);
  log.pop_back();
  EXPECT_TRUE(refused(log, "ends within an entry"));
  Put<uint16_t>(log, 8, UINT16_MAX);
  EXPECT_TRUE(refused(log, "65535 groups"));
}

TEST(LogPages, AnyBytesAreReadOrRefused) {
  Random random(7);
  uint64_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes log = random.Chance(1, 3) ? DiscoveryBytes(1, random.Below(3)) : AnaBytes(1, 3, {9});
    for (uint64_t j = random.Below(4); j > 0; --j)
      log[random.Below(std::min<size_t>(log.size(), 1400))] ^= static_cast<uint8_t>(1U << random.Below(8));
    if (random.Chance(1, 3)) log.resize(random.Below(log.size() + 1));
    log.shrink_to_fit();  // so that a read beyond is one
    if (ParseDiscoveryLog(log, "a")) ++taken;
    if (ParseAnaLog(log, "a")) ++taken;
  }
  EXPECT_GT(taken, 0U);
}

}  // namespace
}  // namespace cleat::nvme::fabrics
