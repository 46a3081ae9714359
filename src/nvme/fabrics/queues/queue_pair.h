// SPDX-License-Identifier: Apache-2.0
// A queue pair of a fabric as the host drives it, whatever the transport: commands with their data go in, completions come out, and at its
// end each command that was not answered comes back with what the target can have of it.
//
// One thread: the reactor's that has the queue. Pure in that it reads no clock: its owner decides when it has waited long enough.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/fabrics/capsule.h"

namespace cleat::nvme::fabrics {

// What a target can have of a command whose queue pair ended before it was answered. It decides whether the command may still be executed
// by a target that is slow, and so whether a retry elsewhere may collide with it.
enum class Reached : uint8_t {
  kNothing,  // no byte of it was given to the transport
  kNoData,  // its entry may be there, but no byte of its data; only for commands that the target can't execute without
  kPerhapsAll,  // else
};

struct QueuedCommand {
  SubmissionEntry entry;  // cid, flags and data descriptor are the queue pair's to fill in
  // Memory that stays until Completed or Unanswered: what goes to the target, or room for what comes from it. At most one of the two.
  std::span<const block::Segment> to_target;
  std::span<const block::Segment> from_target;
  uint64_t cookie = 0;  // comes back with the completion
};

// The listener of a queue pair. Called from within its methods that bring news; may submit from there, and may not destroy the queue pair.
class QueuePairOwner {
 public:
  // The connection is there: commands may be submitted. Once, first.
  virtual void Connected() = 0;
  // `data_bytes`: how much of from_target was filled, without gaps from its beginning.
  virtual void Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) = 0;
  // The queue pair has ended, and this command was in flight. Before Ended.
  virtual void Unanswered(uint64_t cookie, Reached reached) = 0;
  // Its end, once, last: `reason` names what broke. Each command in flight has come back before: by Unanswered, or by Completed where the
  // target had answered while the last of the command's data was being sent.
  virtual void Ended(const Error& reason) = 0;

 protected:
  ~QueuePairOwner() = default;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  // How many commands may be submitted now.
  virtual uint32_t room() const = 0;
  // Takes effect with the next batch that the transport sends. room() > 0.
  virtual void Submit(const QueuedCommand& command) = 0;
  // Breaks the connection off; the owner hears of it by Unanswered and Ended, before or after this returns.
  virtual void Abort(const Error& reason) = 0;
};

}  // namespace cleat::nvme::fabrics
