// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/names.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace cleat::nvme::fabrics {
namespace {

bool Good(std::string_view nqn) {
  return CheckNqn(nqn, "the name").ok();
}

TEST(Nqn, NamesOfBothFormsAreTaken) {
  EXPECT_TRUE(Good(kDiscoveryNqn));
  EXPECT_TRUE(Good("nqn.2024-01.com.example:disks/a"));
  EXPECT_TRUE(Good("nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-AABBccddeeff"));
  EXPECT_TRUE(Good("nqn.2024-12.com.example:\xc3\xa4"));
  EXPECT_TRUE(Good("nqn.2024-01.c" + std::string(kNqnBytesMax - 13, 'a')));
}

TEST(Nqn, WhatIsNoNameIsRefused) {
  for (const char* nqn :
       {"", "nqn.", "iqn.2024-01.com.example:a", "nqn.2024-13.com.example:a", "nqn.2024-00.c",
        "nqn.20x4-01.com", "nqn.2024-01.", "nqn.2024-01com", "nqn.2014-08.org.nvmexpress:uuid:0011",
        "nqn.2024-01.com.example:a\nb", "nqn.2024-01.com.example:\xff", "nqn.2024-01.com.example:\xc0\x80",
        "nqn.2024-01.com.example:\xed\xa0\x80", "nqn.2024-01.com.example:\xe2\x82",
        "nqn.2024-01.com.example:\xc2\x85"}) {
    EXPECT_FALSE(Good(nqn)) << nqn;
  }
  EXPECT_FALSE(Good("nqn.2024-01.c" + std::string(kNqnBytesMax - 12, 'a'))) << "224 bytes";
  EXPECT_FALSE(Good(std::string_view("nqn.2024-01.com\0a", 17)));
}

TEST(HostIdentity, AHostOfAUuidHasBothNames) {
  const Uuid uuid = ParseUuid("00112233-4455-6677-8899-aabbccddeeff").value();
  const HostIdentity host = HostIdentityOfUuid(uuid);
  EXPECT_EQ(host.nqn, "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_TRUE(CheckHostIdentity(host).ok());
  EXPECT_FALSE(CheckHostIdentity({.nqn = host.nqn, .id = {}}).ok()) << "zero is no identifier";
}

TEST(Uuid, OnlyTheWrittenFormIsRead) {
  EXPECT_FALSE(ParseUuid("00112233445566778899aabbccddeeff").ok());
  EXPECT_FALSE(ParseUuid("00112233-4455-6677-8899-aabbccddeefg").ok());
  EXPECT_FALSE(ParseUuid("00112233-4455-6677-8899-aabbccddeeff0").ok());
}

TEST(TransportAddress, LiteralsAreReadAndWritten) {
  EXPECT_EQ(TextOfAddress(ParseTransportAddress("10.0.0.1:8009").value()), "10.0.0.1:8009");
  EXPECT_EQ(TextOfAddress(ParseTransportAddress("10.0.0.1").value()), "10.0.0.1:4420");
  EXPECT_EQ(TextOfAddress(ParseTransportAddress("[fd00:0::1]:1").value()), "[fd00::1]:1");
  EXPECT_EQ(TextOfAddress(ParseTransportAddress("[::1]").value()), "[::1]:4420");
  EXPECT_EQ(TextOfAddress(ParseTransportAddress("[::1]", kDiscoveryPort).value()), "[::1]:8009");
}

TEST(TransportAddress, TheTransportIsReadAndWrittenWhereAnyIsMeant) {
  const TransportAddress rdma = ParseAddressOfAnyTransport("rdma://10.0.0.1:4421").value();
  EXPECT_EQ(rdma.transport, TransportType::kRdma);
  EXPECT_EQ(rdma.port, 4421);
  EXPECT_EQ(TextOfAddress(rdma), "rdma://10.0.0.1:4421");
  EXPECT_EQ(TextOfAddress(ParseAddressOfAnyTransport("rdma://10.0.0.1").value()), "rdma://10.0.0.1:4420");
  EXPECT_EQ(TextOfAddress(ParseAddressOfAnyTransport("rdma://[fd00:0::1]").value()), "rdma://[fd00::1]:4420");
  EXPECT_EQ(TextOfAddress(ParseAddressOfAnyTransport("rdma://10.0.0.1", kDiscoveryPort).value()),
            "rdma://10.0.0.1:8009");
  EXPECT_EQ(TextOfAddress(ParseAddressOfAnyTransport("[::1]", kDiscoveryPort).value()), "[::1]:8009");
  const TransportAddress tcp = ParseAddressOfAnyTransport("10.0.0.1:4421").value();
  EXPECT_EQ(tcp, ParseTransportAddress("10.0.0.1:4421").value());
  EXPECT_NE(tcp, rdma) << "they are two";
  for (const char* text : {"", "rdma://", "rdma:10.0.0.1", "rdma:///10.0.0.1", "rdma://10.0.0.1:0",
                           "rdma://::1", "rdma://target:4420", "rdma://rdma://10.0.0.1", "RDMA://10.0.0.1",
                           "tcp://10.0.0.1", " rdma://10.0.0.1", "rdma://10.0.0.1/"}) {
    EXPECT_FALSE(ParseAddressOfAnyTransport(text).ok()) << text;
  }
}

TEST(TransportAddress, OneThatIsWrongIsNamedWithTheFormOfItsTransport) {
  const auto why = [](const char* text, uint16_t port) {
    return ParseAddressOfAnyTransport(text, port).error().message;
  };
  EXPECT_EQ(
      why("rdma://target", kPortDefault),
      "'rdma://target' is no address of a target over RDMA: rdma://10.0.0.1:4420 or rdma://[fd00::1]:4420");
  EXPECT_EQ(why("target", kDiscoveryPort),
            "'target' is no address of a target: 10.0.0.1:8009 or [fd00::1]:8009");
}

TEST(TransportAddress, TheOnesThatStandForAllAreKnown) {
  for (const char* text : {"0.0.0.0", "[::]:1", "rdma://0.0.0.0:4421", "rdma://[0::0]"})
    EXPECT_TRUE(IsUnspecified(ParseAddressOfAnyTransport(text).value())) << text;
  for (const char* text : {"0.0.0.1", "[::1]", "rdma://127.0.0.1", "rdma://[fe80::]"})
    EXPECT_FALSE(IsUnspecified(ParseAddressOfAnyTransport(text).value())) << text;
}

TEST(TransportAddress, WhereTcpAloneIsMeantRdmaIsRefused) {
  for (const char* text : {"rdma://10.0.0.1:4420", "rdma://10.0.0.1", "rdma://[fd00::1]:4420"})
    EXPECT_FALSE(ParseTransportAddress(text).ok()) << text;
}

TEST(TransportAddress, WhatIsNoLiteralIsRefused) {
  for (const char* text :
       {"", ":", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:44x", "10.0.0:1", "target:4420",
        "::1", "[::1", "[::1]4420", "[::1]:", "[10.0.0.1]:4420", "[fe80::1%eth0]:4420", "10.0.0.1:-1"}) {
    EXPECT_FALSE(ParseTransportAddress(text).ok()) << text;
  }
}

TEST(PathAddress, TheSourceIsReadAndWrittenBehindTheTarget) {
  for (const char* text : {"10.0.0.1:4420", "10.0.0.1:4420,from=10.0.0.9", "[fd00::1]:4420,from=fd00::9",
                           "rdma://10.0.0.1:4420,from=10.0.0.9", "rdma://[fd00::1]:4421,from=fd00::9"}) {
    const auto path = ParsePathAddress(text);
    ASSERT_TRUE(path.ok()) << path.error().message;
    EXPECT_EQ(TextOfPathAddress(*path), text);
    EXPECT_EQ(path->source.has_value(), std::string_view(text).find(',') != std::string_view::npos);
  }
  const PathAddress path = ParsePathAddress("rdma://10.0.0.1,from=10.0.0.9").value();
  EXPECT_EQ(path.target, ParseAddressOfAnyTransport("rdma://10.0.0.1:4420").value());
  EXPECT_EQ(path.source->transport, TransportType::kRdma);
  EXPECT_EQ(path.source->port, 0);
  EXPECT_EQ(path.source->address[3], 9);
  EXPECT_NE(path, ParsePathAddress("rdma://10.0.0.1").value()) << "one target by two sources is two paths";
  EXPECT_NE(path, ParsePathAddress("rdma://10.0.0.1,from=10.0.0.8").value());
}

TEST(PathAddress, ASourceThatIsWrongIsNamed) {
  const auto why = [](std::string_view text) {
    const auto path = ParsePathAddress(text);
    return path.ok() ? "it is taken" : path.error().message;
  };
  EXPECT_EQ(
      why("10.0.0.1:4420,from=fd00::9"),
      "'fd00::9' is an IPv6 address, and no connection to 10.0.0.1:4420, which is IPv4, comes from one");
  EXPECT_EQ(why("rdma://[fd00::1],from=10.0.0.9"),
            "'10.0.0.9' is an IPv4 address, and no connection to rdma://[fd00::1]:4420, which is IPv6, comes "
            "from one");
  EXPECT_EQ(why("10.0.0.1,from=eth0"),
            "'eth0' is no address of this host to come from: 10.0.0.9, without a port");
  EXPECT_EQ(why("[fd00::1],from=[fd00::9]"),
            "'[fd00::9]' is no address of this host to come from: fd00::9, without brackets, without a port");
  EXPECT_EQ(why("10.0.0.1,from=0.0.0.0"),
            "'0.0.0.0' stands for all of this host's addresses: name the one to come from");
  for (const char* text :
       {"10.0.0.1,from=", "10.0.0.1,from=10.0.0.9:5", "10.0.0.1,", "10.0.0.1,10.0.0.9", ",from=10.0.0.9",
        "10.0.0.1,from=10.0.0.9,from=10.0.0.9", "10.0.0.1, from=10.0.0.9"}) {
    EXPECT_FALSE(ParsePathAddress(text).ok()) << text;
  }
  EXPECT_FALSE(ParsePathAddress(std::string_view("10.0.0.1,from=10.0.0.9\0x", 24)).ok());
  EXPECT_FALSE(ParseAddressOfAnyTransport("10.0.0.1:4420,from=10.0.0.9").ok()) << "where a path is not meant";
}

TEST(Names, AnyBytesAreReadOrRefused) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string text = random.Chance(1, 2) ? "nqn.2024-01.com.example:a" : "[fd00::1]:4420";
    if (i % 8 == 0) text = "fd00:0::9";
    for (int j = 0; j < 3; ++j) text[random.Below(text.size())] = static_cast<char>(random.Next());
    text.resize(random.Below(text.size() + 1));
    (void)Good(text);
    (void)ParseUuid(text);
    if (auto address = ParseTransportAddress(text)) {
      ASSERT_EQ(ParseTransportAddress(TextOfAddress(*address)).value(), *address) << text;
    }
    const std::string scheme = random.Chance(1, 2) ? "rdma://" : "rdma:/";
    if (auto address = ParseAddressOfAnyTransport(scheme + text)) {
      ASSERT_EQ(ParseAddressOfAnyTransport(TextOfAddress(*address)).value(), *address) << text;
    }
    if (auto path = ParsePathAddress("[fd00::1],from=" + text)) {
      ASSERT_EQ(ParsePathAddress(TextOfPathAddress(*path)).value(), *path) << text;
    }
  }
}

}  // namespace
}  // namespace cleat::nvme::fabrics
