// SPDX-License-Identifier: Apache-2.0
#include "engine/discovery/discover.h"

#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/secrets/unwrap.h"
#include "modules/nvmf/nvmf_discovery.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/names.h"

namespace cleat::engine {
namespace {

namespace fabrics = nvme::fabrics;

std::string NameOfTransport(uint8_t transport) {
  switch (static_cast<fabrics::TransportType>(transport)) {
    case fabrics::TransportType::kRdma:
      return "rdma";
    case fabrics::TransportType::kFibreChannel:
      return "fc";
    case fabrics::TransportType::kTcp:
      return "tcp";
  }
  return std::to_string(transport);
}

// Without the port, without brackets, and without the transport, which a record says beside it.
std::string TextOfHost(fabrics::TransportAddress address) {
  address.transport = fabrics::TransportType::kTcp;
  std::string text = fabrics::TextOfAddress(address);
  text.resize(text.rfind(':'));
  return text.starts_with('[') ? text.substr(1, text.size() - 2) : text;
}

DiscoverySubtype SubtypeOf(fabrics::DiscoveredKind kind) {
  switch (kind) {
    case fabrics::DiscoveredKind::kReferral:
      return DiscoverySubtype::kReferral;
    case fabrics::DiscoveredKind::kSubsystem:
      return DiscoverySubtype::kNvm;
    case fabrics::DiscoveredKind::kThisService:
      return DiscoverySubtype::kThisService;
  }
  return DiscoverySubtype::kUnknown;
}

SecureChannel SecureChannelOf(fabrics::SecureChannel channel) {
  switch (channel) {
    case fabrics::SecureChannel::kNotSaid:
      return SecureChannel::kNotSaid;
    case fabrics::SecureChannel::kRequired:
      return SecureChannel::kRequired;
    case fabrics::SecureChannel::kNotRequired:
      return SecureChannel::kNotRequired;
  }
  return SecureChannel::kNotSaid;
}

DiscoveryRecord RecordOf(fabrics::DiscoveryRecord in) {
  DiscoveryRecord record;
  record.subtype = SubtypeOf(in.kind);
  record.nqn = std::move(in.subsystem_nqn);
  record.transport = NameOfTransport(in.transport);
  record.address = in.address ? TextOfHost(*in.address) : std::move(in.address_text);
  record.port = in.address ? std::to_string(in.address->port) : std::move(in.port_text);
  record.secure_channel = SecureChannelOf(in.secure_channel);
  return record;
}

DiscoveryReport ReportOf(fabrics::DiscoveryLog log) {
  DiscoveryReport report;
  for (fabrics::DiscoveryRecord& record : log.records) report.records.push_back(RecordOf(std::move(record)));
  report.skipped = log.skipped;
  report.why_skipped = std::move(log.why_skipped);
  return report;
}

// The service's address, checked. kInvalidArgument.
Result<fabrics::TransportAddress> ServiceAddressOf(const DiscoverySpec& spec) {
  CLEAT_ASSIGN(auto address, fabrics::ParseAddressOfAnyTransport(spec.address, fabrics::kDiscoveryPort));
  if (address.transport != fabrics::TransportType::kRdma) return address;
  const std::string who = "the discovery service at " + fabrics::TextOfAddress(address);
  if (fabrics::IsUnspecified(address))
    return Error(ErrorCode::kInvalidArgument, who + ": that is nobody's address");
  if (spec.secrets.tls_psk.there())
    return Error(ErrorCode::kInvalidArgument, who + ": there is a pre-shared key, and no TLS over RDMA");
  return address;
}

}  // namespace

Task<Result<DiscoveryReport>> Discover(DiscoverySpec spec, DiscoverySeen seen, DiscoveryParts parts,
                                       CancelToken& cancel) {
  modules::NvmfDiscovery options;
  CLEAT_CO_ASSIGN(options.address, ServiceAddressOf(spec));
  options.host.nqn = std::move(spec.host_nqn);
  CLEAT_CO_ASSIGN(options.host.id, fabrics::ParseUuid(spec.host_id));
  CLEAT_CO_ASSIGN(
      auto keys,
      co_await Unwrap(spec.secrets, "the discovery service at " + fabrics::TextOfAddress(options.address),
                      parts.keyring, parts.blocking));
  options.chap = std::move(keys.chap);
  options.psk = std::move(keys.psk);
  options.arithmetic = &parts.arithmetic;
  options.rdma = &parts.rdma;
  options.timeout_ns = spec.timeout_ms * kNsPerMs;
  options.cancel = &cancel;
  if (spec.watch) options.seen = [&seen](const fabrics::DiscoveryLog& log) { seen(ReportOf(log)); };
  CLEAT_CO_ASSIGN(auto log, co_await modules::DiscoverNvmf(std::move(options)));
  co_return ReportOf(std::move(log));
}

}  // namespace cleat::engine
