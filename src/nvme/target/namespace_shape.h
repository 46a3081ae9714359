// SPDX-License-Identifier: Apache-2.0
// A namespace as a target shows it: how large it is, what it can do, what it is called. And the Identify pages that say so.
//
// Source: NVM Command Set Specification 1.0 ("NVM"), 4.1.5.1 and 4.1.5.3; NVM Express Base Specification 2.0 ("base"), 5.17.2.3 and 5.17.2.7.
// Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "block/device.h"
#include "nvme/fabrics/identify.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/target/limits.h"

namespace cleat::nvme::target {

struct NamespaceShape {
  uint64_t blocks = 0;                // not 0
  uint32_t block_bytes = 512;         // 512 or 4096
  uint32_t physical_block_bytes = 0;  // the unit without read-modify-write; 0: a block
  uint32_t optimal_io_bytes = 0;      // 0: nothing to say
  bool discard = false;
  uint32_t discard_granularity_bytes = 0;  // 0: nothing to say
  uint64_t discard_bytes_max = 0;          // of one range; 0: no limit
  bool write_zeroes = false;
  uint64_t write_zeroes_bytes_max = 0;  // of one command; 0: no limit
  bool write_cache = false;             // completed writes need a flush to be durable
  bool read_only = false;
  // What it is called, the same at all targets that show it: at least the UUID or the NGUID. Hosts compare all three.
  fabrics::NamespaceIds ids;

  bool operator==(const NamespaceShape&) const = default;
};

// `geometry` has passed CheckGeometry.
NamespaceShape ShapeOf(const block::Geometry& geometry, bool read_only, const fabrics::NamespaceIds& ids);
// kInvalidArgument: what no namespace can be.
cleat::Status CheckShape(const NamespaceShape& shape);

// A page of zeroes is given, and filled. `group`: the ANA group. `reservations`: whether there are (Features).
using IdentifyPage = std::span<uint8_t, kIdentifyBytes>;
void WriteNamespace(IdentifyPage page, const NamespaceShape& shape, uint32_t group, bool reservations);
void WriteDescriptors(IdentifyPage page, const NamespaceShape& shape);
void WriteIndependentNamespace(IdentifyPage page, const NamespaceShape& shape, uint32_t group,
                               bool reservations);

}  // namespace cleat::nvme::target
