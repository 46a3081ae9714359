// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/protocol/codec.h"
#include "engine/protocol/codec_structs.h"
#include "nvme/fabrics/names.h"

namespace cleat::engine {
namespace {

// A Packer holds what the protobuf-c structs of one message point to; deques keep addresses.
class Packer {
 public:
  PbController* Add(const ControllerSpec& spec) {
    PbController& out = controllers_.emplace_back();
    cleat__engine__v1__controller__init(&out);
    out.name = PbText(spec.name);
    CLEAT_PB_SET(out, type, TypeOf(spec.type));
    if (spec.exported) {
      out.exported = Add(*spec.exported);
    } else {
      out.socket_path = PbText(spec.socket_path);
      CLEAT_PB_SET(out, socket_mode,
                   spec.socket_mode == SocketMode::kClient
                       ? CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT
                       : CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_SERVER);
    }
    CLEAT_PB_SET(out, queues, spec.queues);
    CLEAT_PB_SET(out, revision, spec.revision);
    if (!spec.group.empty()) out.group = PbText(spec.group);
    CLEAT_PB_SET(out, last_disk, spec.last_disk.value());
    if (spec.memory_pinned) CLEAT_PB_SET(out, memory_pinned, 1);
    return &out;
  }

  // Without the hosts: there may be many, and cleatd has them.
  PbExport* Add(const ExportSpec& spec) {
    PbExport& out = exports_.emplace_back();
    cleat__engine__v1__export__init(&out);
    out.nqn = PbText(spec.nqn);
    out.serial = PbText(spec.serial);
    const std::span<char*> addresses = Add(spec.addresses);
    out.n_addresses = addresses.size();
    out.addresses = addresses.data();
    const std::span<char*> standby_addresses = Add(spec.standby_addresses);
    out.n_standby_addresses = standby_addresses.size();
    out.standby_addresses = standby_addresses.data();
    CLEAT_PB_SET(out, hosts_revision, spec.hosts_revision);
    if (spec.dscp != 0) CLEAT_PB_SET(out, dscp, spec.dscp);
    return &out;
  }

  std::span<char*> Add(const std::vector<nvme::fabrics::TransportAddress>& addresses) {
    std::vector<char*>& pointers = address_pointers_.emplace_back();
    for (const auto& address : addresses)
      pointers.push_back(PbText(addresses_.emplace_back(nvme::fabrics::TextOfAddress(address))));
    return pointers;
  }

  PbLimits* Add(const LimitsSpec& spec) {
    PbLimits& out = limits_.emplace_back();
    cleat__engine__v1__limits__init(&out);
    for (size_t i = 0; i < qos::kMeters; ++i) {
      const qos::Rate& rate = spec.limits.rates[i];
      if (rate.per_second == 0) continue;
      PbRate& told = rates_.emplace_back();
      cleat__engine__v1__rate__init(&told);
      CLEAT_PB_SET(told, per_second, rate.per_second);
      if (rate.burst_per_second != 0) CLEAT_PB_SET(told, burst_per_second, rate.burst_per_second);
      if (rate.burst_ms != 0) CLEAT_PB_SET(told, burst_ms, rate.burst_ms);
      out.*kRates[i] = &told;
    }
    CLEAT_PB_SET(out, revision, spec.revision);
    return &out;
  }

  PbGroup* Add(const GroupSpec& spec) {
    PbGroup& out = groups_.emplace_back();
    cleat__engine__v1__group__init(&out);
    out.name = PbText(spec.name);
    CLEAT_PB_SET(out, slot, spec.slot);
    out.limits = Add(spec.limits);
    return &out;
  }

  // Without the wrapped key: cleatd has it.
  PbCluster* Add(const ClusterSpec& spec) {
    PbCluster& out = clusters_.emplace_back();
    cleat__engine__v1__cluster__init(&out);
    out.name = PbText(spec.name);
    CLEAT_PB_SET(out, revision, spec.revision);
    return &out;
  }

  PbCephClient* Add(const CephClientReport& report) {
    PbCephClient& out = ceph_clients_.emplace_back();
    cleat__engine__v1__ceph_client__init(&out);
    out.cluster = PbText(report.cluster);
    if (!report.id.empty()) out.id = PbText(report.id);
    CLEAT_PB_SET(out, images, report.images);
    CLEAT_PB_SET(out, busy_ns, report.busy_ns);
    CLEAT_PB_SET(out, blocklisted, report.blocklisted);
    return &out;
  }

  PbCephCluster* Add(const CephClusterReport& report) {
    PbCephCluster& out = ceph_clusters_.emplace_back();
    cleat__engine__v1__ceph_cluster__init(&out);
    out.name = PbText(report.name);
    CLEAT_PB_SET(out, silent_since_s, report.silent_since_s);
    CLEAT_PB_SET(out, full_since_s, report.full_since_s);
    if (!report.full.empty()) out.full = PbText(report.full);
    CLEAT_PB_SET(out, paused_since_s, report.paused_since_s);
    return &out;
  }

  PbControllerStatus* Add(const ControllerReport& report) {
    PbControllerStatus& out = controller_statuses_.emplace_back();
    cleat__engine__v1__controller_status__init(&out);
    out.controller = Add(report.spec);
    CLEAT_PB_SET(out, state, StateOf(report.state));
    out.message = PbText(report.message);
    CLEAT_PB_SET(out, rings_up, report.rings_up);
    CLEAT_PB_SET(out, connections, report.connections);
    if (report.next_disk.known()) CLEAT_PB_SET(out, next_disk, report.next_disk.value());
    return &out;
  }

  PbDisk* Add(const DiskSpec& spec) {
    PbDisk& out = disks_.emplace_back();
    cleat__engine__v1__disk__init(&out);
    out.name = PbText(spec.name);
    CLEAT_PB_SET(out, size_bytes, spec.size_bytes);
    CLEAT_PB_SET(out, logical_block_bytes, spec.logical_block_bytes);
    CLEAT_PB_SET(out, physical_block_bytes, spec.physical_block_bytes);
    out.serial = PbText(spec.serial);
    CLEAT_PB_SET(out, wwn, spec.wwn);
    if (spec.identity.known()) CLEAT_PB_SET(out, identity, spec.identity.value());
    PackBackend(spec.backend, out, backends_);
    if (spec.fault) {
      auto& fault = faults_.emplace_back();
      cleat__engine__v1__fault_plan__init(&fault);
      CLEAT_PB_SET(fault, seed, spec.fault->seed);
      CLEAT_PB_SET(fault, delay_ns_max, spec.fault->delay_ns_max);
      CLEAT_PB_SET(fault, fail_per_million, spec.fault->fail_per_million);
      out.fault = &fault;
    }
    if (spec.limits != LimitsSpec{}) out.limits = Add(spec.limits);
    CLEAT_PB_SET(out, on_no_space,
                 spec.on_no_space == OnNoSpace::kWait ? CLEAT__ENGINE__V1__ON_NO_SPACE__ON_NO_SPACE_WAIT
                                                      : CLEAT__ENGINE__V1__ON_NO_SPACE__ON_NO_SPACE_ERROR);
    if (spec.in_doubt != block::InDoubt{}) out.in_doubt = Add(spec.in_doubt);
    if (spec.encryption) out.encryption = Add(*spec.encryption);
    return &out;
  }

  PbInDoubt* Add(const block::InDoubt& rule) {
    PbInDoubt& out = in_doubts_.emplace_back();
    cleat__engine__v1__in_doubt__init(&out);
    CLEAT_PB_SET(out, policy,
                 static_cast<Cleat__Engine__V1__InDoubtPolicy>(static_cast<int>(rule.policy) + 1));
    CLEAT_PB_SET(out, fail_after_s, static_cast<uint32_t>(rule.fail_after_ns / kNsPerSecond));
    return &out;
  }

  PbPathsStatus* Add(const block::PathsReport& report, uint64_t waiting_since_s) {
    PbPathsStatus& out = paths_.emplace_back();
    cleat__engine__v1__paths_status__init(&out);
    CLEAT_PB_SET(out, optimized, report.optimized);
    CLEAT_PB_SET(out, non_optimized, report.non_optimized);
    CLEAT_PB_SET(out, unusable, report.unusable);
    CLEAT_PB_SET(out, losses, report.losses);
    CLEAT_PB_SET(out, failovers, report.failovers);
    CLEAT_PB_SET(out, doubt_ranges, report.doubt_ranges);
    CLEAT_PB_SET(out, doubt_bytes, report.doubt_bytes);
    CLEAT_PB_SET(out, waiting, report.waiting);
    CLEAT_PB_SET(out, waiting_since_s, waiting_since_s);
    CLEAT_PB_SET(out, failed, report.failed);
    CLEAT_PB_SET(out, accepted, report.accepted);
    return &out;
  }

  // Without the wrapped key: cleatd has it.
  PbEncryption* Add(const EncryptionSpec& spec) {
    PbEncryption& out = encryptions_.emplace_back();
    cleat__engine__v1__encryption__init(&out);
    CLEAT_PB_SET(out, cipher,
                 spec.cipher == keys::Cipher::kAes128Xts ? CLEAT__ENGINE__V1__CIPHER__CIPHER_AES_128_XTS
                                                         : CLEAT__ENGINE__V1__CIPHER__CIPHER_AES_256_XTS);
    CLEAT_PB_SET(out, data_unit_bytes, spec.data_unit_bytes);
    out.key_encryption_key = PbText(spec.key_encryption_key);
    return &out;
  }

  PbAttachmentStatus* Add(const AttachmentReport& report) {
    PbAttachment& attachment = attachments_.emplace_back();
    cleat__engine__v1__attachment__init(&attachment);
    attachment.controller = PbText(report.spec.controller);
    CLEAT_PB_SET(attachment, target, report.spec.target);
    attachment.disk = Add(report.spec.disk);
    CLEAT_PB_SET(attachment, read_only, report.spec.read_only);
    CLEAT_PB_SET(attachment, revision, report.spec.revision);
    PbAttachmentStatus& out = attachment_statuses_.emplace_back();
    cleat__engine__v1__attachment_status__init(&out);
    out.attachment = &attachment;
    CLEAT_PB_SET(out, state, StateOf(report.state));
    out.message = PbText(report.message);
    CLEAT_PB_SET(out, storage_state, StateOf(report.storage));
    if (!report.io_path.empty()) out.io_path = PbText(report.io_path);
    if (report.paths) out.paths = Add(*report.paths, report.waiting_since_s);
    return &out;
  }

  // Once in a message.
  PbHandOver* Add(const HandOver& hand_over) {
    cleat__engine__v1__hand_over__init(&hand_over_);
    for (const DiskHandOver& disk : hand_over.disks) {
      PbDiskHandOver& out = disk_hand_overs_.emplace_back();
      cleat__engine__v1__disk_hand_over__init(&out);
      CLEAT_PB_SET(out, target, disk.target);
      out.n_buckets = disk.use.size();
      out.buckets = const_cast<uint64_t*>(disk.use.data());  // protobuf-c does not write to it
      out.n_cells = disk.cells.size();
      out.cells = const_cast<uint64_t*>(disk.cells.data());
      disk_hand_over_pointers_.push_back(&out);
    }
    hand_over_.n_disks = disk_hand_over_pointers_.size();
    hand_over_.disks = disk_hand_over_pointers_.data();
    return &hand_over_;
  }

  PbDiscoveryRecord* Add(const DiscoveryRecord& record) {
    PbDiscoveryRecord& out = discovery_records_.emplace_back();
    cleat__engine__v1__discovery_record__init(&out);
    CLEAT_PB_SET(out, subtype, static_cast<Cleat__Engine__V1__DiscoverySubtype>(record.subtype));
    out.nqn = PbText(record.nqn);
    out.transport = PbText(record.transport);
    out.address = PbText(record.address);
    out.port = PbText(record.port);
    CLEAT_PB_SET(out, secure_channel, static_cast<Cleat__Engine__V1__SecureChannel>(record.secure_channel));
    return &out;
  }

  PbMemory* Add(const MemoryReport& report) {
    PbMemory& out = memories_.emplace_back();
    cleat__engine__v1__memory__init(&out);
    out.disk = PbText(report.disk);
    CLEAT_PB_SET(out, size_bytes, report.size_bytes);
    if (report.fixed) CLEAT_PB_SET(out, fixed, 1);
    return &out;
  }

 private:
  static Cleat__Engine__V1__ControllerType TypeOf(ControllerType type) {
    return static_cast<Cleat__Engine__V1__ControllerType>(static_cast<int>(type) + 1);
  }
  static Cleat__Engine__V1__ControllerState StateOf(ControllerState state) {
    return static_cast<Cleat__Engine__V1__ControllerState>(static_cast<int>(state) + 1);
  }
  static Cleat__Engine__V1__AttachmentState StateOf(AttachmentState state) {
    return static_cast<Cleat__Engine__V1__AttachmentState>(static_cast<int>(state) + 1);
  }
  static Cleat__Engine__V1__StorageState StateOf(StorageState state) {
    return static_cast<Cleat__Engine__V1__StorageState>(static_cast<int>(state) + 1);
  }

  std::deque<PbController> controllers_;
  std::deque<PbExport> exports_;
  std::deque<std::string> addresses_;
  std::deque<std::vector<char*>> address_pointers_;
  std::deque<PbControllerStatus> controller_statuses_;
  std::deque<PbDisk> disks_;
  std::pmr::monotonic_buffer_resource backends_;
  std::deque<Cleat__Engine__V1__FaultPlan> faults_;
  std::deque<PbAttachment> attachments_;
  std::deque<PbAttachmentStatus> attachment_statuses_;
  std::deque<PbMemory> memories_;
  PbHandOver hand_over_;
  std::deque<PbDiskHandOver> disk_hand_overs_;
  std::vector<PbDiskHandOver*> disk_hand_over_pointers_;
  std::deque<PbEncryption> encryptions_;
  std::deque<PbRate> rates_;
  std::deque<PbLimits> limits_;
  std::deque<PbGroup> groups_;
  std::deque<PbCluster> clusters_;
  std::deque<PbCephClient> ceph_clients_;
  std::deque<PbCephCluster> ceph_clusters_;
  std::deque<PbInDoubt> in_doubts_;
  std::deque<PbPathsStatus> paths_;
  std::deque<PbDiscoveryRecord> discovery_records_;
};

// The reports' enums follow the protocol's order, one lower: see Packer::StateOf.
static_assert(static_cast<int>(StorageState::kStuck) + 1 ==
              CLEAT__ENGINE__V1__STORAGE_STATE__STORAGE_STATE_STUCK);
static_assert(static_cast<int>(block::InDoubt::Policy::kAccept) + 1 ==
              CLEAT__ENGINE__V1__IN_DOUBT_POLICY__IN_DOUBT_POLICY_ACCEPT);
static_assert(static_cast<int>(ControllerType::kBlk) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK);
static_assert(static_cast<int>(ControllerType::kNvmf) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_NVMF);
static_assert(static_cast<int>(ControllerState::kIdle) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_STATE__CONTROLLER_STATE_IDLE);
static_assert(static_cast<int>(ControllerState::kClosing) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_STATE__CONTROLLER_STATE_CLOSING);
static_assert(static_cast<int>(AttachmentState::kOpening) + 1 ==
              CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_OPENING);
static_assert(static_cast<int>(AttachmentState::kClosing) + 1 ==
              CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_CLOSING);
static_assert(static_cast<int>(AttachmentState::kStandby) + 1 ==
              CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_STANDBY);
static_assert(static_cast<int>(ControllerState::kStandby) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_STATE__CONTROLLER_STATE_STANDBY);

static_assert(static_cast<int>(DiscoverySubtype::kThisService) ==
              CLEAT__ENGINE__V1__DISCOVERY_SUBTYPE__DISCOVERY_SUBTYPE_THIS_SERVICE);
static_assert(static_cast<int>(SecureChannel::kNotRequired) ==
              CLEAT__ENGINE__V1__SECURE_CHANNEL__SECURE_CHANNEL_NOT_REQUIRED);

std::vector<uint8_t> Pack(const PbEnvelope& envelope) {
  std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
  cleat__engine__v1__envelope__pack(&envelope, bytes.data());
  CLEAT_CHECK(bytes.size() <= kMessageBytesMax);
  return bytes;
}

PbEnvelope EmptyEnvelope() {
  PbEnvelope envelope;
  cleat__engine__v1__envelope__init(&envelope);
  return envelope;
}

std::vector<uint8_t> PackEvent(Cleat__Engine__V1__StatusEvent& event) {
  PbEnvelope envelope = EmptyEnvelope();
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_STATUS_EVENT;
  envelope.status_event = &event;
  return Pack(envelope);
}

Cleat__Engine__V1__StatusEvent EmptyEvent() {
  Cleat__Engine__V1__StatusEvent event;
  cleat__engine__v1__status_event__init(&event);
  return event;
}

// Messages for people can be long (they carry paths); a report must fit a datagram with room to spare.
constexpr size_t kReportMessageBytesMax = 2048;

}  // namespace

std::vector<uint8_t> EncodeHello(const HelloMessage& hello) {
  Cleat__Engine__V1__Hello out = CLEAT__ENGINE__V1__HELLO__INIT;
  CLEAT_PB_SET(out, protocol_min, kProtocolMin);
  CLEAT_PB_SET(out, protocol_max, kProtocolMax);
  out.engine = PbText(hello.engine);
  out.version = PbText(hello.version);
  CLEAT_PB_SET(out, incarnation, hello.incarnation);
  CLEAT_PB_SET(out, reactors, hello.reactors);
  CLEAT_PB_SET(out, controllers_max, kControllersMax);
  if (!hello.stands_by_for.empty()) out.stands_by_for = PbText(hello.stands_by_for);
  if (!hello.path_lists.empty()) out.path_lists = PbText(hello.path_lists);
  PbEnvelope envelope = EmptyEnvelope();
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_HELLO;
  envelope.hello = &out;
  return Pack(envelope);
}

std::vector<uint8_t> EncodeReply(uint64_t id, const Status& status, const HandOver* hand_over) {
  Cleat__Engine__V1__Reply out = CLEAT__ENGINE__V1__REPLY__INIT;
  CLEAT_PB_SET(out, ok, status.ok());
  std::string code;
  std::string message;
  if (!status.ok()) {
    code = ErrorCodeName(status.error().code);
    message = status.error().message.substr(0, kReportMessageBytesMax);
    out.code = PbText(code);
    out.message = PbText(message);
  }
  Packer packer;
  if (status.ok() && hand_over != nullptr) out.hand_over = packer.Add(*hand_over);
  PbEnvelope envelope = EmptyEnvelope();
  CLEAT_PB_SET(envelope, id, id);
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY;
  envelope.reply = &out;
  return Pack(envelope);
}

std::vector<uint8_t> EncodeProgress(uint64_t id, const std::vector<ReactorProgress>& reactors) {
  std::vector<Cleat__Engine__V1__ReactorProgress> progress;
  for (const ReactorProgress& reactor : reactors) {
    if (progress.size() == kReactorsReportedMax) break;
    Cleat__Engine__V1__ReactorProgress& one =
        progress.emplace_back(Cleat__Engine__V1__ReactorProgress CLEAT__ENGINE__V1__REACTOR_PROGRESS__INIT);
    one.name = PbText(reactor.name);
    CLEAT_PB_SET(one, turns, reactor.turns);
    CLEAT_PB_SET(one, asleep, reactor.asleep);
  }
  std::vector<Cleat__Engine__V1__ReactorProgress*> pointers;
  for (auto& one : progress) pointers.push_back(&one);
  Cleat__Engine__V1__Reply out = CLEAT__ENGINE__V1__REPLY__INIT;
  CLEAT_PB_SET(out, ok, true);
  out.n_reactors = pointers.size();
  out.reactors = pointers.data();
  PbEnvelope envelope = EmptyEnvelope();
  CLEAT_PB_SET(envelope, id, id);
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY;
  envelope.reply = &out;
  return Pack(envelope);
}

std::vector<std::vector<uint8_t>> EncodeDiscovery(uint64_t id, const DiscoveryReport& report, bool goes_on) {
  std::vector<std::vector<uint8_t>> messages;
  std::span<const DiscoveryRecord> left = report.records;
  do {
    const auto some = left.first(std::min(left.size(), kDiscoveryRecordsAMessage));
    left = left.subspan(some.size());
    Packer packer;
    std::vector<PbDiscoveryRecord*> records;
    for (const DiscoveryRecord& record : some) records.push_back(packer.Add(record));
    Cleat__Engine__V1__Discovery discovery = CLEAT__ENGINE__V1__DISCOVERY__INIT;
    discovery.n_records = records.size();
    discovery.records = records.data();
    CLEAT_PB_SET(discovery, skipped, report.skipped);
    discovery.why_skipped = PbText(report.why_skipped);
    Cleat__Engine__V1__Reply out = CLEAT__ENGINE__V1__REPLY__INIT;
    CLEAT_PB_SET(out, ok, true);
    CLEAT_PB_SET(out, more, goes_on || !left.empty());
    CLEAT_PB_SET(out, whole, goes_on && left.empty());
    out.discovery = &discovery;
    PbEnvelope envelope = EmptyEnvelope();
    CLEAT_PB_SET(envelope, id, id);
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY;
    envelope.reply = &out;
    messages.push_back(Pack(envelope));
  } while (!left.empty());
  return messages;
}

std::vector<std::vector<uint8_t>> EncodeInventory(const std::vector<ControllerReport>& controllers,
                                                  const std::vector<AttachmentReport>& attachments,
                                                  const std::vector<MemoryReport>& memories,
                                                  const std::vector<GroupSpec>& groups,
                                                  const std::vector<ClusterSpec>& clusters) {
  // A report is at most ~10 KiB (two paths of 4 KiB at the very worst), so that four always fit.
  constexpr size_t kReportsAChunk = 4;
  std::vector<std::vector<uint8_t>> messages;
  size_t c = 0;
  size_t a = 0;
  size_t m = 0;
  size_t g = 0;
  size_t k = 0;
  bool last = false;
  while (!last) {
    Packer packer;
    std::vector<PbControllerStatus*> some_controllers;
    std::vector<PbAttachmentStatus*> some_attachments;
    std::vector<PbMemory*> some_memories;
    std::vector<PbGroup*> some_groups;
    std::vector<PbCluster*> some_clusters;
    size_t room = kReportsAChunk;
    for (; room > 0 && c < controllers.size(); --room)
      some_controllers.push_back(packer.Add(controllers[c++]));
    for (; room > 0 && a < attachments.size(); --room)
      some_attachments.push_back(packer.Add(attachments[a++]));
    for (; room > 0 && m < memories.size(); --room) some_memories.push_back(packer.Add(memories[m++]));
    for (; room > 0 && g < groups.size(); --room) some_groups.push_back(packer.Add(groups[g++]));
    for (; room > 0 && k < clusters.size(); --room) some_clusters.push_back(packer.Add(clusters[k++]));
    last = c == controllers.size() && a == attachments.size() && m == memories.size() && g == groups.size() &&
           k == clusters.size();

    Cleat__Engine__V1__Inventory out = CLEAT__ENGINE__V1__INVENTORY__INIT;
    out.n_controllers = some_controllers.size();
    out.controllers = some_controllers.data();
    out.n_attachments = some_attachments.size();
    out.attachments = some_attachments.data();
    out.n_memories = some_memories.size();
    out.memories = some_memories.data();
    out.n_groups = some_groups.size();
    out.groups = some_groups.data();
    out.n_clusters = some_clusters.size();
    out.clusters = some_clusters.data();
    CLEAT_PB_SET(out, last, last);
    PbEnvelope envelope = EmptyEnvelope();
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_INVENTORY;
    envelope.inventory = &out;
    messages.push_back(Pack(envelope));
  }
  return messages;
}

std::vector<uint8_t> EncodeController(const ControllerReport& report) {
  Packer packer;
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_CONTROLLER;
  event.controller = packer.Add(report);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeCeph(const CephReport& report) {
  Packer packer;
  std::vector<PbCephClient*> clients;
  for (const CephClientReport& client : report.clients) {
    if (clients.size() < kCephClientsMax) clients.push_back(packer.Add(client));
  }
  std::vector<PbCephCluster*> clusters;
  for (const CephClusterReport& cluster : report.clusters) {
    if (clusters.size() < kClustersMax) clusters.push_back(packer.Add(cluster));
  }
  Cleat__Engine__V1__CephStatus status = CLEAT__ENGINE__V1__CEPH_STATUS__INIT;
  CLEAT_PB_SET(status, threads, report.threads);
  CLEAT_PB_SET(status, clients_total, report.clients_total);
  status.n_clients = clients.size();
  status.clients = clients.data();
  status.n_clusters = clusters.size();
  status.clusters = clusters.data();
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_CEPH;
  event.ceph = &status;
  return PackEvent(event);
}

std::vector<uint8_t> EncodePathLists(const std::string& text) {
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_PATH_LISTS;
  event.path_lists = PbText(text);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeControllerGone(const std::string& name) {
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_CONTROLLER_GONE;
  event.controller_gone = PbText(name);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeAttachment(const AttachmentReport& report) {
  Packer packer;
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_ATTACHMENT;
  event.attachment = packer.Add(report);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeAttachmentGone(const std::string& controller, uint32_t target) {
  Cleat__Engine__V1__AttachmentKey key = CLEAT__ENGINE__V1__ATTACHMENT_KEY__INIT;
  key.controller = PbText(controller);
  CLEAT_PB_SET(key, target, target);
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_ATTACHMENT_GONE;
  event.attachment_gone = &key;
  return PackEvent(event);
}

}  // namespace cleat::engine
