// SPDX-License-Identifier: Apache-2.0
// A queue of a controller's as what is behind it sees it, whatever the transport: commands come from the host, and each is answered.
//
//   kReceiving --> kRunning --Ask--> kAsked --> kRunning --Answer--> kAnswering --> given back
//   what its capsule brings; the owner's; the data that it was asked for, if any; the answer, with data or without
//
// The owner of the queue keeps the commands in a pool, and decides what each does. The transport keeps what it needs for a command in the command, so that
// nothing is allocated for one.
//
// One thread: the queue's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "block/memory.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/status.h"

namespace cleat::nvme::fabrics {

// Data of one command, either way (MDTS).
inline constexpr uint32_t kTransferBytesMax = 1 << 20;

class TargetCommand {
 public:
  enum class State : uint8_t { kFree, kReceiving, kRunning, kAsked, kAnswering };

  // ---- The owner's
  uint16_t tag = 0;  // by which the owner finds it; never changes
  // Memory for what the command moves, either way: data_bytes at least where any is moved. In use until the command is given back, or longer where it is
  // lent.
  std::span<const block::Segment> data;

  // ---- The transport's, for the owner to read
  // `entry.data` says, whatever the transport, how many bytes there are, and whether they came along (kSglInCapsule) or the transport brings them
  // (kSglByTransport).
  SubmissionEntry entry;
  uint32_t data_bytes = 0;  // that the command moves, as its descriptor says
  bool in_capsule = false;  // they came along with it
  State state = State::kFree;

  // ---- The transport's
  // The transport sends some of the data from the command's memory, which it goes on using beyond Give. The owner clears this in Give, and may use the
  // memory for something else once the transport has given it back.
  bool lent = false;
  uint32_t moved_bytes = 0;  // of its data, that came
  ListHook of_queue;
  ListHook to_send;

  // What one transport alone knows of a command. The transport makes it behind Take, and ends it before Give.
  template <typename Wire>
  Wire& MakeWire() {
    static_assert(sizeof(Wire) <= kWireBytes && alignof(Wire) <= alignof(uint64_t));
    return *new (wire_) Wire;
  }
  template <typename Wire>
  Wire& wire() {
    return *std::launder(reinterpret_cast<Wire*>(wire_));
  }
  template <typename Wire>
  const Wire& wire() const {
    return *std::launder(reinterpret_cast<const Wire*>(wire_));
  }

 private:
  static constexpr size_t kWireBytes = 400;  // 16 descriptors of a host over RDMA, and what is beside them
  alignas(uint64_t) std::byte wire_[kWireBytes];
};

// What the owner of a queue does with commands. Called from within the transport's methods; may call Ask and Answer from there, and may not destroy the
// queue.
class TargetQueueOwner {
 public:
  // A command's memory, with room for `in_capsule_bytes` of data. nullptr: there is none now, and the owner calls Resume when there is.
  virtual TargetCommand* Take(const SubmissionEntry& entry, uint32_t in_capsule_bytes) = 0;
  // The same of one whose data has come already, and lies at `here`. If that is the memory of the command that is returned, the data stays there; else it
  // is copied.
  virtual TargetCommand* TakeHere(const SubmissionEntry& entry, std::span<const uint8_t> here) {
    return Take(entry, static_cast<uint32_t>(here.size()));
  }
  // A command that comes soon, this one or the next, unless the host has sent what it may not. Nothing of it is checked, and it may be told of again.
  virtual void Ahead(const SubmissionEntry& /*entry*/) {}
  // The one that has the tag, if it is a command of this queue; else nullptr.
  virtual TargetCommand* Find(uint16_t tag) = 0;
  // Its capsule is whole: Ask or Answer comes next, now or later.
  virtual void Run(TargetCommand& command) = 0;
  // The data that was asked for is there: Answer comes next, now or later.
  virtual void DataCame(TargetCommand& command) = 0;
  // The transport has done with it: nothing refers to its memory any more, unless it is lent. Once for each Take.
  virtual void Give(TargetCommand& command) = 0;
  // The end, once: `reason` names what broke. Nothing comes of the host any more. Commands that run stay until they are answered; those that are on the
  // wire are given back once the transport has let go of their memory, which may be before this, and may be long after.
  virtual void Ended(const Error& reason) = 0;

 protected:
  ~TargetQueueOwner() = default;
};

// A queue, over whichever transport.
class TargetQueue {
 public:
  virtual ~TargetQueue();  // without a command
  TargetQueue(const TargetQueue&) = delete;
  TargetQueue& operator=(const TargetQueue&) = delete;

  // Before the first command comes; and later, when somebody else is to own it, in whose thread it is from then on. No command may be on its way in. The
  // owner outlives the queue.
  void SetOwner(TargetQueueOwner& owner) { owner_ = &owner; }
  // Connect has succeeded: the queue has that many entries. `in_capsule_bytes`: what commands may bring along from now on.
  virtual void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes);
  // Asks the host for all of the command's data, which is not in its capsule. `command.data` has room for it.
  virtual void Ask(TargetCommand& command) = 0;
  // `data_bytes` of command.data go along; none with an error. Of a queue that has ended: gives it back at once.
  virtual void Answer(TargetCommand& command, Status status, uint64_t result, uint32_t data_bytes) = 0;
  void Answer(TargetCommand& command, Status status) { Answer(command, status, 0, 0); }
  // At once: Ended comes before it returns. After the end it does nothing.
  virtual void Abort(const Error& reason) = 0;
  // Tells the command that waits for room again.
  virtual void Resume() = 0;
  // A command waits for room.
  virtual bool waits() const = 0;

  bool ended() const { return ended_; }
  // Commands that were taken and not given back.
  uint32_t commands() const { return commands_; }
  // How many of the commands are with the owner, which has not answered or asked.
  uint32_t running();
  // Visits the commands that are with the owner, and those whose data is awaited. `visit` answers none, and asks for none.
  void ForEachUnanswered(const std::function<void(TargetCommand&)>& visit);

 protected:
  TargetQueue() = default;
  // The command, which the owner gave, is the queue's.
  void Begin(TargetCommand& command) {
    of_queue_.PushBack(command);
    ++commands_;
  }
  // The command is the owner's again.
  void GiveBack(TargetCommand& command) {
    command.of_queue.Unlink();
    command.state = TargetCommand::State::kFree;
    --commands_;
    owner_->Give(command);
  }
  // The entry that answers the command. Once for each command that is answered, in the order of the answers: each moves the head of the queue on.
  CompletionEntry MakeEntry(const TargetCommand& command, Status status, uint64_t result);

  TargetQueueOwner* owner_ = nullptr;
  IntrusiveList<TargetCommand, &TargetCommand::of_queue> of_queue_;  // all of its commands
  uint32_t commands_ = 0;
  uint32_t entries_ = 1;  // before Connect
  uint16_t sq_head_ = 0;
  bool flow_control_ = true;
  bool ended_ = false;
};

}  // namespace cleat::nvme::fabrics
