// SPDX-License-Identifier: Apache-2.0
// What hosts, subsystems and their ports are called: NVMe qualified names, host identifiers, addresses.
//
// Source: NVM Express Base Specification 2.0 ("base"), 4.5 (names), 5.27.1.25 (host identifier). Plain values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::nvme::fabrics {

inline constexpr size_t kNqnBytesMax = 223;
// Every discovery service answers to this name (base 4.5).
inline constexpr std::string_view kDiscoveryNqn = "nqn.2014-08.org.nvmexpress.discovery";
inline constexpr std::string_view kUuidNqnPrefix = "nqn.2014-08.org.nvmexpress:uuid:";
// As assigned by IANA: of NVM subsystems, and of discovery services.
inline constexpr uint16_t kPortDefault = 4420;
inline constexpr uint16_t kDiscoveryPort = 8009;

// Bytes as they are sent, which is also the order in which a UUID is written.
using Uuid = std::array<uint8_t, 16>;

// kInvalidArgument, with `what` as the subject: "the host's NQN".
cleat::Status CheckNqn(std::string_view nqn, std::string_view what);

// "8-4-4-4-12" hexadecimal digits, in either case.
Result<Uuid> ParseUuid(std::string_view text);
std::string TextOfUuid(const Uuid& uuid);
// What a namespace of Cleat's is called that a subsystem shows: the same for one disk whichever engine shows it, and no other's, as far as
// the NQN is nobody else's. `disk`: DiskIdentity's value. UUID version 8 (RFC 9562), which says nothing of how it was made.
Uuid NamespaceUuidOf(std::string_view subsystem_nqn, uint64_t disk);

// What a host says that it is. Targets pair the two: one NQN with two identifiers, or the reverse, is refused by some.
struct HostIdentity {
  std::string nqn;
  Uuid id{};  // not zero
};
cleat::Status CheckHostIdentity(const HostIdentity& host);
// The identity of a host of which only the UUID is known: its NQN is the one made from it.
HostIdentity HostIdentityOfUuid(const Uuid& uuid);

// As in discovery records (TRTYPE, ADRFAM).
enum class TransportType : uint8_t { kRdma = 1, kFibreChannel = 2, kTcp = 3 };
enum class AddressFamily : uint8_t { kIpv4 = 1, kIpv6 = 2 };

struct TransportAddress {
  TransportType transport = TransportType::kTcp;
  AddressFamily family = AddressFamily::kIpv4;
  std::array<uint8_t, 16> address{};  // in network order; of IPv4 the first four
  uint16_t port = 0;

  bool operator==(const TransportAddress&) const = default;
};
// The most that one subsystem has for this host; each is a path, with connections of its own.
inline constexpr size_t kSubsystemAddressesMax = 8;

// A path to a subsystem: where it ends, and where it begins.
struct PathAddress {
  TransportAddress target;
  // This host's address that its connections come from: of the target's transport and family, with port 0, and not the wildcard. nullopt: the
  // one that the kernel's routes say.
  std::optional<TransportAddress> source = std::nullopt;

  bool operator==(const PathAddress&) const = default;
};

// The most that a differentiated services code point is (RFC 2474): six bits. 0, the default, asks for nothing.
inline constexpr uint8_t kDscpMax = 63;

// The keep alive timeouts (KATO) that a host may ask for. Below a second a host that is busy looks dead to its targets.
inline constexpr uint32_t kKeepAliveMsMin = 1000;
inline constexpr uint32_t kKeepAliveMsMax = 600'000;

// "10.0.0.1:4420", "[fd00::1]:4420". A literal, never a name: what a name stands for may change while a disk is in use. The port may be
// left out, which means `port_default`; brackets stay then. No zones ("%eth0"). Of TCP.
Result<TransportAddress> ParseTransportAddress(std::string_view text, uint16_t port_default = kPortDefault);
// The same, or of RDMA: "rdma://10.0.0.1:4420".
Result<TransportAddress> ParseAddressOfAnyTransport(std::string_view text,
                                                    uint16_t port_default = kPortDefault);
// Whether it is 0.0.0.0 or [::], which stand for all addresses of a host that listens there, and for none that a host connects to.
bool IsUnspecified(const TransportAddress& address);
// The two fields as discovery records have them (TRADDR without brackets, TRSVCID).
Result<TransportAddress> TransportAddressOf(AddressFamily family, std::string_view address,
                                            std::string_view port);
std::string TextOfAddress(const TransportAddress& address);
// "10.0.0.1", "fd00::1".
std::string TextOfIp(const TransportAddress& address);

// An address of any transport, and the source, if there is one, behind it: "10.0.0.1:4420,from=10.0.0.9", "rdma://[fd00::1]:4420,from=fd00::9".
// The source has neither brackets nor a port: the kernel chooses one for each connection.
Result<PathAddress> ParsePathAddress(std::string_view text);
std::string TextOfPathAddress(const PathAddress& path);

}  // namespace cleat::nvme::fabrics
