// SPDX-License-Identifier: Apache-2.0
// The Connect of an I/O queue: the one command that goes before a queue of an association takes I/O.
//
// The owner of the queue pair owns this beside it, on the same thread, and hands on what concerns it: Send at Connected, Take with the
// completion of kCookie, Overdue from time to time. An error means that the owner aborts the queue pair with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/queue_pair.h"

namespace cleat::nvme::host {

struct IoConnectConfig {
  std::string who;  // "subsystems/a at 10.0.0.1:4420, queue 1"
  fabrics::HostIdentity host;
  std::string subsystem_nqn;
  uint16_t controller_id = 0;  // the association's
  uint16_t queue_id = 1;
  uint32_t entries = 0;
  uint64_t timeout_ns = 0;
};

class IoConnect {
 public:
  static constexpr uint64_t kCookie = UINT64_MAX;

  explicit IoConnect(IoConnectConfig config);

  // Once, when the queue pair is connected.
  void Send(fabrics::QueuePair& queue, uint64_t now_ns);
  // The queue takes I/O from success on.
  cleat::Status Take(const fabrics::CompletionEntry& entry);
  // An error once the target has not answered in time.
  std::optional<Error> Overdue(uint64_t now_ns) const;
  bool ready() const { return state_ == State::kReady; }

 private:
  enum class State : uint8_t { kIdle, kSent, kReady, kFailed };
  const IoConnectConfig config_;
  State state_ = State::kIdle;
  uint64_t deadline_ns_ = 0;
  fabrics::ConnectData data_;
  std::shared_ptr<block::MemoryRegion> region_;  // of data_
  block::Segment segment_;
};

}  // namespace cleat::nvme::host
