// SPDX-License-Identifier: Apache-2.0
// What the engine is asked of a discovery service, and what that has said, as plain values (spec.h has the rest of the protocol's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/protocol/nvmf_secrets.h"

namespace cleat::engine {

struct DiscoverySpec {
  std::string address;   // "10.0.0.1:8009", "rdma://10.0.0.1:8009"
  std::string host_nqn;  // who asks
  std::string host_id;   // a UUID
  uint32_t timeout_ms = 0;
  NvmfSecrets secrets;
  bool watch = false;
};
inline constexpr uint32_t kDiscoveryTimeoutMsMax = 60'000;

// In the protocol's order.
enum class DiscoverySubtype : uint8_t { kUnknown, kReferral, kNvm, kThisService };
enum class SecureChannel : uint8_t { kNotSaid, kRequired, kNotRequired };

struct DiscoveryRecord {
  DiscoverySubtype subtype = DiscoverySubtype::kUnknown;
  std::string nqn;
  std::string transport;  // "tcp", "rdma"
  std::string address;    // "10.0.0.1"
  std::string port;       // "4420"
  SecureChannel secure_channel = SecureChannel::kNotSaid;
};

struct DiscoveryReport {
  std::vector<DiscoveryRecord> records;
  uint32_t skipped = 0;  // records that make no sense
  std::string why_skipped;
};
// Of a service that is watched: hears what it has, and again at each change.
using DiscoverySeen = std::function<void(DiscoveryReport report)>;
// In one message. A record has less than 600 bytes (223, 256 and 32 of texts), so that these always fit.
inline constexpr size_t kDiscoveryRecordsAMessage = 64;

}  // namespace cleat::engine
