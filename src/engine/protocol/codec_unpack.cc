// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log_request.h"
#include "engine/protocol/codec.h"
#include "engine/protocol/codec_structs.h"
#include "keys/key_encryption_key.h"
#include "nvme/fabrics/names.h"

namespace cleat::engine {
namespace {

namespace fabrics = nvme::fabrics;

// On the wire an enumeration is any number, and protobuf-c stores it as it comes; C++ may not even look at one that is no
// enumerator as such.
template <typename Enumeration>
uint32_t NumberOf(const Enumeration& value) {
  static_assert(sizeof(Enumeration) == sizeof(uint32_t));
  uint32_t number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

// None of which is among `others`.
Result<std::vector<fabrics::TransportAddress>> ExportAddressesOf(
    std::span<char* const> texts, const std::vector<fabrics::TransportAddress>& others,
    const std::string& field) {
  if (texts.size() > kExportAddressesMax)
    return Malformed(field + " has " + std::to_string(texts.size()) + ": at most " +
                     std::to_string(kExportAddressesMax) + " are taken");
  std::vector<fabrics::TransportAddress> addresses;
  for (const char* const text : texts) {
    auto address = fabrics::ParseAddressOfAnyTransport(text);
    if (!address) return Malformed(field + ": " + address.error().message);
    if (std::ranges::find(addresses, *address) != addresses.end())
      return Malformed(field + " has " + text + " twice");
    if (std::ranges::find(others, *address) != others.end())
      return Malformed(field + " has " + text + ", where the engine that serves it listens");
    addresses.push_back(*address);
  }
  return addresses;
}

Status AddExportHost(const char* nqn, NvmfSecrets secrets, const std::string& field,
                     std::vector<ExportHost>& hosts) {
  const std::string text = OptionalText(nqn);
  if (const auto checked = fabrics::CheckNqn(text, field); !checked)
    return Malformed(checked.error().message);
  if (std::ranges::find(hosts, text, &ExportHost::nqn) != hosts.end())
    return Malformed(field + " has " + text + " twice");
  hosts.push_back({text, std::move(secrets)});
  return Ok{};
}

// Hosts that have nothing to prove come first. A host of the second list that came without a secret would be let in without proof.
Result<std::vector<ExportHost>> ExportHostsOf(const PbExport& in, const std::string& field) {
  if (in.n_hosts > kExportHostsMax || in.n_secured_hosts > kExportHostsMax - in.n_hosts)
    return Malformed(field + " has " + std::to_string(in.n_hosts + in.n_secured_hosts) + ": at most " +
                     std::to_string(kExportHostsMax) + " are taken");
  std::vector<ExportHost> hosts;
  for (const char* const nqn : std::span(in.hosts, in.n_hosts)) {
    CLEAT_TRY(AddExportHost(nqn, {}, field, hosts));
  }
  for (const auto* const host : std::span(in.secured_hosts, in.n_secured_hosts)) {
    const std::string name = field + " " + OptionalText(host->nqn);
    CLEAT_ASSIGN(auto secrets, NvmfSecretsOf(*host, name));
    if (!secrets.any()) return Malformed(name + " is among those with secrets, and has none");
    CLEAT_TRY(AddExportHost(host->nqn, std::move(secrets), field, hosts));
  }
  return hosts;
}

Result<ExportSpec> ExportOf(const std::string& controller, const PbExport* in) {
  if (in == nullptr)
    return Malformed(controller + " is of the type nvmf, and controller.exported is missing");
  const auto field = [&controller](const char* name) { return controller + ": exported." + name; };
  ExportSpec spec;
  CLEAT_ASSIGN(spec.nqn, TextOf(in->nqn, "controller.exported.nqn"));
  if (const auto checked = fabrics::CheckNqn(spec.nqn, field("nqn")); !checked)
    return Malformed(checked.error().message);
  if (spec.nqn == fabrics::kDiscoveryNqn)
    return Malformed(field("nqn") + " is that of every discovery service");
  CLEAT_ASSIGN(spec.serial, TextOf(in->serial, "controller.exported.serial"));
  const bool printable = std::ranges::all_of(spec.serial, [](char c) { return c >= ' ' && c <= '~'; });
  if (spec.serial.empty() || spec.serial.size() > kExportSerialBytesMax || !printable)
    return Malformed(field("serial") + " is not 1 to " + std::to_string(kExportSerialBytesMax) +
                     " printable ASCII characters");
  CLEAT_ASSIGN(spec.addresses, ExportAddressesOf({in->addresses, in->n_addresses}, {}, field("addresses")));
  if (spec.addresses.empty()) return Malformed(field("addresses") + " has 0: at least one is taken");
  CLEAT_ASSIGN(spec.standby_addresses, ExportAddressesOf({in->standby_addresses, in->n_standby_addresses},
                                                         spec.addresses, field("standby_addresses")));
  CLEAT_ASSIGN(spec.hosts, ExportHostsOf(*in, field("hosts")));
  CLEAT_ASSIGN(spec.dscp, DscpOf(in->dscp, field("dscp")));
  spec.hosts_revision = in->hosts_revision;
  return spec;
}

// Of a controller that guests reach by a vhost-user socket.
Status TakeSocket(const PbController& in, ControllerSpec& spec) {
  if (in.exported != nullptr)
    return Malformed(spec.name + ": only a controller of the type nvmf has controller.exported");
  CLEAT_ASSIGN(spec.socket_path, TextOf(in.socket_path, "controller.socket_path"));
  switch (NumberOf(in.socket_mode)) {
    case CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT:
      spec.socket_mode = SocketMode::kClient;
      return Ok{};
    case CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_SERVER:
      spec.socket_mode = SocketMode::kServer;
      return Ok{};
    default:
      return Malformed(spec.name + ": unknown socket mode");
  }
}

// Of an export, which has none of what belongs to a socket.
Status TakeExport(const PbController& in, ControllerSpec& spec) {
  if (in.socket_path != nullptr && *in.socket_path != '\0')
    return Malformed(spec.name + " is of the type nvmf, which has no controller.socket_path");
  if (in.memory_pinned != 0)
    return Malformed(spec.name + " is of the type nvmf, which has no controller.memory_pinned");
  CLEAT_ASSIGN(spec.exported, ExportOf(spec.name, in.exported));
  return Ok{};
}

Result<ControllerSpec> ControllerOf(const PbController* in) {
  if (in == nullptr) return Malformed("a controller is missing");
  ControllerSpec spec;
  CLEAT_ASSIGN(spec.name, TextOf(in->name, "controller.name"));
  switch (NumberOf(in->type)) {
    case CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK:
      spec.type = ControllerType::kBlk;
      break;
    case CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_SCSI:
      spec.type = ControllerType::kScsi;
      break;
    case CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_NVMF:
      spec.type = ControllerType::kNvmf;
      break;
    default:
      return Error(ErrorCode::kUnimplemented,
                   spec.name + ": this engine knows controllers of the types blk, scsi and nvmf only");
  }
  CLEAT_TRY(spec.type == ControllerType::kNvmf ? TakeExport(*in, spec) : TakeSocket(*in, spec));
  spec.queues = in->queues;
  spec.revision = in->revision;
  if (in->group != nullptr && *in->group != '\0') {
    CLEAT_ASSIGN(spec.group, TextOf(in->group, "controller.group"));
  }
  spec.memory_pinned = in->memory_pinned != 0;
  spec.last_disk = DiskIdentity(in->last_disk);
  if (in->last_disk_name != nullptr && *in->last_disk_name != '\0') {
    CLEAT_ASSIGN(spec.last_disk_name, TextOf(in->last_disk_name, "controller.last_disk_name"));
  }
  return spec;
}

// Absent: none.
LimitsSpec LimitsOf(const PbLimits* in) {
  LimitsSpec spec;
  if (in == nullptr) return spec;
  for (size_t i = 0; i < qos::kMeters; ++i) {
    if (const PbRate* rate = in->*kRates[i]) {
      spec.limits.rates[i] = {rate->per_second, rate->burst_per_second, rate->burst_ms};
    }
  }
  spec.revision = in->revision;
  return spec;
}

// A value that this engine does not know means what every engine does.
OnNoSpace OnNoSpaceOf(Cleat__Engine__V1__OnNoSpace in) {
  return in == CLEAT__ENGINE__V1__ON_NO_SPACE__ON_NO_SPACE_WAIT ? OnNoSpace::kWait : OnNoSpace::kError;
}

// As OnNoSpaceOf.
block::InDoubt InDoubtOf(const PbInDoubt* in) {
  using Policy = block::InDoubt::Policy;
  if (in == nullptr) return {};
  if (in->policy == CLEAT__ENGINE__V1__IN_DOUBT_POLICY__IN_DOUBT_POLICY_ACCEPT)
    return {.policy = Policy::kAccept, .fail_after_ns = 0};
  if (in->policy == CLEAT__ENGINE__V1__IN_DOUBT_POLICY__IN_DOUBT_POLICY_FAIL_AFTER && in->fail_after_s > 0)
    return {.policy = Policy::kFailAfter, .fail_after_ns = in->fail_after_s * kNsPerSecond};
  return {};
}

Result<GroupSpec> GroupOf(const PbGroup* in) {
  if (in == nullptr) return Malformed("a group is missing");
  CLEAT_ASSIGN(auto name, TextOf(in->name, "group.name"));
  if (!in->has_slot) return Malformed(name + " has no slot");
  return GroupSpec{std::move(name), in->slot, LimitsOf(in->limits)};
}

Result<ClusterSpec> ClusterOf(const PbCluster* in) {
  if (in == nullptr) return Malformed("a cluster is missing");
  auto name = TextOf(in->name, "cluster.name");
  CLEAT_TRY(name);
  CLEAT_ASSIGN(auto user, TextOf(in->user, "cluster.user"));
  ClusterSpec spec;
  spec.name = std::move(name).value();
  spec.user = std::move(user);
  spec.monitors = OptionalText(in->monitors);
  spec.conf_file = OptionalText(in->conf_file);
  if (spec.monitors.size() > kTextBytesMax || spec.conf_file.size() > kTextBytesMax) {
    return Malformed(spec.name + ": its monitors or its conf file's name are too long");
  }
  spec.images_per_client = in->images_per_client;
  spec.connect_timeout_ms = in->connect_timeout_ms;
  spec.revision = in->revision;
  if (in->has_wrapped_key == 0) return spec;
  spec.key_encryption_key = OptionalText(in->key_encryption_key);
  const ProtobufCBinaryData& wrapped = in->wrapped_key;
  if (!IsPaddedKey(spec.key_encryption_key, wrapped)) {
    return Malformed(spec.name + ": its wrapped key has a length that none has, or its wrapping key no id");
  }
  spec.wrapped_key.assign(wrapped.data, wrapped.data + wrapped.len);
  return spec;
}

Result<EncryptionSpec> EncryptionOf(const std::string& disk, const PbEncryption& in) {
  EncryptionSpec spec;
  switch (NumberOf(in.cipher)) {
    case CLEAT__ENGINE__V1__CIPHER__CIPHER_AES_256_XTS:
      spec.cipher = keys::Cipher::kAes256Xts;
      break;
    case CLEAT__ENGINE__V1__CIPHER__CIPHER_AES_128_XTS:
      spec.cipher = keys::Cipher::kAes128Xts;
      break;
    default:
      return Error(ErrorCode::kUnimplemented, disk + ": this engine does not know its cipher");
  }
  spec.data_unit_bytes = in.data_unit_bytes;
  CLEAT_ASSIGN(spec.key_encryption_key, TextOf(in.key_encryption_key, "disk.encryption.key_encryption_key"));
  if (spec.key_encryption_key.size() != keys::kKekIdDigits) {
    return Malformed(disk + ": its key-encryption key has no id as such keys have");
  }
  const ProtobufCBinaryData& wrapped = in.wrapped_key;
  if (in.has_wrapped_key == 0 || wrapped.len < keys::kWrappedBytesMin ||
      wrapped.len > keys::kWrappedBytesMax) {
    return Malformed(disk + ": its wrapped key is missing, or has a length that none has");
  }
  spec.wrapped_key.assign(wrapped.data, wrapped.data + wrapped.len);
  return spec;
}

Result<DiskSpec> DiskOf(const PbDisk* in) {
  if (in == nullptr) return Malformed("a disk is missing");
  DiskSpec spec;
  CLEAT_ASSIGN(spec.name, TextOf(in->name, "disk.name"));
  spec.size_bytes = in->size_bytes;
  if (in->has_logical_block_bytes) spec.logical_block_bytes = in->logical_block_bytes;
  spec.physical_block_bytes =
      in->has_physical_block_bytes ? in->physical_block_bytes : spec.logical_block_bytes;
  if (in->serial != nullptr) spec.serial = in->serial;
  spec.wwn = in->wwn;
  spec.identity = DiskIdentity(in->identity);
  CLEAT_ASSIGN(spec.backend, UnpackBackend(spec.name, *in));
  if (in->fault != nullptr) {
    spec.fault = FaultSpec{in->fault->seed, in->fault->delay_ns_max, in->fault->fail_per_million};
  }
  spec.limits = LimitsOf(in->limits);
  if (in->has_on_no_space) spec.on_no_space = OnNoSpaceOf(in->on_no_space);
  spec.in_doubt = InDoubtOf(in->in_doubt);
  if (in->encryption != nullptr) {
    CLEAT_ASSIGN(spec.encryption, EncryptionOf(spec.name, *in->encryption));
  }
  return spec;
}

Result<AttachmentSpec> AttachmentOf(const PbAttachment* in) {
  if (in == nullptr) return Malformed("an attachment is missing");
  AttachmentSpec spec;
  CLEAT_ASSIGN(spec.controller, TextOf(in->controller, "attachment.controller"));
  CLEAT_ASSIGN(spec.disk, DiskOf(in->disk));
  spec.target = in->target;
  spec.read_only = in->read_only != 0;
  spec.revision = in->revision;
  spec.incoming = in->incoming != 0;
  return spec;
}

// A message that is one text field.
template <typename Message>
Result<Incoming> OneText(uint64_t id, const char* text, const char* field) {
  CLEAT_ASSIGN(auto value, TextOf(text, field));
  Incoming incoming;
  incoming.id = id;
  incoming.body = Message{std::move(value)};
  return incoming;
}

template <typename Message, typename Value>
Result<Incoming> OneValue(uint64_t id, Result<Value> value) {
  CLEAT_TRY(value);
  Incoming incoming;
  incoming.id = id;
  incoming.body = Message{std::move(value).value()};
  return incoming;
}

Result<Incoming> PutControllerOf(const PbEnvelope& in) {
  CLEAT_ASSIGN(auto controller, ControllerOf(in.put_controller->controller));
  return Incoming{in.id, PutControllerMessage{std::move(controller), in.put_controller->standby != 0}};
}

// In shape: what the words mean is for the qos of this version to say.
Result<HandOver> HandOverOf(const PbHandOver* in) {
  HandOver hand_over;
  if (in == nullptr) return hand_over;
  if (in->n_disks > std::max(kTargetsMax, kNamespacesMax))
    return Malformed("a hand-over of more disks than a controller has");
  for (size_t i = 0; i < in->n_disks; ++i) {
    const PbDiskHandOver& disk = *in->disks[i];
    if (disk.n_buckets > kHandOverWordsMax) return Malformed("a hand-over of a disk with too many buckets");
    if (disk.n_cells > kHandOverWordsMax) return Malformed("a hand-over of a disk with too many cells");
    hand_over.disks.push_back({disk.target,
                               {disk.buckets, disk.buckets + disk.n_buckets},
                               {disk.cells, disk.cells + disk.n_cells}});
  }
  return hand_over;
}

Result<ResizeDiskMessage> ResizeOf(const Cleat__Engine__V1__ResizeDisk& in) {
  CLEAT_ASSIGN(auto disk, TextOf(in.disk, "resize_disk.disk"));
  CLEAT_ASSIGN(auto extents, ExtentRunsOf({in.extents, in.n_extents}, "resize_disk.extents"));
  return ResizeDiskMessage{{std::move(disk), in.size_bytes, std::move(extents)}};
}

Result<DiscoverMessage> DiscoverOf(const Cleat__Engine__V1__Discover& in) {
  DiscoverySpec spec;
  CLEAT_ASSIGN(spec.address, TextOf(in.address, "discover.address"));
  CLEAT_ASSIGN(spec.host_nqn, TextOf(in.host_nqn, "discover.host_nqn"));
  CLEAT_ASSIGN(spec.host_id, TextOf(in.host_id, "discover.host_id"));
  spec.timeout_ms = in.timeout_ms;
  if (spec.timeout_ms == 0 || spec.timeout_ms > kDiscoveryTimeoutMsMax)
    return Malformed("discover.timeout_ms is not 1 to " + std::to_string(kDiscoveryTimeoutMsMax));
  CLEAT_ASSIGN(spec.secrets, NvmfSecretsOf(in, "discover"));
  spec.watch = in.watch != 0;
  return DiscoverMessage{std::move(spec)};
}

Result<Incoming> TakeControllerOf(const PbEnvelope& in) {
  CLEAT_ASSIGN(auto name, TextOf(in.take_controller->name, "take_controller.name"));
  CLEAT_ASSIGN(auto hand_over, HandOverOf(in.take_controller->hand_over));
  return Incoming{
      in.id, TakeControllerMessage{std::move(name), std::move(hand_over), in.take_controller->counters != 0,
                                   in.take_controller->connections != 0}};
}

Result<Incoming> FromEnvelope(const PbEnvelope& in) {
  switch (in.body_case) {
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_HELLO_REPLY: {
      HelloReplyMessage reply;
      reply.protocol = in.hello_reply->protocol;
      if (in.hello_reply->refusal != nullptr) reply.refusal = in.hello_reply->refusal;
      return Incoming{in.id, reply};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER:
      return PutControllerOf(in);
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DELETE_CONTROLLER:
      return OneText<DeleteControllerMessage>(in.id, in.delete_controller->name, "delete_controller.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_ATTACH:
      return OneValue<AttachMessage>(in.id, AttachmentOf(in.attach->attachment));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DETACH: {
      CLEAT_ASSIGN(auto controller, TextOf(in.detach->controller, "detach.controller"));
      return Incoming{in.id, DetachMessage{std::move(controller), in.detach->target}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_KEEP_MEMORY: {
      if (in.keep_memory->memory == nullptr) return Malformed("keep_memory.memory is missing");
      CLEAT_ASSIGN(auto disk, TextOf(in.keep_memory->memory->disk, "keep_memory.memory.disk"));
      const auto& memory = *in.keep_memory->memory;
      return Incoming{in.id, KeepMemoryMessage{{std::move(disk), memory.size_bytes, memory.fixed != 0}}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DROP_MEMORY:
      return OneText<DropMemoryMessage>(in.id, in.drop_memory->disk, "drop_memory.disk");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_FETCH_MEMORY:
      return OneText<FetchMemoryMessage>(in.id, in.fetch_memory->disk, "fetch_memory.disk");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_SERVE_CONTROLLER:
      return OneText<ServeControllerMessage>(in.id, in.serve_controller->name, "serve_controller.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_SHARE_GROUPS:
      return Incoming{in.id, ShareGroupsMessage{}};
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_GROUP:
      return OneValue<PutGroupMessage>(in.id, GroupOf(in.put_group->group));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DROP_GROUP:
      return OneText<DropGroupMessage>(in.id, in.drop_group->name, "drop_group.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CLUSTER:
      return OneValue<PutClusterMessage>(in.id, ClusterOf(in.put_cluster->cluster));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DROP_CLUSTER:
      return OneText<DropClusterMessage>(in.id, in.drop_cluster->name, "drop_cluster.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_YIELD_CONTROLLER: {
      CLEAT_ASSIGN(auto name, TextOf(in.yield_controller->name, "yield_controller.name"));
      return Incoming{in.id, YieldControllerMessage{std::move(name), in.yield_controller->drain_ms}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_TAKE_CONTROLLER:
      return TakeControllerOf(in);
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_LIMIT_DISK: {
      CLEAT_ASSIGN(auto disk, TextOf(in.limit_disk->disk, "limit_disk.disk"));
      LimitSpec limit{std::move(disk), LimitsOf(in.limit_disk->limits)};
      if (in.limit_disk->has_on_no_space) limit.on_no_space = OnNoSpaceOf(in.limit_disk->on_no_space);
      limit.in_doubt = InDoubtOf(in.limit_disk->in_doubt);
      return Incoming{in.id, LimitDiskMessage{std::move(limit)}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_RESIZE_DISK: {
      return OneValue<ResizeDiskMessage>(in.id, ResizeOf(*in.resize_disk));
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_READ_PATH_LISTS:
      return Incoming{in.id, ReadPathListsMessage{}};
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_HEARTBEAT:
      return Incoming{in.id, HeartbeatMessage{}};
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DISCOVER:
      return OneValue<DiscoverMessage>(in.id, DiscoverOf(*in.discover));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_STOP_DISCOVER:
      return Incoming{in.id, StopDiscoverMessage{in.stop_discover->discover}};
    default:
      return Error(ErrorCode::kUnimplemented, "engine protocol: this engine does not know such a message");
  }
}

struct FreeEnvelope {
  void operator()(PbEnvelope* envelope) const {
    cleat__engine__v1__envelope__free_unpacked(envelope, nullptr);
  }
};
using EnvelopePtr = std::unique_ptr<PbEnvelope, FreeEnvelope>;

EnvelopePtr Unpack(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMessageBytesMax) return nullptr;
  return EnvelopePtr(cleat__engine__v1__envelope__unpack(nullptr, bytes.size(), bytes.data()));
}

}  // namespace

Result<Incoming> Decode(std::span<const uint8_t> bytes) {
  const EnvelopePtr envelope = Unpack(bytes);
  if (envelope == nullptr) {
    return Malformed("a message of " + std::to_string(bytes.size()) + " bytes can't be read");
  }
  const std::string request = OptionalText(envelope->request);
  if (!request.empty() && !log::IsRequestId(request))
    return Malformed("the request's id is not 1 to " + std::to_string(log::kRequestBytesMax) +
                     " printable characters without blanks");
  auto incoming = FromEnvelope(*envelope);
  if (incoming) incoming->request = request;
  return incoming;
}

uint64_t DecodeId(std::span<const uint8_t> bytes) {
  const EnvelopePtr envelope = Unpack(bytes);
  return envelope == nullptr ? 0 : envelope->id;
}

}  // namespace cleat::engine
