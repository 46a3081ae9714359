// SPDX-License-Identifier: Apache-2.0
// What the engine is asked to be and what it says it is, as plain values: the engine's own words for
// proto/cleat/engine/v1, so that nothing but the codec knows of protobuf. Sizes in bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "block/in_doubt.h"
#include "engine/protocol/backend.h"
#include "engine/protocol/ceph_report.h"
#include "engine/protocol/export.h"
#include "keys/data_key.h"
#include "pool/extents.h"
#include "qos/limits.h"

namespace cleat::engine {

struct FaultSpec {
  uint64_t seed = 0;
  uint64_t delay_ns_max = 0;
  uint32_t fail_per_million = 0;
  bool operator==(const FaultSpec&) const = default;
};

struct EncryptionSpec {
  keys::Cipher cipher = keys::Cipher::kAes256Xts;
  uint32_t data_unit_bytes = 512;
  // The data key, wrapped under the key-encryption key of that id.
  std::string key_encryption_key;
  std::vector<uint8_t> wrapped_key;

  // The same, whatever the key is wrapped under: that changes while the disk is attached, and the data key never does.
  bool SameAs(const EncryptionSpec& other) const {
    return cipher == other.cipher && data_unit_bytes == other.data_unit_bytes;
  }
};

// What something may use, and which of cleatd's intents says so.
struct LimitsSpec {
  qos::Limits limits;
  uint64_t revision = 0;
  bool operator==(const LimitsSpec&) const = default;
};

// What becomes of a write for which the storage has no space: it fails, or waits (block/space_wait.h).
enum class OnNoSpace : uint8_t { kError, kWait };

struct DiskSpec {
  std::string name;  // "disks/ID"
  uint64_t size_bytes = 0;
  uint32_t logical_block_bytes = 512;
  uint32_t physical_block_bytes = 512;
  std::string serial;
  uint64_t wwn = 0;       // NAA name, for SCSI
  DiskIdentity identity;  // not known: of a cleatd that tells none
  Backend backend;
  std::optional<FaultSpec> fault;
  std::optional<EncryptionSpec> encryption;
  LimitsSpec limits;
  OnNoSpace on_no_space = OnNoSpace::kError;
  block::InDoubt in_doubt;

  // The same disk, whatever its limits, what it does without space or with writes in doubt, and what its key is wrapped under: those change
  // while it is attached.
  bool SameAs(const DiskSpec& other) const {
    if (encryption.has_value() != other.encryption.has_value()) return false;
    if (encryption && !encryption->SameAs(*other.encryption)) return false;
    return name == other.name && size_bytes == other.size_bytes &&
           logical_block_bytes == other.logical_block_bytes &&
           physical_block_bytes == other.physical_block_bytes && serial == other.serial && wwn == other.wwn &&
           backend == other.backend && fault == other.fault &&
           (identity == other.identity || !identity.known() || !other.identity.known());
  }
};

// Controllers of one VM, limited together.
struct GroupSpec {
  std::string name;   // "groups/ID"
  uint32_t slot = 0;  // in the memory that all engines share
  LimitsSpec limits;
};

// How a Ceph cluster is reached.
struct ClusterSpec {
  std::string name;      // "clusters/ID"
  std::string monitors;  // one of these two at least
  std::string conf_file;
  std::string user;
  // The user's key, wrapped with padding under the key-encryption key of that id. Empty: the conf file's keyring.
  std::string key_encryption_key;
  std::vector<uint8_t> wrapped_key;
  uint32_t images_per_client = 0;
  uint32_t connect_timeout_ms = 0;
  uint64_t revision = 0;  // of cleatd's intent
};

enum class ControllerType : uint8_t { kBlk, kScsi, kNvmf };
enum class SocketMode : uint8_t { kClient, kServer };

struct ControllerSpec {
  std::string name;  // "controllers/ID"
  ControllerType type = ControllerType::kBlk;
  std::string socket_path;
  SocketMode socket_mode = SocketMode::kClient;
  uint32_t queues = 1;  // request queues; a SCSI controller has two more of its own
  uint64_t revision = 0;
  std::string group;           // whose limits its disks share; empty: none
  bool memory_pinned = false;  // the caller vouches that its guest gives no memory back
  // Of a blk controller: the disk that its guest's driver may still remember (engine/guest_devices/swap_guard.h). Not known: none but the one that is
  // attached.
  DiskIdentity last_disk;
  std::string last_disk_name;  // for messages
  // Of a kNvmf controller, and of no other. That one has no socket, and `queues` is how many I/O queues each of its hosts gets at most.
  std::optional<ExportSpec> exported;

  // The same controller, whatever the revision of the intent, whichever its last disk, and whichever hosts are let in. A cleatd of before does
  // not know of memory_pinned.
  bool SameAs(const ControllerSpec& other) const {
    if (exported.has_value() != other.exported.has_value()) return false;
    if (exported && !exported->SameAs(*other.exported)) return false;
    return name == other.name && type == other.type && socket_path == other.socket_path &&
           socket_mode == other.socket_mode && queues == other.queues && group == other.group &&
           (memory_pinned == other.memory_pinned || revision == other.revision);
  }
};

struct AttachmentSpec {
  std::string controller;
  uint32_t target = 0;
  DiskSpec disk;
  bool read_only = false;
  uint64_t revision = 0;
  // Opened and not acquired: its VM is to migrate here. What it was attached with; no part of what it is.
  bool incoming = false;

  bool SameAs(const AttachmentSpec& other) const {
    return controller == other.controller && target == other.target && disk.SameAs(other.disk) &&
           read_only == other.read_only;
  }
};

// kStandby: prepared, and served by nobody or another engine.
enum class ControllerState : uint8_t { kIdle, kConnecting, kHandshake, kReady, kBroken, kClosing, kStandby };
// kFenced: open, and shut out of its storage for good. Until it is detached.
// kStandby: open, and not owned.
// kIncoming, kReleased: likewise; acquired when the guest's rings start, and kActive then. kReleased: given up to where its VM has gone.
enum class AttachmentState : uint8_t {  // as in the protocol, less one
  kOpening,
  kActive,
  kFailed,
  kClosing,
  kFenced,
  kStandby,
  kIncoming,
  kReleased,
};

struct ControllerReport {
  ControllerSpec spec;
  ControllerState state = ControllerState::kIdle;
  std::string message;
  uint32_t rings_up = 0;
  uint64_t connections = 0;
  DiskIdentity next_disk;  // that cleatd is to note as its last disk
};

// How the storage of a disk does; beside the attachment's state, which is what the guest sees.
enum class StorageState : uint8_t { kOk, kFailing, kNotAnswering, kNoSpace, kStuck };

struct AttachmentReport {
  AttachmentSpec spec;
  AttachmentState state = AttachmentState::kOpening;
  std::string message;
  StorageState storage = StorageState::kOk;
  std::string io_path;  // empty: nothing to say, or not open
  std::optional<block::PathsReport> paths = std::nullopt;
  uint64_t waiting_since_s = 0;  // that of `paths`, as UNIX time; 0: nothing waits
};

struct MemoryReport {
  std::string disk;
  uint64_t size_bytes = 0;
  bool fixed = false;  // the disk's size is another matter
};

// What goes from one engine to the next with a controller: `use` is qos::LimitedDevice::SaveUse's, `cells` are those of
// the engine's counters that are the disk's.
struct DiskHandOver {
  uint32_t target = 0;
  std::vector<uint64_t> use;
  std::vector<uint64_t> cells;
};
inline constexpr size_t kHandOverWordsMax = 64;
struct HandOver {
  std::vector<DiskHandOver> disks;
};

// How far an I/O reactor is: one that is not asleep and whose turns stand still hangs.
struct ReactorProgress {
  std::string name;
  uint64_t turns = 0;
  bool asleep = false;
};
inline constexpr size_t kReactorsReportedMax = 64;

struct LimitSpec {
  std::string disk;
  LimitsSpec limits;
  OnNoSpace on_no_space = OnNoSpace::kError;
  block::InDoubt in_doubt = {};
};

struct ResizeSpec {
  std::string disk;
  uint64_t size_bytes = 0;
  // All extents that a disk of a pool has now, in its order. Empty: the disk keeps those that it has; a cleatd that tells none says so, too.
  pool::ExtentRuns extents = {};
};

// Limits, checked when a command comes in.
inline constexpr uint32_t kQueuesMax = 64;          // request queues
inline constexpr uint32_t kTargetsMax = 8;          // of a SCSI controller, one LUN each
inline constexpr size_t kSocketPathBytesMax = 107;  // sun_path with its terminating zero
inline constexpr size_t kIoPathBytesMax = 512;
inline constexpr size_t kSerialBytesMax = 20;      // virtio 1.2, 5.2.6: VIRTIO_BLK_T_GET_ID
inline constexpr uint32_t kControllersMax = 1000;  // what the vhost library serves in one process
inline constexpr uint32_t kMemoriesMax = 4096;
inline constexpr uint32_t kClustersMax = 64;
inline constexpr uint32_t kCephClientsMax = 64;            // that are reported
inline constexpr size_t kCephFullBytesMax = 600;           // of what is said of full pools
inline constexpr uint64_t kCephBusyNsMin = 1'000'000'000;  // what takes less is not worth a report

}  // namespace cleat::engine
