// SPDX-License-Identifier: Apache-2.0
// proto/cleat/engine/v1 packed and unpacked with protobuf-c: bytes on one side, spec.h on the other. What
// comes in is checked here for form (known enums, present fields, lengths); the engine checks for sense.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/protocol/discovery.h"
#include "engine/protocol/spec.h"

namespace cleat::engine {

inline constexpr uint32_t kProtocolMin = 1;
inline constexpr uint32_t kProtocolMax = 15;
inline constexpr uint32_t kProtocolHeartbeats = 5;  // from which on cleatd sends them
inline constexpr size_t kMessageBytesMax = 64 * 1024;

struct HelloMessage {
  std::string engine;
  std::string version;
  uint64_t incarnation = 0;
  uint32_t reactors = 0;
  std::string stands_by_for;  // empty: for nobody
  std::string path_lists;     // PathLists::Text
};

struct HelloReplyMessage {
  uint32_t protocol = 0;
  std::string refusal;  // empty: welcome
};
struct PutControllerMessage {
  ControllerSpec controller;
  bool standby = false;
};
struct YieldControllerMessage {
  std::string name;
  uint32_t drain_ms = 0;
};
struct TakeControllerMessage {
  std::string name;
  HandOver hand_over;
  // Which descriptors come with it, in this order. Neither: the one that comes, if any, is the counters.
  bool counters = false;
  bool connections = false;
};
struct DeleteControllerMessage {
  std::string name;
};
struct AttachMessage {
  AttachmentSpec attachment;
};
struct DetachMessage {
  std::string controller;
  uint32_t target = 0;
};
struct KeepMemoryMessage {
  MemoryReport memory;
};
struct DropMemoryMessage {
  std::string disk;
};
struct FetchMemoryMessage {
  std::string disk;
};

struct ResizeDiskMessage {
  ResizeSpec resize;
};

struct ServeControllerMessage {
  std::string name;
};

struct ShareGroupsMessage {};
struct PutGroupMessage {
  GroupSpec group;
};
struct DropGroupMessage {
  std::string name;
};
struct LimitDiskMessage {
  LimitSpec limit;
};
struct PutClusterMessage {
  ClusterSpec cluster;
};
struct DropClusterMessage {
  std::string name;
};

struct ReadPathListsMessage {};
struct HeartbeatMessage {};
struct DiscoverMessage {
  DiscoverySpec discovery;
};
struct StopDiscoverMessage {
  uint64_t discover = 0;  // the request's id
};

struct Incoming {
  uint64_t id = 0;
  std::variant<HelloReplyMessage, PutControllerMessage, DeleteControllerMessage, AttachMessage, DetachMessage,
               KeepMemoryMessage, DropMemoryMessage, FetchMemoryMessage, ResizeDiskMessage,
               ServeControllerMessage, ShareGroupsMessage, PutGroupMessage, DropGroupMessage,
               LimitDiskMessage, PutClusterMessage, DropClusterMessage, YieldControllerMessage,
               TakeControllerMessage, ReadPathListsMessage, HeartbeatMessage, DiscoverMessage,
               StopDiscoverMessage>
      body;
  std::string request = {};  // log::IsRequestId: the API call that asked for it; empty: not known
};

// A message of a kind that this version does not know has its id, and kUnimplemented as the error's code;
// everything else that is wrong is kInvalidArgument.
Result<Incoming> Decode(std::span<const uint8_t> bytes);
// The id of a message that Decode refused, 0 when there is none to be had: so that a request never goes
// unanswered.
uint64_t DecodeId(std::span<const uint8_t> bytes);

std::vector<uint8_t> EncodeHello(const HelloMessage& hello);
// `hand_over`: of the controller that was yielded, or nullptr.
std::vector<uint8_t> EncodeReply(uint64_t id, const Status& status, const HandOver* hand_over = nullptr);
// The answer to a heartbeat; the first kReactorsReportedMax of them.
std::vector<uint8_t> EncodeProgress(uint64_t id, const std::vector<ReactorProgress>& reactors);
// The answer to a discovery that went well, in as many messages as it takes; all but the last say that more follows. With `goes_on`, of a
// service that is watched, the last one does too, and that the log is whole.
std::vector<std::vector<uint8_t>> EncodeDiscovery(uint64_t id, const DiscoveryReport& report, bool goes_on);
// The inventory, in as many messages as it takes; the last one says so.
std::vector<std::vector<uint8_t>> EncodeInventory(const std::vector<ControllerReport>& controllers,
                                                  const std::vector<AttachmentReport>& attachments,
                                                  const std::vector<MemoryReport>& memories,
                                                  const std::vector<GroupSpec>& groups,
                                                  const std::vector<ClusterSpec>& clusters);
std::vector<uint8_t> EncodeCeph(const CephReport& report);
std::vector<uint8_t> EncodePathLists(const std::string& text);
std::vector<uint8_t> EncodeController(const ControllerReport& report);
std::vector<uint8_t> EncodeControllerGone(const std::string& name);
std::vector<uint8_t> EncodeAttachment(const AttachmentReport& report);
std::vector<uint8_t> EncodeAttachmentGone(const std::string& controller, uint32_t target);

}  // namespace cleat::engine
