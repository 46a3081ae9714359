// SPDX-License-Identifier: Apache-2.0
// Where the data of a command over RDMA is: keyed descriptors name the host's memory, which the controller reads and writes; or the data is in the capsule.
//
// Source: NVM Express Base Specification 2.0 ("base"), 4.1.2 (SGL), 3.3.3.2.1.1 (status); NVM Express RDMA Transport Specification 1.0, 3.2 (capsules and
// which descriptors they may have). Plain values; any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "nvme/fabrics/capsule.h"
#include "nvme/status.h"

namespace cleat::nvme::rdma {

// Descriptors of one command (MSDBD), and the capsule that has them all.
inline constexpr uint32_t kDescriptorsMax = 16;
inline constexpr uint32_t kDescriptorBytes = 16;

// Type and subtype as one byte.
inline constexpr uint8_t kSglKeyed = 0x40;            // a keyed data block at an address
inline constexpr uint8_t kSglKeyedInvalidate = 0x4f;  // ... whose key the controller's answer invalidates
inline constexpr uint8_t kSglLastInCapsule =
    0x31;  // the last segment, at an offset: keyed descriptors follow the entry in its capsule

// A keyed data block (base 4.1.2.1.4), in its 16 bytes.
struct KeyedDescriptor {
  uint64_t address = 0;
  uint8_t length_bytes[3] = {};
  uint8_t key[4] = {};
  uint8_t type = kSglKeyed;

  uint32_t bytes() const { return length_bytes[0] | length_bytes[1] << 8 | length_bytes[2] << 16; }
  uint32_t key_value() const {
    uint32_t value = 0;
    std::memcpy(&value, key, sizeof(value));
    return value;
  }
};
static_assert(sizeof(KeyedDescriptor) == kDescriptorBytes &&
              sizeof(fabrics::SglDescriptor) == kDescriptorBytes);

// bytes: below 2^24.
KeyedDescriptor MakeKeyed(uint64_t address, uint32_t bytes, uint32_t key, bool invalidate);
// The same as what an entry has.
fabrics::SglDescriptor EntryDescriptorOf(const KeyedDescriptor& descriptor);

// A piece of the host's memory.
struct HostPiece {
  uint64_t address;
  uint32_t length_bytes;
  uint32_t key;
};

enum class DataPlace : uint8_t {
  kNowhere,  // the command moves no data
  kInCapsule,
  kHostMemory,
};

struct CommandData {
  DataPlace place = DataPlace::kNowhere;
  bool invalidates = false;  // the answer invalidates the key below
  uint32_t key_to_invalidate = 0;
  uint32_t bytes = 0;
  uint32_t offset_bytes = 0;  // in the capsule, behind the entry
  uint32_t piece_count = 0;
  HostPiece pieces[kDescriptorsMax];  // none is empty; together they have `bytes`

  CommandData() {}  // NOLINT(modernize-use-equals-default): leaves the pieces as they are
  // Leaves them as well.
  void Clear() {
    place = DataPlace::kNowhere;
    invalidates = false;
    key_to_invalidate = bytes = offset_bytes = piece_count = 0;
  }
  std::span<const HostPiece> host() const { return {pieces, piece_count}; }
};

// What the command's descriptors say, of which `behind_entry` came along in the capsule. nullopt: `data` has it, all of it within what came and
// fabrics::kTransferBytesMax. Else what is wrong, to be answered. A host is not trusted.
std::optional<Status> ParseData(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> behind_entry,
                                CommandData& data);

}  // namespace cleat::nvme::rdma
