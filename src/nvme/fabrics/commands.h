// SPDX-License-Identifier: Apache-2.0
// The commands that only fabrics have - Connect, Property Get and Set, Authentication Send and Receive, Disconnect - and the properties of a
// controller, which take the place of a PCIe drive's registers.
//
// Source: NVM Express Base Specification 2.0 ("base"), 6 (commands), 3.1.3 (properties). Plain values; any thread. What a target answers is
// checked before it is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "nvme/command.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/names.h"

namespace cleat::nvme::fabrics {

enum class FabricsType : uint8_t {
  kPropertySet = 0x00,
  kConnect = 0x01,
  kPropertyGet = 0x04,
  kAuthenticationSend = 0x05,
  kAuthenticationReceive = 0x06,
  kDisconnect = 0x08,
};

// How fabrics commands end beside the generic ways: of type 1, command specific (base 6.1 and 6.3).
enum ConnectStatus : uint8_t {
  kIncompatibleFormat = 0x80,
  kControllerBusy = 0x81,
  kInvalidParameters =
      0x82,  // the result says which: its offset in bits 15:0, and in bit 16 whether in the data
  kRestartDiscovery = 0x83,
  kInvalidHost = 0x84,
  kInvalidQueueType = 0x85,
  kDiscoverRestart = 0x90,
  kAuthenticationRequired = 0x91,
};

// ---- Connect (base 6.3)

struct ConnectData {
  Uuid host_id{};
  uint16_t controller_id = 0;
  uint8_t reserved1[238] = {};
  char subsystem_nqn[256] = {};
  char host_nqn[256] = {};
  uint8_t reserved2[256] = {};
};
static_assert(sizeof(ConnectData) == 1024);

// The controller that an admin queue's Connect names: any that the subsystem makes. Identifiers from kControllerIdLast + 1 on stand for such
// wishes.
inline constexpr uint16_t kAnyController = 0xffff;
inline constexpr uint16_t kControllerIdLast = 0xffef;

// The names have passed CheckNqn.
ConnectData ConnectDataOf(const HostIdentity& host, std::string_view subsystem_nqn, uint16_t controller_id);

struct ConnectOptions {
  uint16_t queue_id = 0;     // 0: the admin queue, whose Connect makes the association
  uint32_t entries = 0;      // of the queue, 2 to 65536
  uint32_t kato_ms = 0;      // of the admin queue
  bool flow_control = true;  // false: the target is asked not to report the submission queue's head
};
Command Connect(const ConnectOptions& options);

struct ConnectAnswer {
  uint16_t controller_id = 0;
  bool authentication_required = false;
  bool secure_channel_required = false;  // that authentication makes (ASCR); authentication_required too
};
// What became of a Connect. `host_nqn` and `subsystem_nqn` for an error's text, which begins with `who`. kPermissionDenied where the target
// does not let the host in, kUnavailable where it may do so later, else what is wrong with the command by the name of its field.
Result<ConnectAnswer> ParseConnect(const CompletionEntry& entry, const std::string& who,
                                   std::string_view host_nqn, std::string_view subsystem_nqn);

// Deletes the I/O queue on which it is sent (base 6.4).
constexpr Command Disconnect() {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kDisconnect)};
}

// ---- Authentication Send and Receive (base 6.1 and 6.2): messages of NVMe's security protocol, which nvme/auth has

// SECP, and SPSP1 and SPSP0, which say that these are messages of in-band authentication.
inline constexpr uint32_t kAuthenticationProtocol = 0xe9U << 24 | 1U << 16 | 1U << 8;

// `message_bytes`: of the data to the target.
constexpr Command AuthenticationSend(uint32_t message_bytes) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kAuthenticationSend),
          .cdw10 = kAuthenticationProtocol,
          .cdw11 = message_bytes};
}
// `room_bytes`: for the message that comes.
constexpr Command AuthenticationReceive(uint32_t room_bytes) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kAuthenticationReceive),
          .cdw10 = kAuthenticationProtocol,
          .cdw11 = room_bytes};
}

// ---- Properties (base 3.1.3); the numbers are offsets.

enum class Property : uint32_t {
  kCapabilities = 0x00,
  kVersion = 0x08,
  kConfiguration = 0x14,
  kStatus = 0x1c,
  kReadyTimeouts = 0x68,  // CRTO
};

constexpr Command PropertyGet(Property property) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kPropertyGet),
          .cdw10 = property == Property::kCapabilities ? 1U : 0U,  // 8 bytes, else 4
          .cdw11 = static_cast<uint32_t>(property)};
}
// A host sets kConfiguration alone of the four.
constexpr Command PropertySet(Property property, uint32_t value) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kPropertySet),
          .cdw11 = static_cast<uint32_t>(property),
          .cdw12 = value};
}

struct Capabilities {              // CAP
  uint32_t queue_entries_max = 0;  // MQES, from 2 on
  uint64_t ready_timeout_ns = 0;   // TO: how long CSTS.RDY may take; never 0
  uint8_t page_shift_min = 12;     // MPSMIN
  bool nvm_command_set = false;    // CSS: there is the NVM command set by itself
  bool any_command_set = false;    // CSS: those of Identify I/O Command Set, of which NVM is one
};
Result<Capabilities> ParseCapabilities(uint64_t value, const std::string& who);

// CC for a controller that is to run: entries of 64 and 16 bytes, the smallest page, round robin.
uint32_t EnabledConfiguration(const Capabilities& capabilities);
// The same with a normal shutdown asked for (CC.SHN).
uint32_t ShutdownConfiguration(uint32_t configuration);

struct ControllerStatus {  // CSTS
  bool ready = false;
  bool fatal = false;          // CFS: it must be made anew
  bool shutdown_done = false;  // SHST
};
constexpr ControllerStatus ParseControllerStatus(uint32_t value) {
  constexpr uint32_t kShutdownDone = 2;
  return {.ready = (value & 1U) != 0,
          .fatal = (value & 2U) != 0,
          .shutdown_done = (value >> 2 & 3U) == kShutdownDone};
}

// "1.4", "2.0.1".
std::string TextOfVersion(uint32_t version);

// How a fabrics command ended. Its codes overlap with those of the NVM command set, so that nvme::NameOf would call them wrong.
std::string NameOfFabricsStatus(Status status);

}  // namespace cleat::nvme::fabrics
