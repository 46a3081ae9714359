// SPDX-License-Identifier: Apache-2.0
// Hosts that come by TLS, over real sockets: Cleat's initiator, OpenSSL's client, and those that have another key, none, or break the rules.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "modules/nvmf/nvmf_discovery.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::tls_host_test {
namespace {

using block::IoStatus;
using block::Op;
using nvme::Opcode;
using nvme::target::HostAccess;
using nvme::tls::ConnectionKey;
using nvme::tls::IdentityVersion;
using nvme::tls::Psk;
using test::Association;
using test::BlocksEntry;
using test::kOtherTlsKey;
using test::kTlsKeys;
using test::RandomLoad;
using test::RawHost;
using test::TargetRig;

using Bytes = std::vector<uint8_t>;

constexpr uint16_t kInvalidHost = 0x184;
const nvme::fabrics::HostIdentity& OtherHost() {
  static const nvme::fabrics::HostIdentity host = nvme::fabrics::HostIdentityOfUuid({8, 8, 8});
  return host;
}

std::shared_ptr<const Psk> KeyOf(const char* text) {
  return std::make_shared<const Psk>(Psk::Parse(text, "the key").value());
}
HostAccess With(const char* text, const std::string& host = TargetRig::HostNqn()) {
  HostAccess access = HostAccess::Named(host);
  access.psk = KeyOf(text);
  return access;
}
ConnectionKey KeyFor(const char* text, IdentityVersion version = IdentityVersion::kV0,
                     const std::string& host = TargetRig::HostNqn()) {
  return KeyOf(text)->KeyFor(host, TargetRig::kNqn, version).value();
}
Association Secured(TargetRig& rig) {
  return {RawHost(rig, KeyFor(kTlsKeys[0])), RawHost(rig, KeyFor(kTlsKeys[0]))};
}

TEST(TlsHostTest, WhatIsWrittenIsReadWithEachHashWithAndWithoutDigests) {
  for (const char* const key : kTlsKeys) {
    for (const bool digests : {false, true}) {
      TargetRig rig;
      ASSERT_TRUE(rig.SetHosts({With(key)}).ok());
      rig.psk = KeyOf(key);
      ASSERT_NO_FATAL_FAILURE(rig.OpenHost(digests, digests));
      RandomLoad load(*rig.disk, 1, 0, TargetRig::kBytes);
      load.Run(400);
      EXPECT_EQ(Bytes(rig.storage->content), load.reference());
      EXPECT_TRUE(rig.broken.empty());
    }
  }
}

// The negative controls of the one above.
TEST(TlsHostTest, AHostIsLetInByItsKeyAloneAndOneWithoutInPlainTcpAlone) {
  struct Row {
    const char* what;
    const char* of_target;
    const char* of_host;
    bool comes_in;
  };
  for (const Row& row : {Row{"the same key", kTlsKeys[0], kTlsKeys[0], true},
                         Row{"another key", kTlsKeys[0], kOtherTlsKey, false},
                         Row{"a key of another hash", kTlsKeys[0], kTlsKeys[1], false},
                         Row{"in plain TCP though there is a key", kTlsKeys[0], nullptr, false},
                         Row{"with a key that is not known", nullptr, kTlsKeys[0], false},
                         Row{"in plain TCP", nullptr, nullptr, true}}) {
    SCOPED_TRACE(row.what);
    TargetRig rig;
    ASSERT_TRUE(rig.SetHosts({row.of_target == nullptr ? HostAccess::Named(TargetRig::HostNqn())
                                                       : With(row.of_target)})
                    .ok());
    if (row.of_host != nullptr) rig.psk = KeyOf(row.of_host);
    // By a host's first refusal alone it does not know yet whether its other identity would do.
    auto opened = rig.TryOpen();
    if (!opened.ok() && opened.error().code != ErrorCode::kPermissionDenied) opened = rig.TryOpen();
    ASSERT_EQ(opened.ok(), row.comes_in) << (opened.ok() ? "" : opened.error().message);
    if (!opened.ok()) {
      EXPECT_EQ(opened.error().code, ErrorCode::kPermissionDenied) << opened.error().message;
      EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 0U);
      EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).connections, 0U) << "it never had one";
      continue;
    }
    rig.host = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
    rig.CloseHost();
  }
}

TEST(TlsHostTest, OpensslsClientIsTakenByEachIdentityAndEachHash) {
  for (const char* const key : kTlsKeys) {
    for (const IdentityVersion version : {IdentityVersion::kV0, IdentityVersion::kV1}) {
      TargetRig rig;
      ASSERT_TRUE(rig.SetHosts({With(key)}).ok());
      Association host(RawHost(rig, KeyFor(key, version)), RawHost(rig, KeyFor(key, version)));
      const auto answer = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 7));
      ASSERT_TRUE(answer && answer->status().ok());
      EXPECT_EQ(rig.storage->content[4095], 7);
    }
  }
}

// A host that has a key of its own is that host, whatever it says.
TEST(TlsHostTest, AKeyOfOneHostLetsNoOtherIn) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0]), With(kOtherTlsKey, OtherHost().nqn)}).ok());
  RawHost host(rig, KeyFor(kOtherTlsKey, IdentityVersion::kV0, OtherHost().nqn));
  ASSERT_TRUE(host.established());
  const auto refused = host.Connect(TargetRig::Host());
  ASSERT_TRUE(refused) << "the answer comes before the end";
  EXPECT_EQ(refused->status().field() & 0x3fff, kInvalidHost);
  EXPECT_TRUE(host.WaitForGoodbye());
  RawHost itself(rig, KeyFor(kOtherTlsKey, IdentityVersion::kV0, OtherHost().nqn));
  const auto taken = itself.Connect(OtherHost());
  EXPECT_TRUE(taken && taken->status().ok());
}

TEST(TlsHostTest, AnIoQueueInPlainTcpDoesNotJoinAnAssociationThatIsSecured) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  RawHost admin(rig, KeyFor(kTlsKeys[0]));
  const uint16_t controller = admin.BecomeAdmin();
  RawHost queue(rig);
  queue.SendConnect(1, controller);
  const auto answer = queue.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().field() & 0x3fff, kInvalidHost);
}

TEST(TlsHostTest, WhoDoesNotKnowTheKeyHearsSoAndIsGone) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  RawHost other_key(rig, KeyFor(kOtherTlsKey));
  EXPECT_FALSE(other_key.established());
  EXPECT_FALSE(other_key.tls().why().empty()) << "an alert";
  RawHost unknown(rig, KeyFor(kTlsKeys[0], IdentityVersion::kV0, OtherHost().nqn));
  EXPECT_FALSE(unknown.established());
  EXPECT_NE(unknown.tls().why().find("unknown psk identity"), std::string::npos) << unknown.tls().why();
}

TEST(TlsHostTest, TheDiscoveryServiceIsReadByAKeyOfAnySubsystem) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[1])}).ok());
  const auto read = [&rig](const char* key) {
    return rig.Await<Result<nvme::fabrics::DiscoveryLog>>(
        [&rig, key](TargetRig&) -> Task<Result<nvme::fabrics::DiscoveryLog>> {
          modules::NvmfDiscovery options;
          options.address = rig.addresses[0];
          options.host = TargetRig::Host();
          if (key != nullptr) options.psk = KeyOf(key);
          co_return co_await modules::DiscoverNvmf(std::move(options));
        });
  };
  const auto log = read(kTlsKeys[1]);
  ASSERT_TRUE(log.ok()) << log.error().message;
  EXPECT_FALSE(log->records.empty());
  EXPECT_TRUE(read(nullptr).ok()) << "in plain TCP, too";
  EXPECT_FALSE(read(kTlsKeys[0]).ok());
}

// ---- Hosts that break the rules

TEST(TlsHostTest, AChangedRecordEndsTheConnectionWithAnAlert) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  Association host = Secured(rig);
  host.queue.tls().Write(Bytes(100, 1));
  Bytes record = host.queue.tls().Take();
  record[50] ^= 1;
  host.queue.SendWire(record.data(), record.size());
  EXPECT_TRUE(host.queue.WaitForGoodbye());
  EXPECT_TRUE(host.queue.tls().failed());
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).io_queues == 0; });
}

TEST(TlsHostTest, KeyUpdatesWithoutDataEndTheConnectionAndThoseWithDataDoNot) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  Association host = Secured(rig);
  for (int turn = 0; turn < 10; ++turn) {
    host.queue.tls().UpdateKey(true);
    const auto answer = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 7));
    ASSERT_TRUE(answer && answer->status().ok());
  }
  for (int turn = 0; turn < 100; ++turn) host.queue.tls().UpdateKey(false);
  host.queue.SendRecords();
  EXPECT_TRUE(host.queue.WaitForGoodbye());
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).io_queues == 0; });
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 1U) << "and nothing else of it";
}

// More than the kernel and the session have room for waits here, and none of it is lost or comes twice.
TEST(TlsHostTest, AHostThatReadsNothingForAWhileGetsAllOfIt) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  Association host = Secured(rig);
  constexpr uint32_t kBlocks = 2048;
  for (size_t at = 0; at < rig.storage->content.size(); ++at)
    rig.storage->content[at] = static_cast<uint8_t>(at >> 9);
  constexpr int kReads = 12;
  for (int i = 0; i < kReads; ++i) host.queue.Send(BlocksEntry(Opcode::kRead, 0, kBlocks, false));
  for (int turn = 0; turn < 2000; ++turn) rig.Turn();
  for (int i = 0; i < kReads; ++i) {
    const auto answer = host.queue.Answer();
    ASSERT_TRUE(answer && answer->status().ok()) << i;
  }
  const auto write = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 9));
  EXPECT_TRUE(write && write->status().ok());
}

TEST(TlsHostTest, ARecordInPartsIsWaitedForAndTheNextOneIsRead) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  Association host = Secured(rig);
  for (const size_t cut : {1U, 5U, 6U, 20U}) {
    host.queue.tls().UpdateKey(false);  // a record before it
    const Bytes first = host.queue.tls().Take();
    host.queue.SendWire(first.data(), cut);
    for (int turn = 0; turn < 50; ++turn) rig.Turn();
    host.queue.SendWire(first.data() + cut, first.size() - cut);
    const auto answer = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 3));
    ASSERT_TRUE(answer && answer->status().ok()) << cut;
  }
}

TEST(TlsHostTest, ItsLeavingIsHeardAndAnswered) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({With(kTlsKeys[0])}).ok());
  Association host = Secured(rig);
  host.admin.tls().Close();
  host.admin.SendRecords();
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
  EXPECT_TRUE(host.queue.WaitForGoodbye()) << "the other queue of it";
}

}  // namespace
}  // namespace cleat::nvmf_target::tls_host_test
