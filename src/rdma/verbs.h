// SPDX-License-Identifier: Apache-2.0
// RDMA verbs, as far as queues need them while they run: what is behind a queue pair, a shared receive queue and a completion queue. The protocol above
// knows no more of an adapter than this, so that it runs over a model of one in tests (tests/sim/rdma) as it does over libibverbs (rdma/device.h).
//
// Reliable connections only. Sources: InfiniBand Architecture Specification 1.4, volume 1, chapter 10 (software transport interface) and chapter 9
// (what a queue pair may reorder); ibv_post_send(3), ibv_post_srq_recv(3), ibv_poll_cq(3), ibv_req_notify_cq(3).
//
// Memory. What a piece names belongs to the adapter from Post on: until its work has completed, or its queue pair is destroyed. That a peer is gone, that
// a queue pair is broken, that work of it was flushed in part: none of these is an end of what else was posted.
//
// Threads: each object belongs to the thread that uses it first, its completion queue's, and is destroyed where its maker says.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace cleat::rdma {

// A piece of registered memory.
struct LocalPiece {
  uint64_t address = 0;
  uint32_t length_bytes = 0;
  uint32_t local_key = 0;  // of a registration that covers all of it
};

enum class SendOp : uint8_t {
  kSend,
  kSendAndInvalidate,  // a send, at whose arrival the peer's adapter lets go of the key `key`
  kWrite,              // to the peer's memory at `remote_address`, by its key `key`
  kRead,               // from there. Takes a read credit until its data has come
  kBindWindow,         // the window of `binding` shows a part of a registration, from then on
  kInvalidateWindow,   // of the own key `key`: the peer has no way to that memory from then on
};

class MemoryWindow;
class Registration;

// A window (type 2) and what it is to show to the peer. docs/nvmeof.md says why windows.
struct WindowBinding {
  MemoryWindow* window = nullptr;
  uint32_t key = 0;  // another one than at the last time: MemoryWindow::NextKey
  const Registration* registration = nullptr;
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  bool peer_may_read = false;
  bool peer_may_write = false;
};

// One work request of a send queue. What it refers to, its memory aside, is read before Post returns.
struct SendWork {
  uint64_t id = 0;  // comes back with its completion
  SendOp op = SendOp::kSend;
  // A completion comes when it is done. Else only when it fails: it is done once a later one of the same queue pair has completed with success. A kRead
  // is always signaled.
  bool signaled = true;
  bool copies_data =
      false;  // the pieces are read before Post returns, and need no key: up to SendLimits::inline_bytes
  std::span<const LocalPiece> pieces = {};  // up to SendLimits::pieces
  uint64_t remote_address = 0;
  uint32_t key = 0;
  const WindowBinding* binding = nullptr;
};

// Memory for one message that comes in.
struct ReceiveWork {
  uint64_t id = 0;
  LocalPiece piece;
};

enum class WorkStatus : uint8_t {
  kDone,
  kFlushed,          // its queue pair broke before: it may have been done in part or in whole
  kRetriesExceeded,  // the peer does not answer, or has no room for messages
  kRemoteRefused,    // the peer's adapter refuses: a key that is not valid, or not for that
  kLocalError,       // this end is wrong: memory that is not registered, a message longer than its memory
  kOther,
};
const char* NameOf(WorkStatus status);

// Of work that has failed, `id`, `queue_pair` and `status` alone are valid.
struct Completion {
  uint64_t id = 0;
  uint32_t queue_pair = 0;  // its number
  WorkStatus status = WorkStatus::kDone;
  uint32_t received_bytes = 0;       // of a ReceiveWork
  bool key_was_invalidated = false;  // by the peer's kSendAndInvalidate, of a ReceiveWork
  uint32_t invalidated_key = 0;
};

struct SendLimits {
  uint32_t works =
      0;  // posted and not done, at most; those that are not signaled count until a later one has completed
  uint32_t pieces = 0;        // of one work request; of a kRead as well
  uint32_t inline_bytes = 0;  // that copies_data may have
  uint32_t read_credits = 0;  // kRead outstanding, at most: more hold up all that is posted behind them
};

class QueuePair {
 public:
  // Nothing of what was posted is done from then on, and the adapter has let go of its memory. Completions of it that were not polled are lost.
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual const SendLimits& limits() const = 0;
  // In their order, by one doorbell. Returns how many were posted, from the first on: fewer than all only when the queue pair is to be broken.
  virtual uint32_t Post(std::span<const SendWork> works) = 0;
  // Whatever was posted and is not done fails (kFlushed), soon, with a completion each; nothing more is received. Again is no error.
  virtual void Break() = 0;
};

// Where messages to several queue pairs arrive, in any of the pieces that were posted.
class ReceiveQueue {
 public:
  virtual ~ReceiveQueue() = default;
  // Returns how many were posted, from the first on; fewer than all only when the adapter is gone.
  virtual uint32_t Post(std::span<const ReceiveWork> works) = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Returns how many there were, at most completions.size(). Those of one queue pair's sends come in the order in which they were posted.
  virtual uint32_t Poll(std::span<Completion> completions) = 0;
  // The next completion makes descriptor() readable. One that came just before may not: Poll once more, then wait.
  virtual Status Arm() = 0;
  virtual int descriptor() const = 0;
  // To be called when descriptor() was readable.
  virtual void TakeEvents() = 0;
};

}  // namespace cleat::rdma
