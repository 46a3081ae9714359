// SPDX-License-Identifier: Apache-2.0
// A logical unit as all reactors see it: who it is, its mode parameters, the unit attentions that wait to be
// reported. A guest is one I_T nexus, so each attention is reported once, to whichever command comes first on any
// queue (SAM-5 5.14).
//
// Shared by shared_ptr. The identity is immutable; the rest is one atomic word that changes rarely and of which the
// I/O path needs a relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "block/device.h"
#include "scsi/identity.h"
#include "scsi/protocol.h"

namespace cleat::scsi {

// What MODE SELECT can change (SPC-4 7.5.8). Not WCE: mode parameters don't outlive the engine, and a cache that a guest
// has switched off and that is on again behind the next engine would lose writes of which the guest believes that they
// are durable. FUA and SYNCHRONIZE CACHE are always there.
struct ModeParameters {
  bool descriptor_sense = false;  // D_SENSE
  bool operator==(const ModeParameters&) const = default;
};

enum class Attention : uint32_t {
  kReset = 1U << 0,  // in the order in which they are reported
  kNexusLoss = 1U << 1,
  kCapacityChanged = 1U << 2,
};

class LogicalUnit {
 public:
  LogicalUnit(std::string name, Identity identity, block::AccessMode mode)
      : name_(std::move(name)), identity_(std::move(identity)), mode_(mode) {}
  LogicalUnit(const LogicalUnit&) = delete;
  LogicalUnit& operator=(const LogicalUnit&) = delete;

  const std::string& name() const { return name_; }
  const Identity& identity() const { return identity_; }
  bool read_only() const { return mode_ == block::AccessMode::kReadOnly; }

  ModeParameters mode() const { return {(state_.load(std::memory_order_relaxed) & kDescriptorSense) != 0}; }
  void SetMode(const ModeParameters& mode);

  bool attention_pending() const { return (state_.load(std::memory_order_relaxed) & kAttentions) != 0; }
  void Raise(Attention attention) {
    state_.fetch_or(static_cast<uint32_t>(attention), std::memory_order_relaxed);
  }
  // The next one, which is then reported by the caller and nobody else.
  std::optional<SenseCode> TakeAttention();

  // Logical unit reset (SAM-5 6.3.3): mode parameters to their defaults, and an attention that says so.
  void Reset();

 private:
  static constexpr uint32_t kAttentions = 0xff;
  static constexpr uint32_t kDescriptorSense = 1U << 8;

  const std::string name_;
  const Identity identity_;
  const block::AccessMode mode_;
  std::atomic<uint32_t> state_{0};
};

}  // namespace cleat::scsi
