// SPDX-License-Identifier: Apache-2.0
// What a controller and a namespace say of themselves, and whether Cleat can use them. The answers come from a device: each field is
// checked before it is used, whatever the specification promises of it.
//
// Source: Identify's data structures, NVM Express Base Specification 2.0, 5.17.2, and NVM Command Set Specification 1.0, 4.1.5. Plain
// values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/command.h"

namespace cleat::nvme {

using IdentifyData = std::span<const uint8_t, kIdentifyBytes>;

struct ControllerInfo {
  std::string serial;  // SN, MN, FR: printable, without the blanks at their end
  std::string model;
  std::string firmware;
  uint32_t version = 0;  // VER: 0x00010400 is 1.4
  uint64_t transfer_bytes_max =
      0;  // MDTS, in units of the smallest page that a controller may have (4 KiB); 0: no limit
  bool write_cache = false;         // VWC: completed writes need a flush to be durable
  bool write_zeroes = false;        // ONCS
  bool dataset_management = false;  // ONCS
  bool reservations = false;        // ONCS
  uint32_t write_unit_power_fail =
      0;  // AWUPF: blocks that are written whole or not at all when the power fails
};

struct NamespaceInfo {
  uint64_t blocks = 0;                 // NSZE
  uint32_t block_bytes = 0;            // of the format in use
  bool shared = false;                 // NMIC: more than one controller may reach it
  bool write_protected = false;        // NSATTR
  uint32_t boundary_blocks = 0;        // NOIOB: I/O is slower across multiples of it; 0: nothing to say
  uint32_t write_unit_power_fail = 0;  // NAWUPF, else the controller's
  // DLFEAT: what Write Zeroes has deallocated reads as zeroes, and it may deallocate.
  bool deallocated_reads_zero = false;
  bool write_zeroes_deallocates = false;
  uint32_t discard_granularity_blocks = 0;  // NPDG; 0: nothing to say
  // RESCAP: reservations of the type Write Exclusive - All Registrants; registrants that may outlive a power loss.
  bool write_exclusive_all = false;
  bool registrants_persist = false;
};

// What the NVM command set limits beside MDTS; 0: no limit.
struct CommandSetLimits {
  uint64_t write_zeroes_bytes_max = 0;  // WZSL
  uint32_t discard_blocks_max = 0;      // DMRSL: of one range
};

// `who` names the device in errors.
Result<ControllerInfo> ParseController(IdentifyData data, const std::string& who);
// kUnimplemented: a format with metadata or protection information, or with blocks that no disk can have.
Result<NamespaceInfo> ParseNamespace(IdentifyData data, const ControllerInfo& controller,
                                     const std::string& who);
CommandSetLimits ParseCommandSetLimits(IdentifyData data);

}  // namespace cleat::nvme
