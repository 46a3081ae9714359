// SPDX-License-Identifier: Apache-2.0
#include "control/link/translate.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "control/model/names.h"
#include "control/validate/backends.h"
#include "control/validate/disk_settings.h"
#include "control/validate/spec_rules.h"
#include "control/validate/spec_secrets.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {
namespace {

namespace fabrics = nvme::fabrics;

constexpr int64_t kNsPerMillisecond = 1'000'000;

void Put(const v1::RateLimit& limit, engine::v1::Rate* rate) {
  rate->set_per_second(limit.per_second());
  rate->set_burst_per_second(limit.burst_per_second());
  rate->set_burst_ms(static_cast<uint32_t>(limit.burst_duration().seconds() * 1000 +
                                           limit.burst_duration().nanos() / kNsPerMillisecond));
}

}  // namespace

engine::v1::Limits ToEngine(const v1::Limits& limits, uint64_t revision) {
  engine::v1::Limits told;
  if (limits.has_iops()) Put(limits.iops(), told.mutable_iops());
  if (limits.has_read_iops()) Put(limits.read_iops(), told.mutable_read_iops());
  if (limits.has_write_iops()) Put(limits.write_iops(), told.mutable_write_iops());
  if (limits.has_bytes()) Put(limits.bytes(), told.mutable_bytes());
  if (limits.has_read_bytes()) Put(limits.read_bytes(), told.mutable_read_bytes());
  if (limits.has_write_bytes()) Put(limits.write_bytes(), told.mutable_write_bytes());
  told.set_revision(revision);
  return told;
}

engine::v1::Group ToEngine(const GroupRow& row) {
  engine::v1::Group group;
  group.set_name(GroupName(row.id));
  group.set_slot(row.slot);
  *group.mutable_limits() = ToEngine(row.spec.limits(), row.limits_revision);
  return group;
}

engine::v1::Cluster ToEngine(const ClusterRow& row) {
  const v1::ClusterSpec& spec = row.spec;
  engine::v1::Cluster cluster;
  cluster.set_name(ClusterName(row.id));
  if (!spec.monitors().empty()) cluster.set_monitors(spec.monitors());
  if (!spec.conf_file().empty()) cluster.set_conf_file(spec.conf_file());
  cluster.set_user(spec.user());
  if (spec.has_wrapped_key()) {
    cluster.set_key_encryption_key(spec.wrapped_key().key_encryption_key());
    cluster.set_wrapped_key(spec.wrapped_key().data());
  }
  cluster.set_images_per_client(spec.images_per_client());
  cluster.set_connect_timeout_ms(static_cast<uint32_t>(spec.connect_timeout().seconds() * 1000 +
                                                       spec.connect_timeout().nanos() / kNsPerMillisecond));
  cluster.set_revision(row.spec_revision);
  return cluster;
}

engine::v1::Disk ToEngine(const DiskRow& row, bool path_checked) {
  engine::v1::Disk disk;
  disk.set_name(DiskName(row.id));
  disk.set_size_bytes(row.spec.size_bytes());
  disk.set_logical_block_bytes(row.spec.logical_block_bytes());
  disk.set_physical_block_bytes(row.spec.physical_block_bytes());
  disk.set_serial(row.spec.serial());
  disk.set_wwn(WwnNumber(row.spec.wwn()));
  PutBackend(row, path_checked, &disk);
  if (row.spec.has_fault()) {
    disk.mutable_fault()->set_seed(row.spec.fault().seed());
    disk.mutable_fault()->set_delay_ns_max(row.spec.fault().delay_ns_max());
    disk.mutable_fault()->set_fail_per_million(row.spec.fault().fail_per_million());
  }
  if (row.spec.has_encryption()) {
    const v1::Encryption& encryption = row.spec.encryption();
    disk.mutable_encryption()->set_cipher(encryption.cipher() == v1::CIPHER_AES_128_XTS
                                              ? engine::v1::CIPHER_AES_128_XTS
                                              : engine::v1::CIPHER_AES_256_XTS);
    disk.mutable_encryption()->set_data_unit_bytes(encryption.data_unit_bytes());
    disk.mutable_encryption()->set_key_encryption_key(encryption.wrapped_key().key_encryption_key());
    disk.mutable_encryption()->set_wrapped_key(encryption.wrapped_key().data());
  }
  if (row.limits_revision != 0) *disk.mutable_limits() = ToEngine(row.spec.limits(), row.limits_revision);
  if (WaitsForSpace(row.spec)) disk.set_on_no_space(engine::v1::ON_NO_SPACE_WAIT);
  if (row.spec.has_in_doubt()) *disk.mutable_in_doubt() = ToEngine(row.spec.in_doubt());
  return disk;
}

engine::v1::InDoubt ToEngine(const v1::InDoubt& in_doubt) {
  engine::v1::InDoubt rule;
  switch (in_doubt.policy()) {
    case v1::IN_DOUBT_POLICY_FAIL_AFTER:
      rule.set_policy(engine::v1::IN_DOUBT_POLICY_FAIL_AFTER);
      rule.set_fail_after_s(in_doubt.fail_after_s());
      break;
    case v1::IN_DOUBT_POLICY_ACCEPT:
      rule.set_policy(engine::v1::IN_DOUBT_POLICY_ACCEPT);
      break;
    default:
      rule.set_policy(engine::v1::IN_DOUBT_POLICY_HOLD);
      break;
  }
  return rule;
}

namespace {

engine::v1::ControllerType ToEngine(v1::ControllerType type) {
  switch (type) {
    case v1::CONTROLLER_TYPE_SCSI:
      return engine::v1::CONTROLLER_TYPE_SCSI;
    case v1::CONTROLLER_TYPE_NVMF:
      return engine::v1::CONTROLLER_TYPE_NVMF;
    default:
      return engine::v1::CONTROLLER_TYPE_BLK;
  }
}

void Put(const v1::Secret& secret, engine::v1::WrappedSecret* told) {
  told->set_key_encryption_key(secret.wrapped_key().key_encryption_key());
  told->set_data(secret.wrapped_key().data());
}

// To an NvmeTcpBackend, a Discover or an ExportHost, from what cleatd has for it.
template <typename From, typename To>
void PutSecrets(const From& from, To& told) {
  if (from.has_dhchap_secret()) Put(from.dhchap_secret(), told.mutable_dhchap_secret());
  if (from.has_dhchap_ctrl_secret()) Put(from.dhchap_ctrl_secret(), told.mutable_dhchap_ctrl_secret());
  if (from.has_tls_psk()) Put(from.tls_psk(), told.mutable_tls_psk());
}

// Addresses over RDMA are told only `with_rdma`: an engine that is too old for them would refuse the whole export, or disk.
void PutAddresses(const google::protobuf::RepeatedPtrField<std::string>& addresses, bool with_rdma,
                  google::protobuf::RepeatedPtrField<std::string>& told) {
  for (const std::string& address : addresses) {
    if (with_rdma || !IsOverRdma(address)) *told.Add() = address;
  }
}

engine::v1::Export ExportOf(const ControllerIntent& intent, uint32_t protocol) {
  const v1::ExportSpec& spec = intent.row.spec.exported();
  engine::v1::Export exported;
  exported.set_nqn(spec.nqn());
  exported.set_serial(intent.serial);
  const bool with_rdma = protocol >= kProtocolRdma;
  PutAddresses(spec.addresses(), with_rdma, *exported.mutable_addresses());
  if (protocol >= kProtocolHandOver)
    PutAddresses(spec.standby_addresses(), with_rdma, *exported.mutable_standby_addresses());
  for (const v1::ExportHost& host : spec.hosts()) {
    if (!HasSecrets(host)) {
      exported.add_hosts(host.nqn());
    } else if (protocol >= kProtocolHostSecrets) {
      engine::v1::ExportHost& secured = *exported.add_secured_hosts();
      secured.set_nqn(host.nqn());
      PutSecrets(host, secured);
    }
  }
  exported.set_hosts_revision(intent.row.hosts_revision);
  if (spec.dscp() != 0 && protocol >= kProtocolPaths) exported.set_dscp(spec.dscp());
  return exported;
}

}  // namespace

engine::v1::Controller ToEngine(const ControllerIntent& intent, uint32_t protocol) {
  const ControllerRow& row = intent.row;
  engine::v1::Controller controller;
  controller.set_name(ControllerName(row.id));
  controller.set_type(ToEngine(row.spec.type()));
  if (row.spec.has_exported()) {
    *controller.mutable_exported() = ExportOf(intent, protocol);
  } else {
    controller.set_socket_path(row.spec.socket_path());
    controller.set_socket_mode(row.spec.socket_mode() == v1::SOCKET_MODE_SERVER
                                   ? engine::v1::SOCKET_MODE_SERVER
                                   : engine::v1::SOCKET_MODE_CLIENT);
  }
  controller.set_queues(row.spec.queues());
  controller.set_revision(row.revision);
  if (!row.spec.group().empty()) controller.set_group(row.spec.group());
  if (row.spec.memory_pinned()) controller.set_memory_pinned(true);
  if (protocol < kProtocolIdentities) return controller;
  controller.set_last_disk(row.last_disk.value());
  if (!row.last_disk_name.empty()) controller.set_last_disk_name(row.last_disk_name);
  return controller;
}

namespace {

// With their sources where the engine knows any; else each target once.
void PutPaths(const v1::SubsystemSpec& spec, uint32_t protocol, engine::v1::NvmeTcpBackend& nvme) {
  auto& told = *nvme.mutable_addresses();
  PutAddresses(spec.addresses(), protocol >= kProtocolRdmaDisks, told);
  if (protocol >= kProtocolPaths) return;
  for (std::string& address : told) {
    if (const auto path = fabrics::ParsePathAddress(address); path.ok())
      address = fabrics::TextOfAddress(path->target);
  }
  for (auto it = told.begin(); it != told.end();)
    it = std::find(told.begin(), it, *it) == it ? std::next(it) : told.erase(it);
}

// What PutBackend knows nothing of: the subsystem itself.
void PutSubsystem(const AttachmentIntent& intent, uint32_t protocol, engine::v1::NvmeTcpBackend& nvme) {
  const v1::SubsystemSpec& spec = intent.subsystem;
  nvme.set_nqn(spec.nqn());
  PutPaths(spec, protocol, nvme);
  if (spec.dscp() != 0 && protocol >= kProtocolPaths) nvme.set_dscp(spec.dscp());
  nvme.set_host_nqn(spec.host_nqn());
  nvme.set_host_id(spec.host_id());
  if (spec.header_digest()) nvme.set_header_digest(true);
  if (spec.data_digest()) nvme.set_data_digest(true);
  nvme.set_keep_alive_ms(spec.keep_alive_ms());
  PutSecrets(spec, nvme);
  if (spec.quiesce_time_proves()) nvme.set_quiesce_time_proves(true);
  if (!HasReservations(spec)) return;
  nvme.set_reservation_family(intent.reservation_family);
  if (spec.reservations() == v1::RESERVATIONS_PROOF) nvme.set_reservation_proves(true);
}

}  // namespace

engine::v1::Attachment ToEngine(const AttachmentIntent& intent, uint32_t protocol) {
  engine::v1::Attachment attachment;
  attachment.set_controller(ControllerName(intent.row.controller));
  attachment.set_target(intent.row.spec.target());
  *attachment.mutable_disk() = ToEngine(intent.disk, protocol >= kProtocolPathLists && intent.path_checked);
  if (protocol >= kProtocolIdentities) attachment.mutable_disk()->set_identity(intent.disk_identity.value());
  if (attachment.disk().has_nvme_tcp())
    PutSubsystem(intent, protocol, *attachment.mutable_disk()->mutable_nvme_tcp());
  if (attachment.disk().has_pool()) {
    engine::v1::PoolBackend& pool = *attachment.mutable_disk()->mutable_pool();
    pool.set_device(intent.pool.device);
    pool.set_pool_uid(intent.pool.uid.data(), intent.pool.uid.size());
    pool.set_extent_bytes(intent.pool.extent_bytes);
  }
  attachment.set_read_only(intent.row.spec.read_only());
  attachment.set_revision(intent.row.revision);
  const v1::AttachmentMode mode = intent.row.spec.mode();
  if (mode == v1::ATTACHMENT_MODE_INCOMING || mode == v1::ATTACHMENT_MODE_OUTGOING)
    attachment.set_incoming(true);
  return attachment;
}

v1::ControllerType FromEngine(engine::v1::ControllerType type) {
  switch (type) {
    case engine::v1::CONTROLLER_TYPE_SCSI:
      return v1::CONTROLLER_TYPE_SCSI;
    case engine::v1::CONTROLLER_TYPE_NVMF:
      return v1::CONTROLLER_TYPE_NVMF;
    default:
      return v1::CONTROLLER_TYPE_BLK;
  }
}

Status FromEngine(const engine::v1::Reply& reply) {
  if (reply.ok()) return Ok{};
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    if (ErrorCodeName(static_cast<ErrorCode>(code)) == reply.code()) {
      return Error(static_cast<ErrorCode>(code), reply.message());
    }
  }
  return Error(ErrorCode::kInternal, reply.message());
}

v1::ControllerStatus FromEngine(const engine::v1::ControllerStatus& status) {
  v1::ControllerStatus result;
  result.set_message(status.message());
  result.set_rings_up(status.rings_up());
  result.set_connections(status.connections());
  switch (status.state()) {
    case engine::v1::CONTROLLER_STATE_IDLE:
      result.set_state(v1::CONTROLLER_STATE_IDLE);
      break;
    case engine::v1::CONTROLLER_STATE_CONNECTING:
      result.set_state(v1::CONTROLLER_STATE_CONNECTING);
      break;
    case engine::v1::CONTROLLER_STATE_HANDSHAKE:
      result.set_state(v1::CONTROLLER_STATE_HANDSHAKE);
      break;
    case engine::v1::CONTROLLER_STATE_READY:
      result.set_state(v1::CONTROLLER_STATE_READY);
      break;
    case engine::v1::CONTROLLER_STATE_BROKEN:
      result.set_state(v1::CONTROLLER_STATE_BROKEN);
      break;
    case engine::v1::CONTROLLER_STATE_CLOSING:
      result.set_state(v1::CONTROLLER_STATE_DELETING);
      break;
    case engine::v1::CONTROLLER_STATE_STANDBY:
    case engine::v1::CONTROLLER_STATE_UNSPECIFIED:
      result.set_state(v1::CONTROLLER_STATE_PENDING);
      break;
  }
  return result;
}

v1::AttachmentState FromEngine(engine::v1::AttachmentState state) {
  switch (state) {
    case engine::v1::ATTACHMENT_STATE_OPENING:
      return v1::ATTACHMENT_STATE_OPENING;
    case engine::v1::ATTACHMENT_STATE_ACTIVE:
      return v1::ATTACHMENT_STATE_READY;
    case engine::v1::ATTACHMENT_STATE_FAILED:
    case engine::v1::ATTACHMENT_STATE_FENCED:
      return v1::ATTACHMENT_STATE_FAILED;
    case engine::v1::ATTACHMENT_STATE_CLOSING:
      return v1::ATTACHMENT_STATE_DETACHING;
    case engine::v1::ATTACHMENT_STATE_INCOMING:
      return v1::ATTACHMENT_STATE_INCOMING;
    case engine::v1::ATTACHMENT_STATE_RELEASED:
      return v1::ATTACHMENT_STATE_RELEASED;
    case engine::v1::ATTACHMENT_STATE_STANDBY:
    case engine::v1::ATTACHMENT_STATE_UNSPECIFIED:
      break;
  }
  return v1::ATTACHMENT_STATE_PENDING;
}

namespace {

v1::CephCluster FromEngine(const engine::v1::CephCluster& cluster) {
  v1::CephCluster shown;
  shown.set_name(cluster.name());
  if (cluster.silent_since_s() != 0)
    shown.mutable_silent_since()->set_seconds(static_cast<int64_t>(cluster.silent_since_s()));
  if (cluster.full_since_s() != 0) {
    shown.mutable_full_since()->set_seconds(static_cast<int64_t>(cluster.full_since_s()));
    shown.set_full(cluster.full());
  }
  if (cluster.paused_since_s() != 0)
    shown.mutable_paused_since()->set_seconds(static_cast<int64_t>(cluster.paused_since_s()));
  return shown;
}

}  // namespace

v1::CephStatus FromEngine(const engine::v1::CephStatus& status) {
  constexpr uint64_t kNsInSecond = 1'000'000'000;
  v1::CephStatus result;
  result.set_threads(status.threads());
  result.set_clients_total(status.clients_total());
  for (const engine::v1::CephClient& client : status.clients()) {
    v1::CephClient& shown = *result.add_clients();
    shown.set_cluster(client.cluster());
    shown.set_id(client.id());
    shown.set_images(client.images());
    if (client.busy_ns() != 0)
      shown.mutable_busy()->set_seconds(static_cast<int64_t>(client.busy_ns() / kNsInSecond));
    shown.set_blocklisted(client.blocklisted());
  }
  for (const engine::v1::CephCluster& cluster : status.clusters())
    *result.add_clusters() = FromEngine(cluster);
  return result;
}

bool IsOpen(engine::v1::AttachmentState state) {
  return state == engine::v1::ATTACHMENT_STATE_ACTIVE || state == engine::v1::ATTACHMENT_STATE_INCOMING ||
         state == engine::v1::ATTACHMENT_STATE_RELEASED;
}

engine::v1::Discover ToEngine(const v1::DiscoverSubsystemsRequest& request, uint32_t timeout_ms, bool watch) {
  engine::v1::Discover discover;
  discover.set_address(request.address());
  discover.set_host_nqn(request.host_nqn());
  discover.set_host_id(request.host_id());
  discover.set_timeout_ms(timeout_ms);
  PutSecrets(request, discover);
  if (watch) discover.set_watch(true);
  return discover;
}

v1::DiscoverSubsystemsResponse FromEngine(const engine::v1::Discovery& discovery) {
  static_assert(static_cast<int>(engine::v1::DiscoverySubtype_MAX) == v1::DISCOVERY_SUBTYPE_THIS_SERVICE &&
                    static_cast<int>(engine::v1::SecureChannel_MAX) == v1::SECURE_CHANNEL_NOT_REQUIRED,
                "the two have the same values");
  v1::DiscoverSubsystemsResponse response;
  for (const engine::v1::DiscoveryRecord& in : discovery.records()) {
    v1::DiscoveryRecord& record = *response.add_records();
    record.set_subtype(static_cast<v1::DiscoverySubtype>(in.subtype()));
    record.set_nqn(in.nqn());
    record.set_transport(in.transport());
    record.set_address(in.address());
    record.set_port(in.port());
    record.set_secure_channel(static_cast<v1::SecureChannel>(in.secure_channel()));
  }
  response.set_skipped(discovery.skipped());
  response.set_why_skipped(discovery.why_skipped());
  return response;
}

v1::StorageState FromEngine(engine::v1::StorageState state) {
  switch (state) {
    case engine::v1::STORAGE_STATE_OK:
      return v1::STORAGE_STATE_OK;
    case engine::v1::STORAGE_STATE_FAILING:
      return v1::STORAGE_STATE_FAILING;
    case engine::v1::STORAGE_STATE_NOT_ANSWERING:
      return v1::STORAGE_STATE_NOT_ANSWERING;
    case engine::v1::STORAGE_STATE_NO_SPACE:
      return v1::STORAGE_STATE_NO_SPACE;
    case engine::v1::STORAGE_STATE_STUCK:
      return v1::STORAGE_STATE_STUCK;
    case engine::v1::STORAGE_STATE_UNSPECIFIED:
      break;
  }
  return v1::STORAGE_STATE_UNSPECIFIED;
}

namespace {

// An engine that says nothing knows of nothing but errors.
v1::OnNoSpace OnNoSpaceIn(const engine::v1::Disk& disk) {
  return disk.on_no_space() == engine::v1::ON_NO_SPACE_WAIT ? v1::ON_NO_SPACE_WAIT : v1::ON_NO_SPACE_ERROR;
}

v1::InDoubt InDoubtIn(const engine::v1::Disk& disk) {
  v1::InDoubt rule;
  switch (disk.in_doubt().policy()) {
    case engine::v1::IN_DOUBT_POLICY_FAIL_AFTER:
      rule.set_policy(v1::IN_DOUBT_POLICY_FAIL_AFTER);
      rule.set_fail_after_s(disk.in_doubt().fail_after_s());
      break;
    case engine::v1::IN_DOUBT_POLICY_ACCEPT:
      rule.set_policy(v1::IN_DOUBT_POLICY_ACCEPT);
      break;
    default:
      rule.set_policy(v1::IN_DOUBT_POLICY_HOLD);
      break;
  }
  return rule;
}

v1::PathsStatus FromEngine(const engine::v1::PathsStatus& paths) {
  v1::PathsStatus status;
  status.set_optimized(paths.optimized());
  status.set_non_optimized(paths.non_optimized());
  status.set_unusable(paths.unusable());
  status.set_losses(paths.losses());
  status.set_failovers(paths.failovers());
  status.set_doubt_ranges(paths.doubt_ranges());
  status.set_doubt_bytes(paths.doubt_bytes());
  status.set_waiting(paths.waiting());
  if (paths.waiting_since_s() != 0)
    status.mutable_waiting_since()->set_seconds(static_cast<int64_t>(paths.waiting_since_s()));
  status.set_failed(paths.failed());
  status.set_accepted(paths.accepted());
  return status;
}

}  // namespace

AttachmentReport ReportOf(const engine::v1::AttachmentStatus& status) {
  const bool open = IsOpen(status.state());
  const bool has_paths = open && status.has_paths();
  return {.state = FromEngine(status.state()),
          .message = status.message(),
          .size_bytes = open ? status.attachment().disk().size_bytes() : 0,
          .failures = status.state() == engine::v1::ATTACHMENT_STATE_FENCED ? 1U : 0U,
          .limits_revision = status.attachment().disk().limits().revision(),
          .fenced = status.state() == engine::v1::ATTACHMENT_STATE_FENCED,
          .storage = FromEngine(status.storage_state()),
          .on_no_space = open ? OnNoSpaceIn(status.attachment().disk()) : v1::ON_NO_SPACE_UNSPECIFIED,
          .io_path = open ? status.io_path() : std::string(),
          .in_doubt = has_paths ? std::optional(InDoubtIn(status.attachment().disk())) : std::nullopt,
          .paths = has_paths ? std::optional(FromEngine(status.paths())) : std::nullopt};
}

}  // namespace cleat::control
