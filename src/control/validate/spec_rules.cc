// SPDX-License-Identifier: Apache-2.0
#include "control/validate/spec_rules.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "control/model/model.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/backends.h"
#include "control/validate/disk_settings.h"

namespace cleat::control {
namespace {

constexpr uint32_t kSmallBlockBytes = 512;
constexpr uint32_t kLargeBlockBytes = 4096;
constexpr uint32_t kMillion = 1'000'000;

constexpr size_t kWwnDigits = 16;

Error Invalid(std::string_view resource, std::string_view field, std::string message) {
  return RefuseFor(resource, v1::REASON_INVALID_FIELD, std::move(message), {{"field", std::string(field)}});
}

// NAA 2 (IEEE extended), 3 (locally assigned) and 5 (IEEE registered) are the names of 64 bits. SPC-5, 7.7.6.6.1.
bool IsWwn(std::string_view wwn) {
  return wwn.size() == kWwnDigits + 2 && wwn.starts_with("0x") &&
         wwn.find_first_not_of("0123456789abcdef", 2) == std::string_view::npos &&
         std::string_view("235").find(wwn[2]) != std::string_view::npos;
}

// In lower case, so that there is one way to write it.
Status CompleteWwn(std::string_view disk, std::string* wwn) {
  std::transform(wwn->begin(), wwn->end(), wwn->begin(), [](unsigned char c) { return std::tolower(c); });
  if (IsWwn(*wwn)) return Ok{};
  return Invalid(
      disk, "spec.wwn",
      fmt::format("{}: wwn is '{:.40}': it must be 0x and {} hexadecimal digits, of which the first is "
                  "2, 3 or 5 (0x3... is locally assigned)",
                  disk, *wwn, kWwnDigits));
}

bool IsLabelKey(std::string_view key) {
  const auto alnum = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !key.empty() && key.size() <= kLabelKeyBytesMax && key.front() >= 'a' && key.front() <= 'z' &&
         alnum(key.back()) && std::all_of(key.begin(), key.end(), [&](char c) {
           return alnum(c) || std::string_view("-._/").find(c) != std::string_view::npos;
         });
}

std::string DefaultSerial(std::string_view id) {
  if (id.size() <= kSerialBytesMax) return std::string(id);
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return fmt::format("{}-{:08x}", id.substr(0, kSerialBytesMax - 9), hash);
}

Status CheckSerial(std::string_view disk, std::string_view serial) {
  const bool printable =
      std::all_of(serial.begin(), serial.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && serial.size() <= kSerialBytesMax) return Ok{};
  return Invalid(disk, "spec.serial",
                 fmt::format("{}: serial must be 1 to {} printable ASCII characters", disk, kSerialBytesMax));
}

Status CheckBlocks(std::string_view disk, const v1::DiskSpec& spec) {
  const uint32_t logical = spec.logical_block_bytes();
  const uint32_t physical = spec.physical_block_bytes();
  if (logical != kSmallBlockBytes && logical != kLargeBlockBytes) {
    return Invalid(disk, "spec.logical_block_bytes",
                   fmt::format("{}: logical_block_bytes is {}: it must be 512 or 4096", disk, logical));
  }
  if (!std::has_single_bit(physical) || physical < logical || physical > kPhysicalBlockBytesMax) {
    return Invalid(disk, "spec.physical_block_bytes",
                   fmt::format("{}: physical_block_bytes is {}: it must be a power of two from {} to {}",
                               disk, physical, logical, kPhysicalBlockBytesMax));
  }
  if (spec.size_bytes() == 0 || spec.size_bytes() > kDiskBytesMax || spec.size_bytes() % logical != 0) {
    return Invalid(
        disk, "spec.size_bytes",
        fmt::format("{}: size_bytes is {}: it must be a multiple of the logical block size ({}), from {} "
                    "to {}",
                    disk, spec.size_bytes(), logical, logical, kDiskBytesMax));
  }
  return Ok{};
}

Status CheckFault(std::string_view disk, const v1::FaultPlan& fault) {
  if (fault.delay_ns_max() > kFaultDelayNsMax) {
    return Invalid(disk, "spec.fault.delay_ns_max",
                   fmt::format("{}: fault.delay_ns_max is {}: {} at most", disk, fault.delay_ns_max(),
                               kFaultDelayNsMax));
  }
  if (fault.fail_per_million() > kMillion) {
    return Invalid(disk, "spec.fault.fail_per_million",
                   fmt::format("{}: fault.fail_per_million is {}: {} at most", disk, fault.fail_per_million(),
                               kMillion));
  }
  return Ok{};
}

template <typename Enum>
Status CheckEnum(std::string_view object, std::string_view field, Enum value, bool known) {
  if (known) return Ok{};
  return Invalid(
      object, "spec." + std::string(field),
      fmt::format("{}: {} is {}, which this version does not know", object, field, static_cast<int>(value)));
}

// What can be said of it without the key.
Status CompleteEncryption(std::string_view disk, uint32_t logical_block_bytes, v1::Encryption* encryption) {
  if (encryption->cipher() == v1::CIPHER_UNSPECIFIED) encryption->set_cipher(v1::CIPHER_AES_256_XTS);
  if (encryption->data_unit_bytes() == 0) encryption->set_data_unit_bytes(kSmallBlockBytes);
  const bool known = v1::Cipher_IsValid(encryption->cipher());
  CLEAT_TRY(CheckEnum(disk, "encryption.cipher", encryption->cipher(), known));
  const uint32_t unit = encryption->data_unit_bytes();
  if (unit != kSmallBlockBytes && unit != kLargeBlockBytes) {
    return Invalid(disk, "spec.encryption.data_unit_bytes",
                   fmt::format("{}: encryption.data_unit_bytes is {}: it must be 512 or 4096", disk, unit));
  }
  if (unit <= logical_block_bytes) return Ok{};
  return Invalid(
      disk, "spec.encryption.data_unit_bytes",
      fmt::format("{}: encryption.data_unit_bytes is {} on a disk with logical blocks of {} bytes: give it "
                  "logical_block_bytes of 4096, or data units of 512",
                  disk, unit, logical_block_bytes));
}

}  // namespace

v1::DiskSpec AsDeclared(v1::DiskSpec spec) {
  if (spec.has_pool()) spec.mutable_pool()->clear_extents();
  return WithoutKey(std::move(spec));
}

Result<std::string> CompletePath(std::string_view resource, std::string_view field, std::string_view path,
                                 size_t bytes_max) {
  const auto invalid = [&](const std::string& why) {
    return Invalid(resource, "spec." + std::string(field), fmt::format("{}: {} {}", resource, field, why));
  };
  if (path.empty()) return invalid("is missing: give an absolute path");
  if (path.find('\0') != std::string_view::npos) return invalid("has a zero byte in it");
  if (path.front() != '/' || path.back() == '/') {
    return invalid(fmt::format("is '{}': give the absolute path of a file", path.substr(0, bytes_max)));
  }
  if (path.size() > bytes_max) {
    return invalid(fmt::format("has {} bytes: {} at most", path.size(), bytes_max));
  }
  return std::filesystem::path(path).lexically_normal().string();
}

Result<v1::GroupSpec> CompleteGroupSpec(std::string_view id, v1::GroupSpec spec) {
  CLEAT_TRY(CompleteLimits(GroupName(id), spec.mutable_limits()));
  if (spec.limits().ByteSizeLong() == 0) spec.clear_limits();
  return spec;
}

Result<v1::DiskSpec> CompleteDiskSpec(std::string_view id, v1::DiskSpec spec) {
  const std::string disk = DiskName(id);
  if (spec.logical_block_bytes() == 0) spec.set_logical_block_bytes(kSmallBlockBytes);
  if (spec.physical_block_bytes() == 0) spec.set_physical_block_bytes(kLargeBlockBytes);
  if (spec.serial().empty()) spec.set_serial(DefaultSerial(id));
  if (spec.wwn().empty()) spec.set_wwn(DefaultWwn(id));
  if (spec.access_mode() == v1::ACCESS_MODE_UNSPECIFIED) spec.set_access_mode(v1::ACCESS_MODE_ONE_WRITER);

  CLEAT_TRY(CheckBlocks(disk, spec));
  CLEAT_TRY(CheckSerial(disk, spec.serial()));
  CLEAT_TRY(CompleteWwn(disk, spec.mutable_wwn()));
  const bool mode_known = v1::AccessMode_IsValid(spec.access_mode());
  CLEAT_TRY(CheckEnum(disk, "access_mode", spec.access_mode(), mode_known));
  CLEAT_TRY(CheckEnum(disk, "on_no_space", spec.on_no_space(), v1::OnNoSpace_IsValid(spec.on_no_space())));
  // What disks of older stores have, which say nothing.
  if (spec.on_no_space() == v1::ON_NO_SPACE_ERROR) spec.clear_on_no_space();
  CLEAT_TRY(CompleteInDoubt(disk, spec));
  if (spec.has_fault()) {
    CLEAT_TRY(CheckFault(disk, spec.fault()));
  }
  if (spec.has_limits()) {
    CLEAT_TRY(CompleteLimits(disk, spec.mutable_limits()));
    if (spec.limits().ByteSizeLong() == 0) spec.clear_limits();
  }
  if (spec.has_encryption()) {
    CLEAT_TRY(CompleteEncryption(disk, spec.logical_block_bytes(), spec.mutable_encryption()));
  }
  CLEAT_TRY(CompleteBackend(disk, &spec));
  return spec;
}

namespace {

// Of a controller that a guest reaches by a vhost-user socket.
Status CompleteSocket(const std::string& controller, v1::ControllerSpec& spec) {
  if (spec.has_exported()) {
    return Invalid(controller, "spec.exported",
                   fmt::format("{}: exported is there: only an NVMF controller has it", controller));
  }
  if (spec.socket_mode() == v1::SOCKET_MODE_UNSPECIFIED) spec.set_socket_mode(v1::SOCKET_MODE_CLIENT);
  const bool mode_known = v1::SocketMode_IsValid(spec.socket_mode());
  CLEAT_TRY(CheckEnum(controller, "socket_mode", spec.socket_mode(), mode_known));
  CLEAT_ASSIGN(auto path, CompletePath(controller, "socket_path", spec.socket_path(), kSocketPathBytesMax));
  spec.set_socket_path(path);
  return Ok{};
}

}  // namespace

Result<v1::ControllerSpec> CompleteControllerSpec(std::string_view id, v1::ControllerSpec spec) {
  const std::string controller = ControllerName(id);
  if (spec.type() == v1::CONTROLLER_TYPE_UNSPECIFIED) spec.set_type(v1::CONTROLLER_TYPE_BLK);
  const bool exported = spec.type() == v1::CONTROLLER_TYPE_NVMF;
  if (spec.queues() == 0) spec.set_queues(exported ? kExportQueuesDefault : 1);
  const bool type_known = v1::ControllerType_IsValid(spec.type());
  CLEAT_TRY(CheckEnum(controller, "type", spec.type(), type_known));
  CLEAT_TRY(exported ? CompleteExportSpec(controller, &spec) : CompleteSocket(controller, spec));
  if (spec.queues() > kQueuesMax) {
    return Invalid(
        controller, "spec.queues",
        fmt::format("{}: queues is {}: it must be 1 to {}", controller, spec.queues(), kQueuesMax));
  }
  if (!spec.engine().empty()) {
    auto engine = ParseEngineName(spec.engine());
    if (!engine.ok())
      return Invalid(controller, "spec.engine",
                     fmt::format("{}: engine: {}", controller, engine.error().message));
  }
  if (!spec.group().empty()) {
    auto group = ParseGroupName(spec.group());
    if (!group.ok()) {
      return Invalid(controller, "spec.group",
                     fmt::format("{}: group: {}", controller, group.error().message));
    }
  }
  return spec;
}

uint32_t TargetsOf(v1::ControllerType type) {
  switch (type) {
    case v1::CONTROLLER_TYPE_SCSI:
      return kScsiTargets;
    case v1::CONTROLLER_TYPE_NVMF:
      return kExportTargets;
    default:
      return 1;
  }
}

Result<v1::AttachmentSpec> CompleteAttachmentSpec(std::string_view name, v1::AttachmentSpec spec,
                                                  v1::ControllerType type) {
  auto disk = ParseDiskName(spec.disk());
  if (!disk.ok()) return Invalid(name, "spec.disk", fmt::format("{}: disk: {}", name, disk.error().message));
  if (type == v1::CONTROLLER_TYPE_BLK && spec.target() != 0) {
    return Invalid(
        name, "spec.target",
        fmt::format("{}: target is {}: a BLK controller has one disk, at target 0", name, spec.target()));
  }
  if (spec.target() >= TargetsOf(type)) {
    return Invalid(
        name, "spec.target",
        fmt::format("{}: target is {}: it must be 0 to {}", name, spec.target(), TargetsOf(type) - 1));
  }
  const bool mode_known = v1::AttachmentMode_IsValid(spec.mode());
  CLEAT_TRY(CheckEnum(name, "mode", spec.mode(), mode_known));
  if (spec.mode() == v1::ATTACHMENT_MODE_INCOMING && type == v1::CONTROLLER_TYPE_NVMF) {
    return Invalid(
        name, "spec.mode",
        fmt::format("{}: mode is INCOMING: no VM migrates with an NVMF controller, whose disks are "
                    "attached as ACTIVE",
                    name));
  }
  if (spec.mode() != v1::ATTACHMENT_MODE_INCOMING) spec.set_mode(v1::ATTACHMENT_MODE_ACTIVE);
  return spec;
}

bool IsSameAttachment(const v1::AttachmentSpec& present, v1::AttachmentSpec asked) {
  if (!asked.has_target()) asked.set_target(present.target());
  const bool differs =
      present.mode() == v1::ATTACHMENT_MODE_INCOMING && asked.mode() != v1::ATTACHMENT_MODE_INCOMING;
  if (!differs) asked.set_mode(present.mode());
  return SameSpec(present, asked);
}

Result<Labels> CheckLabels(std::string_view resource,
                           const google::protobuf::Map<std::string, std::string>& labels) {
  if (labels.size() > kLabelsMax) {
    return Invalid(resource, "labels",
                   fmt::format("{}: {} labels: {} at most", resource, labels.size(), kLabelsMax));
  }
  for (const auto& [key, value] : labels) {
    if (!IsLabelKey(key)) {
      return Invalid(resource, "labels",
                     fmt::format("{}: label key '{:.80}': it must match [a-z]([-a-z0-9._/]{{0,61}}[a-z0-9])?",
                                 resource, key));
    }
    const bool plain =
        std::none_of(value.begin(), value.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
    if (!plain || value.size() > kLabelValueBytesMax) {
      return Invalid(
          resource, "labels",
          fmt::format("{}: the value of label '{}' must have at most {} bytes, without control characters",
                      resource, key, kLabelValueBytesMax));
    }
  }
  return Labels(labels.begin(), labels.end());
}

std::string DefaultWwn(std::string_view disk_id) {
  uint64_t hash =
      14695981039346656037ULL;  // FNV-1a; never to be changed, since guests know their disks by it
  for (const char c : disk_id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15ULL;
  hash ^= hash >> 29;
  return fmt::format("0x3{:015x}", hash & 0x0fff'ffff'ffff'ffffULL);
}

uint64_t WwnNumber(std::string_view wwn) {
  return std::strtoull(std::string(wwn).c_str(), nullptr, 16);
}

Error AlreadyExists(std::string_view name, const google::protobuf::Message& existing,
                    const google::protobuf::Message& wanted) {
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  differencer.Compare(existing, wanted);
  while (!difference.empty() && difference.back() == '\n') difference.pop_back();
  std::replace(difference.begin(), difference.end(), '\n', ';');
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with another spec ({}): choose another id, or delete it first",
                               name, difference),
                   {{"difference", difference}});
}

Error AlreadyExistsWithOtherLabels(std::string_view name) {
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with other labels: choose another id, or update its labels", name),
                   {{"difference", "labels"}});
}

bool SameSpec(const google::protobuf::Message& a, const google::protobuf::Message& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

}  // namespace cleat::control
