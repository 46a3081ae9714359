// SPDX-License-Identifier: Apache-2.0
// Keeps the writes of one reactor in the order in which hosts know them, when paths break: tells all reactors of those that outlive their
// connection or take long (OlderWrites), and holds those that have to wait for such ones.
//
// What is not held: a write that overlaps one of another association which is younger than kYoungNs and whose connection has not been seen to end. A
// host would have to send a write, lose the path, have the write answered by another one and send the next, all within that time.
//
// Of its own reactor, but MayGoOn.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/intrusive_list.h"
#include "nvmf_target/io/io_command.h"
#include "nvmf_target/io/older_writes.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

class WriteOrder final : private OlderWrites::Waiter {
 public:
  // How long a write is in the storage before the other reactors are told: longer than fast storage takes, and shorter than a host needs to give up
  // a path and have the write answered by another one.
  static constexpr uint64_t kYoungNs = kNsPerMs;

  explicit WriteOrder(Reactor& reactor) : reactor_(reactor) {}
  ~WriteOrder();  // nothing is held, or in the storage
  WriteOrder(const WriteOrder&) = delete;
  WriteOrder& operator=(const WriteOrder&) = delete;

  // Of commands that change data. True: it has to wait, and is kept until IoQueue::GoOnAfterOlder, or until it is abandoned.
  bool Holds(IoCommand& command, NamespacePort& space);
  // A held command that may go on does not: no write waits for it any more.
  void Drop(IoCommand& command, NamespacePort& space);
  // A command goes to the storage, and comes back.
  void Began(IoCommand& command);
  void Over(IoCommand& command);
  // All are told of what the queue has in the storage, however young it is: it was there in another process before, perhaps.
  void TellOf(const IoQueue& queue);
  // The connection has ended: what it has in the storage is waited for by all others.
  void Ended(const IoQueue& queue);
  // What is held of the queue, or for the namespace, waits no more: each goes to `abandon`.
  void AbandonHeld(const IoQueue& queue, const std::function<void(IoCommand&)>& abandon);
  void AbandonHeld(const NamespacePort& space, const std::function<void(IoCommand&)>& abandon);
  void Stop() { age_.Cancel(); }

 private:
  struct AgeTimer : Timer {
    explicit AgeTimer(WriteOrder& o) : Timer(&Fire), order(o) {}
    static void Fire(Timer& timer);
    WriteOrder& order;
  };

  void MayGoOn() override;
  void LookAgain();
  void AbandonIf(const std::function<bool(const IoCommand&)>& concerns,
                 const std::function<void(IoCommand&)>& abandon);
  static void Tell(IoCommand& command);
  static void TakeOut(IoCommand& command);

  Reactor& reactor_;
  IntrusiveList<IoCommand, &IoCommand::ordered> young_;  // by age; the others are not told of them
  IntrusiveList<IoCommand, &IoCommand::ordered> old_;    // these are in OlderWrites
  IntrusiveList<IoCommand, &IoCommand::ordered> held_;
  AgeTimer age_{*this};
  std::atomic<bool> looks_again_{false};
};

}  // namespace cleat::nvmf_target
