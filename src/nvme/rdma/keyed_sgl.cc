// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma/keyed_sgl.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "nvme/fabrics/queues/target_queue.h"

namespace cleat::nvme::rdma {
namespace {

using fabrics::SglDescriptor;
using fabrics::SubmissionEntry;

// Base 2.0, 3.3.3.2.1.1, with Do Not Retry.
constexpr uint16_t kDoNotRetry = 1U << 14;
constexpr Status kInvalidSegmentDescriptor{0x0d | kDoNotRetry};
constexpr Status kInvalidDescriptorCount{0x0e | kDoNotRetry};
constexpr Status kDataLengthInvalid{0x0f | kDoNotRetry};
constexpr Status kDescriptorTypeInvalid{0x11 | kDoNotRetry};
constexpr Status kOffsetInvalid{0x16 | kDoNotRetry};

constexpr uint8_t kFabricsOpcode = 0x7f;
constexpr uint8_t kToHost = 2;

// Bits 1:0 of the opcode say which way the data goes; of a command of fabrics those of its type, the byte behind CID.
bool DataGoesToHost(const SubmissionEntry& entry) {
  const auto type = static_cast<uint8_t>(entry.nsid & 0xff);
  return ((entry.opcode == kFabricsOpcode ? type : entry.opcode) & 3) == kToHost;
}

bool IsKeyed(uint8_t type) {
  return type == kSglKeyed || type == kSglKeyedInvalidate;
}

// One send invalidates one key.
inline std::optional<Status> AddPiece(const KeyedDescriptor& descriptor, CommandData& data) {
  const uint32_t bytes = descriptor.bytes();
  if (bytes == 0) return std::nullopt;  // hosts say so of commands without data
  if (bytes > fabrics::kTransferBytesMax - data.bytes || descriptor.address > UINT64_MAX - bytes)
    return kDataLengthInvalid;
  const uint32_t key = descriptor.key_value();
  if (descriptor.type == kSglKeyedInvalidate) {
    if (data.invalidates && data.key_to_invalidate != key) return kDescriptorTypeInvalid;
    data.invalidates = true;
    data.key_to_invalidate = key;
  }
  data.pieces[data.piece_count++] = {descriptor.address, bytes, key};
  data.bytes += bytes;
  data.place = DataPlace::kHostMemory;
  return std::nullopt;
}

std::optional<Status> ParseSegment(const SglDescriptor& last, std::span<const uint8_t> behind_entry,
                                   CommandData& data) {
  if (last.length_bytes == 0 || last.length_bytes % kDescriptorBytes != 0) return kInvalidSegmentDescriptor;
  if (last.length_bytes / kDescriptorBytes > kDescriptorsMax) return kInvalidDescriptorCount;
  if (last.address > behind_entry.size()) return kOffsetInvalid;
  if (last.length_bytes > behind_entry.size() - last.address) return kInvalidSegmentDescriptor;
  const auto segment = behind_entry.subspan(last.address, last.length_bytes);
  for (size_t at = 0; at < segment.size(); at += kDescriptorBytes) {
    KeyedDescriptor descriptor;
    std::memcpy(&descriptor, segment.data() + at, sizeof(descriptor));
    if (!IsKeyed(descriptor.type)) return kDescriptorTypeInvalid;
    if (const auto wrong = AddPiece(descriptor, data)) return wrong;
  }
  return std::nullopt;
}

std::optional<Status> ParseInCapsule(const SubmissionEntry& entry, size_t in_capsule_bytes,
                                     CommandData& data) {
  const SglDescriptor& block = entry.data;
  if (block.length_bytes == 0) return std::nullopt;
  if (DataGoesToHost(entry)) return kDescriptorTypeInvalid;
  if (block.address > in_capsule_bytes) return kOffsetInvalid;
  if (block.length_bytes > in_capsule_bytes - block.address) return kDataLengthInvalid;
  if (block.length_bytes > fabrics::kTransferBytesMax) return kDataLengthInvalid;
  data.place = DataPlace::kInCapsule;
  data.bytes = block.length_bytes;
  data.offset_bytes = static_cast<uint32_t>(block.address);
  return std::nullopt;
}

}  // namespace

KeyedDescriptor MakeKeyed(uint64_t address, uint32_t bytes, uint32_t key, bool invalidate) {
  CLEAT_CHECK(bytes < 1U << 24);
  KeyedDescriptor descriptor;
  descriptor.address = address;
  std::memcpy(descriptor.length_bytes, &bytes, sizeof(descriptor.length_bytes));
  std::memcpy(descriptor.key, &key, sizeof(descriptor.key));
  descriptor.type = invalidate ? kSglKeyedInvalidate : kSglKeyed;
  return descriptor;
}

SglDescriptor EntryDescriptorOf(const KeyedDescriptor& descriptor) {
  return std::bit_cast<SglDescriptor>(descriptor);
}

std::optional<Status> ParseData(const SubmissionEntry& entry, std::span<const uint8_t> behind_entry,
                                CommandData& data) {
  data.Clear();
  if (IsKeyed(entry.data.type)) [[likely]] {
    // What came along is nobody's then.
    if (!behind_entry.empty()) return kDataLengthInvalid;
    return AddPiece(std::bit_cast<KeyedDescriptor>(entry.data), data);
  }
  if (entry.data.type == fabrics::kSglInCapsule) return ParseInCapsule(entry, behind_entry.size(), data);
  if (entry.data.type == kSglLastInCapsule) return ParseSegment(entry.data, behind_entry, data);
  // Of a command without data hosts say what they like.
  const bool nothing = entry.data.length_bytes == 0 && behind_entry.empty();
  return nothing ? std::nullopt : std::optional(kDescriptorTypeInvalid);
}

}  // namespace cleat::nvme::rdma
