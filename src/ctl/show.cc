// SPDX-License-Identifier: Apache-2.0
#include "ctl/show.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <map>
#include <string_view>

#include "ctl/backends.h"
#include "ctl/in_doubt.h"
#include "ctl/limits.h"
#include "ctl/reasons.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

std::string Short(std::string_view name, std::string_view prefix) {
  return std::string(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

// "READY" of DISK_STATE_READY
std::string StateOf(const v1::Disk& disk) {
  return Short(v1::DiskState_Name(disk.status().state()), "DISK_STATE_");
}
std::string StateOf(const v1::Cluster& cluster) {
  const v1::ClusterState state = cluster.status().state();
  if (state != v1::CLUSTER_STATE_UNSPECIFIED && state != v1::CLUSTER_STATE_OK)
    return Short(v1::ClusterState_Name(state), "CLUSTER_STATE_");
  return cluster.status().message().empty() ? "READY" : "CHANGING";
}
std::string StateOf(const v1::Pool& pool) {
  return Short(v1::PoolState_Name(pool.status().state()), "POOL_STATE_");
}
std::string StateOf(const v1::Group& group) {
  return group.status().message().empty() ? "READY" : "CHANGING";
}
std::string StateOf(const v1::Controller& controller) {
  return Short(v1::ControllerState_Name(controller.status().state()), "CONTROLLER_STATE_");
}
std::string StateOf(const v1::Attachment& attachment) {
  return Short(v1::AttachmentState_Name(attachment.status().state()), "ATTACHMENT_STATE_");
}
std::string StateOf(const v1::Engine& engine) {
  if (engine.status().state() == v1::ENGINE_STATE_NOT_ANSWERING) return "NOT ANSWERING";
  if (engine.status().state() == v1::ENGINE_STATE_ENDED) return "ENDED";
  return engine.status().connected() ? "CONNECTED" : "NOT CONNECTED";
}

// "AES_256_XTS, units of 512 bytes, key under 0123456789abcdef"
std::string Encryption(const v1::DiskSpec& spec) {
  if (!spec.has_encryption()) return {};
  const v1::Encryption& encryption = spec.encryption();
  return fmt::format("{}, units of {} bytes, key under {}",
                     Short(v1::Cipher_Name(encryption.cipher()), "CIPHER_"), encryption.data_unit_bytes(),
                     encryption.wrapped_key().key_encryption_key());
}

std::string Faults(const v1::DiskSpec& spec) {
  if (!spec.has_fault()) return {};
  return fmt::format("seed {}, delay up to {} ns, {} failures of a million", spec.fault().seed(),
                     spec.fault().delay_ns_max(), spec.fault().fail_per_million());
}

std::string InDoubt(const v1::DiskStatus& status) {
  if (!status.has_doubt()) return {};
  const v1::DiskDoubt& doubt = status.doubt();
  return fmt::format("{}, number {}",
                     doubt.whole_disk() ? "all of it" : fmt::format("{} bytes", doubt.bytes()),
                     doubt.number());
}

// controllers/C/attachments/A: C is what people look for.
std::string ControllerOf(std::string_view attachment) {
  const std::string rest = Short(attachment, "controllers/");
  return rest.substr(0, rest.find('/'));
}

std::string Attached(const v1::DiskStatus& status) {
  std::string text;
  for (const std::string& name : status.attachments()) {
    if (!text.empty()) text += ",";
    text += ControllerOf(name);
  }
  return text;
}

}  // namespace

std::string Labels(const google::protobuf::Map<std::string, std::string>& labels) {
  const std::map<std::string, std::string> sorted(labels.begin(), labels.end());
  std::string text;
  for (const auto& [key, value] : sorted) text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, value);
  return text;
}

namespace {

// "blue (3 ready)"
std::string StandsByFor(const v1::EngineStatus& status) {
  if (status.stands_by_for().empty()) return {};
  return fmt::format("{} ({} ready)", IdOf(status.stands_by_for()), status.standing_by());
}

// "to engine-1: RUNNING, 40 of 300 moved"
std::string UpgradeText(const v1::EngineStatus& status) {
  if (!status.has_upgrade()) return {};
  const v1::UpgradeStatus& upgrade = status.upgrade();
  std::string text = fmt::format("to {}: {}, {} of {} moved", IdOf(upgrade.to()),
                                 Short(v1::UpgradeState_Name(upgrade.state()), "UPGRADE_STATE_"),
                                 upgrade.moved(), upgrade.total());
  if (upgrade.failed_total() != 0) text += fmt::format(", {} stayed", upgrade.failed_total());
  return text;
}

std::string Stayed(const v1::EngineStatus& status) {
  std::string text;
  for (const v1::UpgradeFailure& failure : status.upgrade().failed()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", IdOf(failure.controller()), failure.reason());
  }
  const uint32_t more =
      status.upgrade().failed_total() - static_cast<uint32_t>(status.upgrade().failed_size());
  if (more != 0) text += fmt::format("; and {} more", more);
  return text;
}

std::string LongestPause(const v1::EngineStatus& status) {
  if (!status.upgrade().has_longest_pause()) return {};
  const auto& pause = status.upgrade().longest_pause();
  constexpr double kNsInMs = 1e6;
  return fmt::format("{:.3g} ms", static_cast<double>(pause.seconds()) * 1000 + pause.nanos() / kNsInMs);
}

// "2 clients, 31 threads; client.4123 of ceph1: 16 images; ... of ceph1: 1 image, busy for 12 s"
std::string Ceph(const v1::EngineStatus& status) {
  if (!status.has_ceph()) return {};
  const v1::CephStatus& ceph = status.ceph();
  std::string text = fmt::format("{} client(s), {} threads", ceph.clients_total(), ceph.threads());
  for (const v1::CephClient& client : ceph.clients()) {
    text += fmt::format("; {} of {}: {} image(s)", client.id().empty() ? "one" : client.id(),
                        IdOf(client.cluster()), client.images());
    if (client.busy().seconds() != 0) text += fmt::format(", busy for {} s", client.busy().seconds());
    if (client.blocklisted()) text += ", blocklisted";
  }
  return text;
}

// "40: 0-31, 64-71": how many, and which.
std::string Extents(const v1::PoolBackend& pool) {
  constexpr int kRunsShown = 16;
  if (pool.extents().empty()) return {};
  uint64_t count = 0;
  std::string runs;
  for (int i = 0; i < pool.extents_size(); ++i) {
    const v1::ExtentRun& run = pool.extents(i);
    count += run.count();
    if (i >= kRunsShown) continue;
    runs += fmt::format("{}{}", runs.empty() ? "" : ", ", run.first());
    if (run.count() > 1) runs += fmt::format("-{}", uint64_t{run.first()} + run.count() - 1);
  }
  const int more = pool.extents_size() - kRunsShown;
  if (more > 0) runs += fmt::format(", and {} more run(s)", more);
  return fmt::format("{}: {}", count, runs);
}

// "3 %"
std::string Percent(bool has, uint32_t percent) {
  return has ? fmt::format("{} %", percent) : std::string();
}

// "98 %, threshold 10 %"
std::string Spare(const v1::DriveHealth& health) {
  std::string text = Percent(health.has_spare_percent(), health.spare_percent());
  if (!text.empty() && health.has_spare_threshold_percent())
    text += fmt::format(", threshold {} %", health.spare_threshold_percent());
  return text;
}

std::string WhyUnknown(const v1::DriveHealth& health) {
  return health.unknown_because().empty() ? std::string() : "not known: " + health.unknown_because();
}

std::string Temperature(const v1::DriveHealth& health) {
  return health.has_temperature_celsius() ? fmt::format("{} C", health.temperature_celsius()) : std::string();
}

std::string MediaErrors(const v1::DriveHealth& health) {
  return health.has_media_errors() ? std::to_string(health.media_errors()) : std::string();
}

std::string OnNoSpace(const v1::DiskSpec& spec) {
  return spec.on_no_space() == v1::ON_NO_SPACE_WAIT ? "wait" : "error";
}

// Empty where there is nothing to say.
std::string SizeUnless(uint64_t bytes, bool unremarkable) {
  return unremarkable ? std::string() : HumanSize(bytes);
}
std::string RoundedUnlessNone(uint64_t bytes) {
  return bytes == 0 ? std::string() : RoundedSize(bytes);
}

}  // namespace

Table TableOf(const Repeated<v1::Disk>& disks) {
  Table table({{"DISK"},
               {"SIZE"},
               {"GUESTS SEE"},
               {"BLOCK"},
               {"PHYSICAL BLOCK", kDetailsOnly},
               {"ACCESS"},
               {"SERIAL"},
               {"WWN", kDetailsOnly},
               {"BACKEND"},
               {"EXTENTS", kDetailsOnly},
               {"LIMITS"},
               {"ON NO SPACE", kDetailsOnly},
               {"ON DOUBT", kDetailsOnly},
               {"ENCRYPTION", kDetailsOnly},
               {"FAULTS", kDetailsOnly},
               {"STATE"},
               {"ATTACHED TO"},
               {"I/O PATH", kDetailsOnly},
               {"IN DOUBT", kDetailsOnly},
               {"LABELS"},
               {"UID", kDetailsOnly},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Disk& disk : disks) {
    const v1::DiskSpec& spec = disk.spec();
    const uint64_t seen = disk.status().size_bytes();
    table.Add({std::string(IdOf(disk.name())),
               HumanSize(spec.size_bytes()),
               SizeUnless(seen, seen == 0 || seen == spec.size_bytes()),
               std::to_string(spec.logical_block_bytes()),
               std::to_string(spec.physical_block_bytes()),
               Short(v1::AccessMode_Name(spec.access_mode()), "ACCESS_MODE_"),
               spec.serial(),
               spec.wwn(),
               ShowBackend(spec),
               Extents(spec.pool()),
               ShowLimits(spec.limits()),
               OnNoSpace(spec),
               spec.has_nvme_tcp() ? ShowInDoubt(spec.in_doubt()) : std::string(),
               Encryption(spec),
               Faults(spec),
               StateOf(disk),
               Attached(disk.status()),
               disk.status().io_path(),
               InDoubt(disk.status()),
               Labels(disk.labels()),
               disk.uid(),
               std::to_string(disk.revision()),
               disk.etag(),
               disk.status().message()});
  }
  return table;
}

Repeated<v1::Disk> DeletedOf(const Repeated<v1::Disk>& disks) {
  Repeated<v1::Disk> deleted;
  for (const v1::Disk& disk : disks) {
    if (disk.has_delete_time()) *deleted.Add() = disk;
  }
  return deleted;
}

Table TableOfDeleted(const Repeated<v1::Disk>& disks) {
  using google::protobuf::util::TimeUtil;
  Table table({{"DISK"},
               {"UID"},
               {"SIZE"},
               {"BACKEND"},
               {"ENCRYPTION"},
               {"LABELS"},
               {"DELETED"},
               {"KEPT UNTIL"},
               {"MESSAGE"}});
  for (const v1::Disk& disk : disks) {
    table.Add({std::string(IdOf(disk.name())), disk.uid(), HumanSize(disk.spec().size_bytes()),
               ShowBackend(disk.spec()), Encryption(disk.spec()), Labels(disk.labels()),
               TimeUtil::ToString(disk.delete_time()), TimeUtil::ToString(disk.purge_time()),
               disk.status().message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Cluster>& clusters) {
  Table table({{"CLUSTER"},
               {"MONITORS"},
               {"CONF FILE"},
               {"USER"},
               {"KEY", kDetailsOnly},
               {"IMAGES PER CLIENT", kDetailsOnly},
               {"CONNECT TIMEOUT", kDetailsOnly},
               {"DISKS"},
               {"STATE"},
               {"LABELS"},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Cluster& cluster : clusters) {
    const v1::ClusterSpec& spec = cluster.spec();
    const std::string key = spec.has_wrapped_key() ? "kept under " + spec.wrapped_key().key_encryption_key()
                                                   : "the conf file's keyring";
    const double timeout_s = static_cast<double>(spec.connect_timeout().seconds()) +
                             static_cast<double>(spec.connect_timeout().nanos()) / 1e9;
    table.Add({std::string(IdOf(cluster.name())), spec.monitors(), spec.conf_file(), spec.user(), key,
               std::to_string(spec.images_per_client()), fmt::format("{} s", timeout_s),
               std::to_string(cluster.status().disks()), StateOf(cluster), Labels(cluster.labels()),
               std::to_string(cluster.revision()), cluster.etag(), cluster.status().message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Pool>& pools) {
  Table table({{"POOL"},
               {"DEVICE"},
               {"EXTENT", kDetailsOnly},
               {"CAPACITY"},
               {"ALLOCATED"},
               {"RECLAIMABLE"},
               {"TO ERASE"},
               {"FREE"},
               {"LARGEST"},
               {"DISKS"},
               {"STATE"},
               {"WEAR"},
               {"TEMPERATURE", kDetailsOnly},
               {"SPARE", kDetailsOnly},
               {"MEDIA ERRORS", kDetailsOnly},
               {"WRITTEN", kDetailsOnly},
               {"WARNINGS"},
               {"HEALTH", kDetailsOnly},
               {"LABELS"},
               {"UID", kDetailsOnly},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Pool& pool : pools) {
    const v1::PoolStatus& status = pool.status();
    const v1::DriveHealth& health = status.health();
    table.Add({std::string(IdOf(pool.name())),
               pool.spec().device(),
               HumanSize(pool.spec().extent_bytes()),
               RoundedSize(status.capacity_bytes()),
               RoundedSize(status.allocated_bytes()),
               RoundedUnlessNone(status.reclaimable_bytes()),
               RoundedUnlessNone(status.to_erase_bytes()),
               RoundedSize(status.free_bytes()),
               RoundedSize(status.largest_free_bytes()),
               std::to_string(status.disks()),
               StateOf(pool),
               Percent(health.has_wear_percent(), health.wear_percent()),
               Temperature(health),
               Spare(health),
               MediaErrors(health),
               RoundedUnlessNone(health.written_bytes()),
               fmt::to_string(fmt::join(health.warnings(), "; ")),
               WhyUnknown(health),
               Labels(pool.labels()),
               status.uid(),
               std::to_string(pool.revision()),
               pool.etag(),
               status.message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::ScannedDisk>& disks) {
  Table table({{"DISK"}, {"SIZE"}, {"EXTENTS"}, {"DELETED"}, {"UID"}, {"PROBLEM"}});
  for (const v1::ScannedDisk& scanned : disks) {
    const v1::Disk& disk = scanned.disk();
    table.Add({disk.name().empty() ? "?" : std::string(IdOf(disk.name())),
               disk.has_spec() ? HumanSize(disk.spec().size_bytes()) : "", Extents(disk.spec().pool()),
               scanned.deleted() ? "yes" : "", disk.uid(), scanned.problem()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Group>& groups) {
  Table table({{"GROUP"},
               {"LIMITS"},
               {"CONTROLLERS"},
               {"STATE"},
               {"LABELS"},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Group& group : groups) {
    std::string controllers;
    for (const std::string& name : group.status().controllers()) {
      controllers += fmt::format("{}{}", controllers.empty() ? "" : ",", IdOf(name));
    }
    table.Add({std::string(IdOf(group.name())), ShowLimits(group.spec().limits()), controllers,
               StateOf(group), Labels(group.labels()), std::to_string(group.revision()), group.etag(),
               group.status().message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Controller>& controllers) {
  Table table({{"CONTROLLER"},
               {"TYPE"},
               {"MODE"},
               {"QUEUES"},
               {"ENGINE"},
               {"GROUP"},
               {"STATE"},
               {"RINGS"},
               {"CONNECTIONS", kDetailsOnly},
               {"MEMORY PINNED", kDetailsOnly},
               {"SOCKET"},
               {"LISTEN"},
               {"STANDBY LISTEN", kDetailsOnly},
               {"NQN", kDetailsOnly},
               {"HOSTS", kDetailsOnly},
               {"DSCP", kDetailsOnly},
               {"LABELS"},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Controller& controller : controllers) {
    const v1::ControllerSpec& spec = controller.spec();
    const v1::ControllerStatus& status = controller.status();
    const bool guest = !spec.has_exported();
    const char* const pinned = spec.memory_pinned() ? "yes" : "no";
    table.Add({std::string(IdOf(controller.name())),
               Short(v1::ControllerType_Name(spec.type()), "CONTROLLER_TYPE_"),
               guest ? Short(v1::SocketMode_Name(spec.socket_mode()), "SOCKET_MODE_") : std::string(),
               std::to_string(spec.queues()),
               std::string(IdOf(status.engine())),
               std::string(IdOf(spec.group())),
               StateOf(controller),
               std::to_string(status.rings_up()),
               std::to_string(status.connections()),
               guest ? pinned : "",
               spec.socket_path(),
               fmt::format("{}", fmt::join(spec.exported().addresses(), ",")),
               fmt::format("{}", fmt::join(spec.exported().standby_addresses(), ",")),
               spec.exported().nqn(),
               HostsOf(spec),
               DscpOf(spec),
               Labels(controller.labels()),
               std::to_string(controller.revision()),
               controller.etag(),
               status.message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Attachment>& attachments) {
  Table table({{"CONTROLLER"},
               {"TARGET"},
               {"ATTACHMENT"},
               {"DISK"},
               {"ACCESS"},
               {"MODE", kDetailsOnly},
               {"STATE"},
               {"SIZE", kDetailsOnly},
               {"I/O PATH", kDetailsOnly},
               {"PATHS", kDetailsOnly},
               {"ON DOUBT", kDetailsOnly},
               {"NAMESPACE UUID", kDetailsOnly},
               {"REVISION", kDetailsOnly},
               {"ETAG", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Attachment& attachment : attachments) {
    const uint64_t size_bytes = attachment.status().size_bytes();
    table.Add(
        {ControllerOf(attachment.name()), std::to_string(attachment.spec().target()),
         std::string(IdOf(attachment.name())), std::string(IdOf(attachment.spec().disk())),
         attachment.spec().read_only() ? "READ-ONLY" : "READ-WRITE",
         Short(v1::AttachmentMode_Name(attachment.spec().mode()), "ATTACHMENT_MODE_"), StateOf(attachment),
         SizeUnless(size_bytes, size_bytes == 0), attachment.status().io_path(),
         ShowPaths(attachment.status().paths()),
         attachment.status().has_in_doubt() ? ShowInDoubt(attachment.status().in_doubt()) : std::string(),
         attachment.status().namespace_uuid(), std::to_string(attachment.revision()), attachment.etag(),
         attachment.status().message()});
  }
  return table;
}

Table TableOf(const Repeated<v1::Engine>& engines) {
  Table table({{"ENGINE"},
               {"STATE"},
               {"VERSION"},
               {"REACTORS"},
               {"CONTROLLERS"},
               {"STANDS BY FOR"},
               {"UPGRADE"},
               {"STAYED", kDetailsOnly},
               {"LONGEST PAUSE", kDetailsOnly},
               {"PROTOCOL", kDetailsOnly},
               {"INCARNATION", kDetailsOnly},
               {"CEPH", kDetailsOnly},
               {"REVISION", kDetailsOnly},
               {"MESSAGE"}});
  for (const v1::Engine& engine : engines) {
    const v1::EngineStatus& status = engine.status();
    table.Add({std::string(IdOf(engine.name())), StateOf(engine), status.version(),
               std::to_string(status.reactors()),
               fmt::format("{} of {}", status.controllers(), status.controllers_max()), StandsByFor(status),
               UpgradeText(status), Stayed(status), LongestPause(status), std::to_string(status.protocol()),
               std::to_string(status.incarnation()), Ceph(status), std::to_string(engine.revision()),
               status.message()});
  }
  return table;
}

Table TableOf(const v1::ApplyHostResponse& report, bool dry_run) {
  Table table({{dry_run ? "WOULD BE" : "ACTION"}, {"NAME"}, {"REASON"}, {"MESSAGE"}});
  for (const v1::ApplyResult& result : report.results()) {
    table.Add({Short(v1::ApplyAction_Name(result.action()), "APPLY_ACTION_"), result.name(),
               ReasonOf(result.error()), result.error().message()});
  }
  return table;
}

std::string LineOf(const v1::WatchResponse& event) {
  const auto text = [&](const std::string& name, const std::string& state, const std::string& message) {
    std::string line = fmt::format("{:>10}  {:<40}  {:<13}  {}", event.revision(), name, state, message);
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  const auto line = [&](const auto& resource) {
    return text(resource.name(), StateOf(resource), resource.status().message());
  };
  switch (event.event_case()) {
    case v1::WatchResponse::kDisk:
      return line(event.disk());
    case v1::WatchResponse::kCluster:
      return line(event.cluster());
    case v1::WatchResponse::kSubsystem:
      return text(event.subsystem().name(), "READY", "");
    case v1::WatchResponse::kPool:
      return line(event.pool());
    case v1::WatchResponse::kGroup:
      return line(event.group());
    case v1::WatchResponse::kController:
      return line(event.controller());
    case v1::WatchResponse::kAttachment:
      return line(event.attachment());
    case v1::WatchResponse::kEngine:
      return line(event.engine());
    case v1::WatchResponse::kGone:
      return text(event.gone(), "gone", "");
    case v1::WatchResponse::kSynced:
      return fmt::format("{:>10}  -- that is all there is; changes follow --\n", event.revision());
    case v1::WatchResponse::EVENT_NOT_SET:
      break;
  }
  return {};
}

}  // namespace cleat::ctl
