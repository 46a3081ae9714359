// SPDX-License-Identifier: Apache-2.0
// What one queue of a host's runs over: a TCP connection (socket/target_stream.h), or a queue pair of RDMA (rdma/rdma_transport.h). The protocol is in the TargetQueue that the transport has; the
// transport moves it on the reactor, and knows the host's end of the wire.
//
// A transport begins on the control reactor, with its admin queue or with what is to become an I/O queue, and may move to another reactor, with Stop there
// and Start here.
//
// One thread at a time: that of the reactor between Start and Stop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/target/access/host_access.h"
#include "nvmf_target/hand_over/saved_association.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// Hears of a transport's turns, on its reactor, and gives it the memory that all queues of the reactor share.
class TransportOwner {
 public:
  // What is received from here on has come by now.
  virtual void BeginTurn() {}
  // Memory to receive to (receiver.h), kReceiveBufferLeastBytes at least: until what came is handed to the queue.
  virtual std::span<uint8_t> ReceiveBuffer() = 0;
  // Something was read, and is handed to the queue next. False: the queue has ended.
  virtual bool MayReceive() { return true; }
  // What was to be answered is with the kernel, or with the adapter, as far as these take it. The transport may be stopped and destroyed.
  virtual void EndTurn() = 0;
  // Whether more memory of commands may be lent to the kernel.
  virtual bool MayLend() { return true; }
  // A piece that was kept (QueueTransport::Keep) is the owner's again. `in_kernel`: the kernel may still send from its pages, so that the owner puts
  // other pages in their place before it uses the piece.
  virtual void GiveKept(const block::Segment& /*piece*/, bool /*in_kernel*/) {}

 protected:
  ~TransportOwner() = default;
};

// What is different from one transport to the next, for whoever has the commands.
struct TransportTraits {
  // The adapter reaches the data of commands itself: it is in memory that was registered with it (IoPort::registered).
  bool uses_registered_memory = false;
  // A host can't be kept from sending: the transport asks for commands while it does not read, and is given none. Nor does it call
  // TransportOwner::MayReceive: whoever takes a command, or its data, looks whether it comes too late. The reactor's time is refreshed behind each look
  // for what has come.
  bool always_receives = false;
  // The reactor that alone can have the queue once it is an I/O queue. nullptr: any.
  Reactor* reactor = nullptr;
  // What the host has said of the queue when it made the connection, and what its Connect has to say, too: the queue's identifier, and that it has no more
  // entries. nullopt: Connect alone says so.
  struct Announced {
    uint16_t queue_id = 0;
    uint32_t entries = 0;
  };
  std::optional<Announced> announced = std::nullopt;
};

class QueueTransport {
 public:
  virtual ~QueueTransport() = default;

  // Another one once the transport has been stopped (admin queue, or what is to be an I/O queue) and belongs to its I/O queue.
  virtual nvme::fabrics::TargetQueue& queue() = 0;
  virtual const TransportTraits& traits() const = 0;
  // The host's address, for errors.
  virtual const std::string& peer() const = 0;

  // Both references outlive what is started. An error: the queue has ended, or is to. The memory of an admin queue's answers goes with their commands: none of it is lent.
  enum class Kind : uint8_t { kAdmin, kIo };
  virtual Status Start(Reactor& reactor, TransportOwner& owner, Kind kind) = 0;
  // Off the reactor; the host hears nothing of it. Also from EndTurn.
  virtual void Stop() = 0;
  // With Stop, and for good, behind the end of the queue.
  virtual void Close() = 0;
  // There is something to send, or room again for what waits.
  virtual void Wake() = 0;
  // Whether it reads, as it does from the beginning on. What is to be sent goes on either way.
  virtual void SetReads(bool reads) = 0;
  virtual bool reads() const = 0;
  // Something is left to be sent.
  virtual bool wants_to_send() const = 0;
  // Keeps the memory of a command that was lent (TargetCommand::lent) until GiveKept. False: nobody needs it any more.
  virtual bool Keep(const block::Segment& piece) = 0;

  // Whom the way to the host was secured for. nullptr: it is not secure. Once anything was received.
  virtual const nvme::target::SecuredAs* secured() const = 0;
  // The host has begun to make its way secure, and has not proved yet that it has the key.
  virtual bool in_handshake() const = 0;
  // Packets to the host carry that code point from now on, where this end has a say in it: over RDMA it has none (rdma/connection_manager.h).
  virtual void SetDscp(uint8_t /*dscp*/) {}
  // The core that what comes is processed on; -1: not known.
  virtual int incoming_cpu() const = 0;

  // ---- From one process to the next
  virtual bool may_be_saved() const = 0;
  // With Stop. The queue has ended with that (TargetConnection::Save). Its identifier and its host's address are the caller's to add.
  virtual SavedQueue Save() = 0;
  // Gives a queue that another process had one of its commands (TargetConnection::TakeBack).
  virtual void TakeBack(nvme::fabrics::TargetCommand& command, nvme::tcp::SavedCommand& saved) = 0;
};

}  // namespace cleat::nvmf_target
