// SPDX-License-Identifier: Apache-2.0
#include "vhost/protocol.h"

#include <algorithm>
#include <array>

namespace cleat::vhost {
namespace {

constexpr uint32_t kU64 = sizeof(uint64_t);
constexpr uint32_t kState = sizeof(VringState);
constexpr uint32_t kTableMax = sizeof(MemoryTableHeader) + kMemoryRegionsMax * sizeof(MemoryTableRegion);
constexpr uint32_t kConfigMax = sizeof(ConfigHeader) + kConfigBytesMax;

constexpr std::array kShapes = {
    RequestShape{Request::kGetFeatures, "GET_FEATURES", 0, 0, Descriptors::kNone, true},
    RequestShape{Request::kSetFeatures, "SET_FEATURES", kU64, kU64, Descriptors::kNone, false},
    RequestShape{Request::kSetOwner, "SET_OWNER", 0, 0, Descriptors::kNone, false},
    RequestShape{Request::kResetOwner, "RESET_OWNER", 0, 0, Descriptors::kNone, false},
    RequestShape{Request::kSetMemTable, "SET_MEM_TABLE", sizeof(MemoryTableHeader), kTableMax,
                 Descriptors::kOnePerRegion, false},
    RequestShape{Request::kSetLogBase, "SET_LOG_BASE", sizeof(LogDescription), sizeof(LogDescription),
                 Descriptors::kOne, true},
    RequestShape{Request::kSetLogFd, "SET_LOG_FD", 0, kU64, Descriptors::kOne, false},
    RequestShape{Request::kSetVringNum, "SET_VRING_NUM", kState, kState, Descriptors::kNone, false},
    RequestShape{Request::kSetVringAddr, "SET_VRING_ADDR", sizeof(VringAddresses), sizeof(VringAddresses),
                 Descriptors::kNone, false},
    RequestShape{Request::kSetVringBase, "SET_VRING_BASE", kState, kState, Descriptors::kNone, false},
    RequestShape{Request::kGetVringBase, "GET_VRING_BASE", kState, kState, Descriptors::kNone, true},
    RequestShape{Request::kSetVringKick, "SET_VRING_KICK", kU64, kU64, Descriptors::kOneUnlessFlagged, false},
    RequestShape{Request::kSetVringCall, "SET_VRING_CALL", kU64, kU64, Descriptors::kOneUnlessFlagged, false},
    RequestShape{Request::kSetVringErr, "SET_VRING_ERR", kU64, kU64, Descriptors::kOneUnlessFlagged, false},
    RequestShape{Request::kGetProtocolFeatures, "GET_PROTOCOL_FEATURES", 0, 0, Descriptors::kNone, true},
    RequestShape{Request::kSetProtocolFeatures, "SET_PROTOCOL_FEATURES", kU64, kU64, Descriptors::kNone,
                 false},
    RequestShape{Request::kGetQueueNum, "GET_QUEUE_NUM", 0, 0, Descriptors::kNone, true},
    RequestShape{Request::kSetVringEnable, "SET_VRING_ENABLE", kState, kState, Descriptors::kNone, false},
    RequestShape{Request::kSetBackendFd, "SET_BACKEND_REQ_FD", 0, 0, Descriptors::kOne, false},
    RequestShape{Request::kGetConfig, "GET_CONFIG", sizeof(ConfigHeader), kConfigMax, Descriptors::kNone,
                 true},
    RequestShape{Request::kSetConfig, "SET_CONFIG", sizeof(ConfigHeader), kConfigMax, Descriptors::kNone,
                 false},
    RequestShape{Request::kGetInflightFd, "GET_INFLIGHT_FD", kInflightBytesMin, sizeof(InflightDescription),
                 Descriptors::kNone, true},
    RequestShape{Request::kSetInflightFd, "SET_INFLIGHT_FD", kInflightBytesMin, sizeof(InflightDescription),
                 Descriptors::kOne, false},
};

}  // namespace

const RequestShape* FindRequest(uint32_t request) {
  const auto* found = std::find_if(kShapes.begin(), kShapes.end(), [request](const RequestShape& shape) {
    return static_cast<uint32_t>(shape.request) == request;
  });
  return found == kShapes.end() ? nullptr : found;
}

std::string RequestName(uint32_t request) {
  const RequestShape* shape = FindRequest(request);
  return shape != nullptr ? std::string(shape->name) : "request " + std::to_string(request);
}

}  // namespace cleat::vhost
