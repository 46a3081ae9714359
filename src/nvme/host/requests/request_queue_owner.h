// SPDX-License-Identifier: Apache-2.0
// What a request queue tells the disk's control thread; mail, in order, from within its methods.
// Pure: the listener of one queue, called on its thread.
#pragma once

#include "nvme/host/doubt/doubt.h"

namespace cleat::nvme::host {

class RequestQueueOwner {
 public:
  virtual void Report(LifeReport report) = 0;
  virtual void Acked(DoubtAck ack) = 0;
  virtual void BarrierOver(BarrierEnded ended) = 0;
  // A request in doubt was failed: nobody will retry it (DoubtLedger::Disown).
  virtual void GivenUp(OriginId origin) = 0;
  // The target says that this path does not lead to the namespace now (status type 3): it gets no command for kPauseNs. Or it says that it
  // has no such namespace: none until PathLooked either. Once for each time.
  virtual void PathRefused(LifeId life) = 0;
  // A reservation has kept a command of this life out, which fails. Once a life.
  virtual void Conflicted(LifeId life) = 0;

 protected:
  ~RequestQueueOwner() = default;
};

}  // namespace cleat::nvme::host
