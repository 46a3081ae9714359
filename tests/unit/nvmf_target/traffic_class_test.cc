// SPDX-License-Identifier: Apache-2.0
// What the two ends of NVMe/TCP make of a DSCP and of a source, over loopback: the kernel says what packets had, and what each socket has.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvme/fabrics/names.h"
#include "nvmf/socket/kernel_address.h"
#include "nvmf/socket/stream_socket.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test::traffic_class_test {
namespace {

using nvme::fabrics::AddressFamily;
using nvme::fabrics::ParsePathAddress;
using nvme::fabrics::TextOfIp;
using nvme::fabrics::TransportAddress;

constexpr int kFilesMax = 512;

// What a socket of this process is marked with.
struct Known {
  TransportAddress local;
  TransportAddress peer;
  int dscp = 0;
};

int DscpOf(int fd, AddressFamily family) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  const bool ipv4 = family == AddressFamily::kIpv4;
  getsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &value, &bytes);
  return value >> 2;
}

// The connections of this process, of both ends.
std::vector<Known> Connections() {
  std::vector<Known> known;
  for (int fd = 0; fd < kFilesMax; ++fd) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0 || peer.ss_family == AF_UNIX)
      continue;
    const TransportAddress local = nvmf::LocalAddressOf(fd);
    known.push_back({local, nvmf::FromKernel(peer), DscpOf(fd, local.family)});
  }
  return known;
}

// Sockets of the end that listens, by the address that the host comes from.
std::map<std::string, std::vector<int>> DscpsOfTarget(const TargetRig& rig) {
  std::map<std::string, std::vector<int>> dscps;
  for (const Known& known : Connections()) {
    if (known.local.port == rig.addresses[0].port) dscps[TextOfIp(known.peer)].push_back(known.dscp);
  }
  return dscps;
}

std::map<std::string, std::vector<int>> DscpsOfHost(const TargetRig& rig) {
  std::map<std::string, std::vector<int>> dscps;
  for (const Known& known : Connections()) {
    if (known.peer.port == rig.addresses[0].port) dscps[TextOfIp(known.local)].push_back(known.dscp);
  }
  return dscps;
}

using Dscps = std::map<std::string, std::vector<int>>;

// ---- The host

TEST(TrafficClass, EachPathOfADiskComesFromItsSourceAndAllOfItsConnectionsAreMarked) {
  TargetRig rig;
  rig.adjust_host = [&rig](modules::NvmfSubsystem& subsystem) {
    subsystem.addresses.clear();
    for (const char* source : {"127.0.0.2", "127.0.0.3"}) {
      subsystem.addresses.push_back(
          ParsePathAddress(nvme::fabrics::TextOfAddress(rig.addresses[0]) + ",from=" + source).value());
    }
    subsystem.dscp = 26;
  };
  rig.OpenHost();
  // One target from two sources is two paths: of each the admin queue's connection, and the I/O queue's.
  rig.Until([&] { return rig.device->paths()->optimized == 2; });
  rig.Until([&] { return Connections().size() == 8; });
  EXPECT_EQ(DscpsOfHost(rig), (Dscps{{"127.0.0.2", {26, 26}}, {"127.0.0.3", {26, 26}}}));
  EXPECT_EQ(DscpsOfTarget(rig), (Dscps{{"127.0.0.2", {0, 0}}, {"127.0.0.3", {0, 0}}})) << "that is its own";
  EXPECT_NE(rig.device->io_path().find(",from=127.0.0.2, "), std::string::npos) << rig.device->io_path();
  Arena arena(4096);
  EXPECT_EQ(rig.disk->Do(block::Op::kRead, 0, 4096, &arena), block::IoStatus::kOk);
}

TEST(TrafficClass, WithoutAnyNothingIsMarkedAndTheRouteSaysWhereItComesFrom) {
  TargetRig rig;
  rig.OpenHost();
  rig.Until([&] { return Connections().size() == 4; });
  EXPECT_EQ(DscpsOfHost(rig), (Dscps{{"127.0.0.1", {0, 0}}}));
  EXPECT_EQ(DscpsOfTarget(rig), (Dscps{{"127.0.0.1", {0, 0}}}));
}

// 192.0.2.0/24 is nobody's (RFC 5737).
TEST(TrafficClass, ASourceThatIsNoAddressOfThisHostIsAnErrorOfItsPath) {
  TargetRig rig;
  const std::string at = nvme::fabrics::TextOfAddress(rig.addresses[0]);
  rig.adjust_host = [&](modules::NvmfSubsystem& subsystem) {
    subsystem.addresses = {ParsePathAddress(at + ",from=192.0.2.9").value()};
  };
  const auto refused = rig.TryOpen();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(refused.error().message,
            "disks/n: subsystems/s at " + at + ",from=192.0.2.9, admin queue: " + at +
                ": 192.0.2.9, which it is to come from, is no address of this host: give the address to an "
                "interface, or name another one");
  // The other path goes on.
  rig.adjust_host = [&](modules::NvmfSubsystem& subsystem) {
    subsystem.addresses = {ParsePathAddress(at + ",from=192.0.2.9").value(),
                           ParsePathAddress(at + ",from=127.0.0.2").value()};
  };
  rig.OpenHost();
  EXPECT_EQ(rig.device->paths()->optimized, 1U);
  EXPECT_EQ(rig.device->paths()->unusable, 1U);
}

TEST(TrafficClass, OptionsThatMakeNoSenseAreRefused) {
  TargetRig rig;
  const auto why = [&rig](std::function<void(modules::NvmfSubsystem&)> adjust) {
    rig.adjust_host = std::move(adjust);
    const auto refused = rig.TryOpen();
    return refused.ok() ? std::string("it is taken") : refused.error().message;
  };
  EXPECT_NE(why([](auto& subsystem) { subsystem.dscp = 64; }).find("a DSCP of 64: give 0 to 63"),
            std::string::npos);
  EXPECT_NE(why([](auto& subsystem) {
              subsystem.addresses[0].source = ParsePathAddress("[::1],from=::1").value().source;
            }).find("can't be reached by"),
            std::string::npos);
}

// ---- What is on the wire

struct Nobody final : nvmf::SocketEvents {
  void SocketReady() override {}
};

// Whether this host has IPv6's loopback.
bool HasIpv6() {
  const UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_loopback;
  return fd.valid() && bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0;
}

// A listening socket of loopback that keeps what the handshake's packets had (IP_PKTOPTIONS, IPV6_2292PKTOPTIONS).
struct Listening {
  explicit Listening(AddressFamily of) : family(of) {
    const bool ipv4 = family == AddressFamily::kIpv4;
    const nvmf::KernelAddress at(
        nvme::fabrics::TransportAddressOf(family, ipv4 ? "127.0.0.1" : "::1", "1").value());
    fd = UniqueFd(socket(ipv4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage any = at.storage;
    reinterpret_cast<sockaddr_in&>(any).sin_port = 0;
    const int on = 1;
    CLEAT_CHECK(setsockopt(fd.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_RECVTOS : IPV6_RECVTCLASS,
                           &on, sizeof(on)) == 0);
    CLEAT_CHECK(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), at.size_bytes) == 0);
    CLEAT_CHECK(listen(fd.get(), 1) == 0);
    address = nvmf::LocalAddressOf(fd.get());
  }
  // What was on the host's first packets, by a connection that is accepted here.
  int Accept() const {
    const UniqueFd peer(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    CLEAT_CHECK(peer.valid());
    const bool ipv4 = family == AddressFamily::kIpv4;
    alignas(cmsghdr) uint8_t options[256] = {};
    socklen_t bytes = sizeof(options);
    CLEAT_CHECK(getsockopt(peer.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6,
                           ipv4 ? IP_PKTOPTIONS : IPV6_2292PKTOPTIONS, options, &bytes) == 0);
    msghdr message{};
    message.msg_control = options;
    message.msg_controllen = bytes;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_type == (ipv4 ? IP_TOS : IPV6_TCLASS)) return *CMSG_DATA(part) >> 2;
    }
    return -1;
  }
  AddressFamily family;
  UniqueFd fd;
  TransportAddress address;
};

TEST(TrafficClass, TheFirstPacketCarriesItOverIpv4AndIpv6) {
  const MonotonicClock clock;
  auto reactor = Reactor::Make(clock, {}).value();
  Nobody nobody;
  for (const AddressFamily family : {AddressFamily::kIpv4, AddressFamily::kIpv6}) {
    if (family == AddressFamily::kIpv6 && !HasIpv6()) {
      std::cerr << "NOT TRIED: IPv6, which this host's loopback does not have\n";
      continue;
    }
    const Listening listening(family);
    for (const uint8_t dscp : {0, 8, 46, 63}) {
      nvmf::StreamSocket stream(*reactor, nobody);
      ASSERT_TRUE(stream.Connect(listening.address, {.dscp = dscp}).ok());
      EXPECT_EQ(listening.Accept(), dscp);
    }
  }
}

// ---- The target

TEST(TrafficClass, AnExportsPacketsAreMarkedOnceItsHostHasNamedIt) {
  TargetRig rig(nvmf_target::PortLimits(), 1, nvmf_target::StreamTuning(), nullptr, /*dscp=*/46);
  {
    const RawHost silent(rig);
    EXPECT_EQ(DscpsOfTarget(rig), (Dscps{{"127.0.0.1", {0}}})) << "nobody has said which export it is for";
  }
  rig.OpenHost();
  Arena arena(4096);
  ASSERT_EQ(rig.disk->Do(block::Op::kRead, 0, 4096, &arena), block::IoStatus::kOk) << "by the I/O queue";
  EXPECT_EQ(DscpsOfTarget(rig), (Dscps{{"127.0.0.1", {46, 46}}}));
  EXPECT_EQ(DscpsOfHost(rig), (Dscps{{"127.0.0.1", {0, 0}}})) << "that is the host's own";
}

TEST(TrafficClass, AnExportWithoutOneLeavesThemAsTheyAre) {
  TargetRig rig;
  const Association host(rig);
  EXPECT_EQ(DscpsOfTarget(rig), (Dscps{{"127.0.0.1", {0, 0}}}));
}

}  // namespace
}  // namespace cleat::test::traffic_class_test
