// SPDX-License-Identifier: Apache-2.0
// What the engine is asked to be and what it says it is, as plain values: the engine's own words for
// proto/cleat/engine/v1, so that nothing but the codec knows of protobuf. Sizes in bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace cleat::engine {

struct NullBackend {
  bool skip_reads = false;  // reads leave the buffer as it was
  bool operator==(const NullBackend&) const = default;
};
struct MemoryBackend {  // the kept memory of the disk's name
  bool operator==(const MemoryBackend&) const = default;
};
struct FileBackend {
  std::string path;
  bool operator==(const FileBackend&) const = default;
};
using Backend = std::variant<NullBackend, MemoryBackend, FileBackend>;

struct FaultSpec {
  uint64_t seed = 0;
  uint64_t delay_ns_max = 0;
  uint32_t fail_per_million = 0;
  bool operator==(const FaultSpec&) const = default;
};

struct DiskSpec {
  std::string name;  // "disks/ID"
  uint64_t size_bytes = 0;
  uint32_t logical_block_bytes = 512;
  uint32_t physical_block_bytes = 512;
  std::string serial;
  uint64_t wwn = 0;  // NAA name, for SCSI
  Backend backend;
  std::optional<FaultSpec> fault;
  bool operator==(const DiskSpec&) const = default;
};

enum class ControllerType : uint8_t { kBlk, kScsi };
enum class SocketMode : uint8_t { kClient, kServer };

struct ControllerSpec {
  std::string name;  // "controllers/ID"
  ControllerType type = ControllerType::kBlk;
  std::string socket_path;
  SocketMode socket_mode = SocketMode::kClient;
  uint32_t queues = 1;  // request queues; a SCSI controller has two more of its own
  uint64_t revision = 0;

  // The same controller, whatever the revision of the intent.
  bool SameAs(const ControllerSpec& other) const {
    return name == other.name && type == other.type && socket_path == other.socket_path &&
           socket_mode == other.socket_mode && queues == other.queues;
  }
};

struct AttachmentSpec {
  std::string controller;
  uint32_t target = 0;
  DiskSpec disk;
  bool read_only = false;
  uint64_t revision = 0;

  bool SameAs(const AttachmentSpec& other) const {
    return controller == other.controller && target == other.target && disk == other.disk &&
           read_only == other.read_only;
  }
};

enum class ControllerState : uint8_t { kIdle, kConnecting, kHandshake, kReady, kBroken, kClosing };
enum class AttachmentState : uint8_t { kOpening, kActive, kFailed, kClosing };

struct ControllerReport {
  ControllerSpec spec;
  ControllerState state = ControllerState::kIdle;
  std::string message;
  uint32_t rings_up = 0;
  uint64_t connections = 0;
};

struct AttachmentReport {
  AttachmentSpec spec;
  AttachmentState state = AttachmentState::kOpening;
  std::string message;
};

struct MemoryReport {
  std::string disk;
  uint64_t size_bytes = 0;
};

struct ResizeSpec {
  std::string disk;
  uint64_t size_bytes = 0;
};

// Limits, checked when a command comes in.
inline constexpr uint32_t kQueuesMax = 64;          // request queues
inline constexpr uint32_t kTargetsMax = 8;          // of a SCSI controller, one LUN each
inline constexpr size_t kSocketPathBytesMax = 107;  // sun_path with its terminating zero
inline constexpr size_t kSerialBytesMax = 20;       // virtio 1.2, 5.2.6: VIRTIO_BLK_T_GET_ID
inline constexpr uint32_t kControllersMax = 1000;   // what the vhost library serves in one process
inline constexpr uint32_t kMemoriesMax = 4096;

}  // namespace cleat::engine
