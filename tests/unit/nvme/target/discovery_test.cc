// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::discovery_test {
namespace {

using fabrics::DiscoveredKind;
using fabrics::DiscoveryLog;

constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint32_t kLogEvent = 0x0070f002;
constexpr std::string_view kSecond = "nqn.2024-01.com.example:b";

DiscoveryLog LogOf(Rig& rig, TargetController& controller) {
  const uint32_t bytes = 16 * 1024;
  auto log = fabrics::ParseDiscoveryLog(
      rig.Read(controller, GetLogPage(LogPage::kDiscovery, 0, bytes), bytes), "it");
  EXPECT_TRUE(log);
  EXPECT_EQ(log->skipped, 0U) << log->why_skipped;
  return std::move(*log);
}

// The addresses at which a subsystem is.
std::vector<std::string> Where(const DiscoveryLog& log, std::string_view nqn) {
  std::vector<std::string> where;
  for (const auto& record : log.records) {
    if (record.subsystem_nqn == nqn) where.push_back(fabrics::TextOfAddress(*record.address));
  }
  return where;
}

fabrics::TransportAddress Address(std::string_view text) {
  return *fabrics::ParseAddressOfAnyTransport(text);
}

std::vector<uint8_t> BytesOf(Rig& rig, TargetController& controller, size_t records) {
  const auto bytes = static_cast<uint32_t>(1024 * (1 + records));
  return rig.Read(controller, GetLogPage(LogPage::kDiscovery, 0, bytes), bytes);
}

TEST(TargetDiscovery, EachHostSeesWhatItMayUse) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.hosts = {HostAccess::Named(kOtherHost)};
  ASSERT_TRUE(rig.target.Add(config));
  const DiscoveryLog log = LogOf(rig, rig.Live(fabrics::kDiscoveryNqn));
  ASSERT_EQ(log.records.size(), 2U);
  const fabrics::DiscoveryRecord& service = log.records[0];
  EXPECT_EQ(service.kind, DiscoveredKind::kThisService);
  EXPECT_EQ(service.subsystem_nqn, fabrics::kDiscoveryNqn);
  EXPECT_EQ(service.address, kLocal);
  const fabrics::DiscoveryRecord& record = log.records[1];
  EXPECT_EQ(record.kind, DiscoveredKind::kSubsystem);
  EXPECT_EQ(record.subsystem_nqn, kSubsystem);
  EXPECT_EQ(record.address, kLocal);
  EXPECT_EQ(record.transport, static_cast<uint8_t>(fabrics::TransportType::kTcp));
  EXPECT_EQ(record.controller_id, fabrics::kAnyController);
  EXPECT_EQ(record.admin_entries_max, kAdminEntriesMax);
  EXPECT_TRUE(record.flow_control_optional);
  EXPECT_FALSE(record.tls);
  EXPECT_EQ(record.port_id, 1);
  EXPECT_TRUE(Where(LogOf(rig, rig.Live(fabrics::kDiscoveryNqn, kOtherHost)), kSubsystem).empty());
  EXPECT_EQ(LogOf(rig, rig.Live(fabrics::kDiscoveryNqn, "nqn.2024-01.com.example:stranger")).records.size(),
            1U);
}

TEST(TargetDiscovery, ASubsystemIsAtEachOfItsAddresses) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.addresses = {Address("10.0.0.1:4420"), Address("192.168.0.7:4430"), Address("[fd00::1]:4420")};
  ASSERT_TRUE(rig.target.Add(config));
  const DiscoveryLog log = LogOf(rig, rig.Live(fabrics::kDiscoveryNqn));
  EXPECT_EQ(Where(log, kSecond),
            (std::vector<std::string>{"10.0.0.1:4420", "192.168.0.7:4430", "[fd00::1]:4420"}));
  EXPECT_EQ(log.records.back().port_id, 3);
}

// A host that reads the log of either engine knows both, before it needs the other one.
TEST(TargetDiscovery, ASubsystemIsAtItsStandbyAddressesTooWhicheverEngineIsAsked) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.addresses = {Address("10.0.0.1:4420"), Address("0.0.0.0:4421")};
  config.standby_addresses = {Address("10.0.0.1:4430"), Address("10.0.0.1:4421")};
  ASSERT_TRUE(rig.target.Add(config));
  for (const auto state : {fabrics::AnaState::kInaccessible, fabrics::AnaState::kOptimized}) {
    ASSERT_TRUE(rig.target.SetAna(kSecond, state));
    const DiscoveryLog log = LogOf(rig, rig.Live(fabrics::kDiscoveryNqn));
    EXPECT_EQ(Where(log, kSecond),
              (std::vector<std::string>{"10.0.0.1:4420", "10.0.0.1:4421", "10.0.0.1:4430"}))
        << "each once, though the wildcard stands for one of them";
    std::vector<uint16_t> ports;
    for (const auto& record : log.records) {
      if (record.subsystem_nqn == kSecond) ports.push_back(record.port_id);
    }
    EXPECT_EQ(ports, (std::vector<uint16_t>{1, 2, 3}));
  }
}

TEST(TargetDiscovery, AWildcardIsTheAddressByWhichTheHostCame) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.addresses = {Address("0.0.0.0:4430"), Address("[::]:4440"), Address("10.0.0.1:4430")};
  ASSERT_TRUE(rig.target.Add(config));
  EXPECT_EQ(Where(LogOf(rig, rig.Live(fabrics::kDiscoveryNqn)), kSecond),
            std::vector<std::string>{"10.0.0.1:4430"})
      << "with the listener's port, and once";
  rig.local = Address("[fd00::5]:8009");
  EXPECT_EQ(Where(LogOf(rig, rig.Live(fabrics::kDiscoveryNqn)), kSecond),
            (std::vector<std::string>{"[fd00::5]:4440", "10.0.0.1:4430"}));
}

TEST(TargetDiscovery, AnAddressOverRdmaSaysHowItIsReached) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.addresses = {Address("10.0.0.1:4420"), Address("rdma://10.0.0.1:4420"),
                      Address("rdma://[fd00::1]:4421")};
  ASSERT_TRUE(rig.target.Add(config));
  TargetController& controller = rig.Live(fabrics::kDiscoveryNqn);
  const DiscoveryLog log = LogOf(rig, controller);
  EXPECT_EQ(Where(log, kSecond),
            (std::vector<std::string>{"10.0.0.1:4420", "rdma://10.0.0.1:4420", "rdma://[fd00::1]:4421"}));
  ASSERT_EQ(log.records.size(), 5U);
  EXPECT_EQ(log.records[3].secure_channel, fabrics::SecureChannel::kNotSaid);
  EXPECT_TRUE(log.records[3].flow_control_optional);
  const std::vector<uint8_t> bytes = BytesOf(rig, controller, 5);
  const auto record = [&](size_t index) { return std::span(bytes).subspan(1024 * (1 + index), 1024); };
  EXPECT_EQ(record(2)[0], 3) << "TRTYPE: TCP";
  EXPECT_EQ(record(2)[768], 0) << "SECTYPE: none";
  for (const size_t index : {3U, 4U}) {
    EXPECT_EQ(record(index)[0], 1) << "TRTYPE: RDMA";
    EXPECT_EQ(record(index)[768], 1) << "RDMA_QPTYPE: reliable connected";
    EXPECT_EQ(record(index)[769], 1) << "RDMA_PRTYPE: not said";
    EXPECT_EQ(record(index)[770], 1) << "RDMA_CMS: the RDMA connection manager";
    EXPECT_TRUE(std::ranges::all_of(record(index).subspan(771), [](uint8_t byte) { return byte == 0; }));
  }
  EXPECT_EQ(record(3)[1], 1) << "ADRFAM";
  EXPECT_EQ(record(4)[1], 2);
  const std::string_view traddr = "fd00::1";
  EXPECT_TRUE(std::equal(traddr.begin(), traddr.end(), record(4).begin() + 512)) << "without a scheme";
}

// By whichever transport a host asks, it hears of both: nvme connect-all takes the records that have its own.
TEST(TargetDiscovery, TheServiceIsReadOverRdmaToo) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  config.addresses = {Address("0.0.0.0:4430"), Address("rdma://10.0.0.1:4420")};
  ASSERT_TRUE(rig.target.Add(config));
  rig.local = Address("rdma://10.0.0.1:4420");
  const DiscoveryLog log = LogOf(rig, rig.Live(fabrics::kDiscoveryNqn));
  EXPECT_EQ(log.records[0].kind, DiscoveredKind::kThisService);
  EXPECT_EQ(log.records[0].address, rig.local);
  EXPECT_EQ(Where(log, kSecond), (std::vector<std::string>{"10.0.0.1:4430", "rdma://10.0.0.1:4420"}));
}

TEST(TargetDiscovery, AHostIsToldWhenWhatItSeesChanges) {
  Rig rig;
  TargetController& controller = rig.Live(fabrics::kDiscoveryNqn);
  const uint64_t generation = LogOf(rig, controller).generation;
  uint16_t cid = 0;
  const auto told = [&] {
    const size_t before = rig.heard.completed.size();
    fabrics::SubmissionEntry request = Plain(AsyncEventRequest());
    request.cid = ++cid;
    const Answer answer = rig.Do(controller, request);
    if (answer.kind == Answer::Kind::kHeld) return false;
    EXPECT_EQ(answer.result, kLogEvent);
    EXPECT_EQ(rig.heard.completed.size(), before);
    LogOf(rig, controller);
    return true;
  };
  SubsystemConfig config = ConfigOf(kSecond);
  config.hosts = {HostAccess::Named(kOtherHost)};
  ASSERT_TRUE(rig.target.Add(config));
  ASSERT_TRUE(rig.target.SetHosts(kSecond, {}));
  EXPECT_FALSE(told()) << "it never could use that";
  ASSERT_TRUE(rig.target.SetHosts(kSecond, {HostAccess::Named(kHost)}));
  ASSERT_EQ(rig.heard.completed.size(), 1U);
  EXPECT_EQ(rig.heard.completed[0].second.result, kLogEvent);
  EXPECT_EQ(Where(LogOf(rig, controller), kSecond).size(), 1U);
  EXPECT_GT(LogOf(rig, controller).generation, generation);
  ASSERT_TRUE(rig.target.SetHosts(kSecond, {HostAccess::Named(kHost), HostAccess::Named(kOtherHost)}));
  EXPECT_FALSE(told()) << "another host came";
  ASSERT_TRUE(rig.target.Remove(kSecond));
  EXPECT_EQ(rig.heard.completed.size(), 2U);
  EXPECT_TRUE(Where(LogOf(rig, controller), kSecond).empty());
  ASSERT_TRUE(rig.target.Add(ConfigOf(kSecond)));
  EXPECT_TRUE(told());
}

TEST(TargetDiscovery, ControllersHaveTheLogAndLittleElse) {
  Rig rig;
  TargetController& controller = rig.Live(fabrics::kDiscoveryNqn);
  const auto page = rig.Read(controller, Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  const auto info = fabrics::ParseFabrics(IdentifyData(page), "it");
  ASSERT_TRUE(info);
  EXPECT_TRUE(info->discovery);
  EXPECT_EQ(info->subsystem_nqn, fabrics::kDiscoveryNqn);
  EXPECT_EQ(info->events_supported, fabrics::kEventDiscovery);
  EXPECT_TRUE(info->log_offsets);
  EXPECT_EQ(info->keep_alive_granularity_ms, 100U);
  EXPECT_FALSE(ParseController(IdentifyData(page), "it")) << "it has no storage";
  for (const IdentifyCns cns :
       {IdentifyCns::kNamespace, IdentifyCns::kActiveNamespaces, IdentifyCns::kDescriptors})
    EXPECT_EQ(rig.Do(controller, ToHost(Identify(cns, 3), 4096)).status, status_field::kInvalidField | kDnr);
  const auto supported = rig.Read(controller, GetLogPage(LogPage::kSupportedPages, 0, 1024), 1024);
  for (uint32_t log = 0; log < 256; ++log) {
    const uint16_t status = rig.Do(controller, ToHost(GetLogPage(static_cast<LogPage>(log), 0, 4), 4)).status;
    EXPECT_EQ(status, supported[size_t{4} * log] == 1 ? 0 : status_field::kInvalidLogPage | kDnr) << log;
  }
  EXPECT_EQ(rig.Do(controller, SetFeature(Feature::kQueues, 0)).status, status_field::kInvalidField | kDnr);
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kKeepAliveTimer, 0)).ok()) << "it may have none";
  TargetController& storage = rig.Live();
  EXPECT_EQ(rig.Do(storage, ToHost(GetLogPage(LogPage::kDiscovery, 0, 4), 4)).status,
            status_field::kInvalidLogPage | kDnr);
}

TEST(TargetDiscovery, TheLogEndsAtWhatHostsRead) {
  Rig rig;
  for (uint32_t i = 0; i < 140; ++i) {
    SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:many" + std::to_string(i));
    config.addresses.clear();
    for (uint8_t a = 1; a <= kAddressesMax; ++a) {
      config.addresses.push_back(kLocal);
      config.addresses.back().address[3] = a;
    }
    ASSERT_TRUE(rig.target.Add(config));
  }
  TargetController& controller = rig.Live(fabrics::kDiscoveryNqn);
  const auto header = rig.Read(controller, GetLogPage(LogPage::kDiscovery, 0, 1024), 1024);
  EXPECT_EQ(header[8] | header[9] << 8, static_cast<int>(fabrics::kDiscoveryRecordsMax));
}

}  // namespace
}  // namespace cleat::nvme::target::discovery_test
