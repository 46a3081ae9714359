// SPDX-License-Identifier: Apache-2.0
// What packing and unpacking of the engine's protocol share: short names of protobuf-c's structs, and how their fields are read and
// written. For codec_pack.cc, codec_unpack.cc and backends.cc alone.
#pragma once

#include <cleat/engine/v1/engine.pb-c.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "engine/protocol/backend.h"
#include "engine/protocol/nvmf_secrets.h"
#include "keys/key_encryption_key.h"
#include "nvme/fabrics/names.h"
#include "pool/layout.h"
#include "qos/limits.h"

// protobuf-c's optional scalars come in pairs.
#define CLEAT_PB_SET(message, field, value) ((message).has_##field = 1, (message).field = (value))

namespace cleat::engine {

using PbEnvelope = Cleat__Engine__V1__Envelope;
using PbDisk = Cleat__Engine__V1__Disk;
using PbController = Cleat__Engine__V1__Controller;
using PbExport = Cleat__Engine__V1__Export;
using PbAttachment = Cleat__Engine__V1__Attachment;
using PbMemory = Cleat__Engine__V1__Memory;
using PbEncryption = Cleat__Engine__V1__Encryption;
using PbRate = Cleat__Engine__V1__Rate;
using PbLimits = Cleat__Engine__V1__Limits;
using PbGroup = Cleat__Engine__V1__Group;
using PbCluster = Cleat__Engine__V1__Cluster;
using PbCephClient = Cleat__Engine__V1__CephClient;
using PbCephCluster = Cleat__Engine__V1__CephCluster;
using PbInDoubt = Cleat__Engine__V1__InDoubt;
using PbPathsStatus = Cleat__Engine__V1__PathsStatus;
using PbDiscoveryRecord = Cleat__Engine__V1__DiscoveryRecord;
using PbHandOver = Cleat__Engine__V1__HandOver;
using PbDiskHandOver = Cleat__Engine__V1__DiskHandOver;
using PbControllerStatus = Cleat__Engine__V1__ControllerStatus;
using PbAttachmentStatus = Cleat__Engine__V1__AttachmentStatus;

// In the order of qos::Meter.
inline constexpr PbRate* PbLimits::*kRates[qos::kMeters] = {&PbLimits::iops,       &PbLimits::read_iops,
                                                            &PbLimits::write_iops, &PbLimits::bytes,
                                                            &PbLimits::read_bytes, &PbLimits::write_bytes};

// ---- Reading

inline constexpr size_t kTextBytesMax = 4096;

inline Error Malformed(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "engine protocol: " + what};
}

// Of a field that must be there: kInvalidArgument, with its name, when it is missing or too long.
inline Result<std::string> TextOf(const char* text, const char* field) {
  if (text == nullptr) return Malformed(std::string(field) + " is missing");
  std::string copy(text);
  if (copy.size() > kTextBytesMax) return Malformed(std::string(field) + " is too long");
  return copy;
}

// Whether these can be a key that was wrapped with padding, and the id of what it was wrapped under.
inline bool IsPaddedKey(const std::string& key_encryption_key, const ProtobufCBinaryData& wrapped) {
  return key_encryption_key.size() == keys::kKekIdDigits && wrapped.len >= keys::kPaddedWrappedBytesMin &&
         wrapped.len <= keys::kPaddedWrappedBytesMax;
}

inline Result<WrappedSecret> WrappedSecretOf(const Cleat__Engine__V1__WrappedSecret* in,
                                             const std::string& field) {
  if (in == nullptr) return WrappedSecret{};
  WrappedSecret secret{in->key_encryption_key == nullptr ? "" : in->key_encryption_key, {}};
  if (in->has_data == 0 || !IsPaddedKey(secret.key_encryption_key, in->data))
    return Malformed(field + " has a length that no wrapped secret has, or its wrapping key no id");
  secret.data.assign(in->data.data, in->data.data + in->data.len);
  return secret;
}

// Of a message that has all three: an NvmeTcpBackend, a Discover or an ExportHost. `field`: the message, for errors.
template <typename Message>
Result<NvmfSecrets> NvmfSecretsOf(const Message& in, const std::string& field) {
  NvmfSecrets secrets;
  CLEAT_ASSIGN(secrets.dhchap_secret, WrappedSecretOf(in.dhchap_secret, field + ".dhchap_secret"));
  CLEAT_ASSIGN(secrets.dhchap_ctrl_secret,
               WrappedSecretOf(in.dhchap_ctrl_secret, field + ".dhchap_ctrl_secret"));
  CLEAT_ASSIGN(secrets.tls_psk, WrappedSecretOf(in.tls_psk, field + ".tls_psk"));
  if (secrets.dhchap_ctrl_secret.there() && !secrets.dhchap_secret.there())
    return Malformed(field + ".dhchap_ctrl_secret is there without dhchap_secret");
  return secrets;
}

// Any number of them; none twice, and none that no pool has.
inline Result<pool::ExtentRuns> ExtentRunsOf(std::span<Cleat__Engine__V1__ExtentRun* const> runs,
                                             const char* field) {
  if (runs.size() > pool::kExtentsMax) return Malformed(std::string(field) + " has too many");
  pool::ExtentRuns extents;
  extents.reserve(runs.size());
  for (const auto* run : runs) extents.push_back({run->first, run->count});
  if (!pool::AreWithin(extents, pool::kExtentsMax))
    return Malformed(std::string(field) + " has one twice, an empty run, or one beyond any pool");
  return extents;
}

// The DSCP of an Export or an NvmeTcpBackend, absent or not.
inline Result<uint8_t> DscpOf(uint32_t dscp, const std::string& field) {
  if (dscp <= nvme::fabrics::kDscpMax) return static_cast<uint8_t>(dscp);
  return Malformed(field + " is not 0 to " + std::to_string(nvme::fabrics::kDscpMax));
}

// Empty when it is missing. Its length is the caller's to check.
inline std::string OptionalText(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

// ---- Writing

inline char* PbText(const std::string& text) {
  return const_cast<char*>(text.c_str());
}  // protobuf-c does not write to it

// An initialised message that lives as long as `memory`, in which nothing is freed before.
template <typename Message>
Message& NewMessage(std::pmr::memory_resource& memory, void (*init)(Message*)) {
  static_assert(std::is_trivially_destructible_v<Message>);
  auto* message = std::pmr::polymorphic_allocator<>(&memory).new_object<Message>();
  init(message);
  return *message;
}

// The text, which lives as long as `memory`.
inline char* CopyOf(const std::string& text, std::pmr::memory_resource& memory) {
  auto* const copy = static_cast<char*>(memory.allocate(text.size() + 1, alignof(char)));
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// ---- The oneof `backend` of a disk (backends.cc)

// kUnimplemented: `disk` has a kind that this version does not know, or none.
Result<Backend> UnpackBackend(const std::string& disk, const PbDisk& in);
// What `out` points to afterwards lies in `memory` and in `backend`.
void PackBackend(const Backend& backend, PbDisk& out, std::pmr::memory_resource& memory);

}  // namespace cleat::engine
