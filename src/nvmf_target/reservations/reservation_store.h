// SPDX-License-Identifier: Apache-2.0
// Where reservations are kept, so that they hold in the next process too: whoever serves a namespace next loads what the one before has stored.
#pragma once

#include "base/result.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/reservations/reservation.h"
#include "reactor/task.h"

namespace cleat::nvmf_target {

// Called on the control reactor, where tasks go on; what may block is done elsewhere. Calls for one namespace come one after the other.
class ReservationStore {
 public:
  // What was stored of the namespace last; a default one where nothing was. An error: it can't be read, and nobody may serve the namespace.
  virtual Task<Result<nvme::target::Reservation>> Load(nvme::fabrics::Uuid namespace_uuid) = 0;
  // Durable when it returns OK. After an error Load says whether that one or the one before is in force.
  virtual Task<Status> Store(nvme::fabrics::Uuid namespace_uuid, nvme::target::Reservation reservation) = 0;

 protected:
  ~ReservationStore() = default;
};

}  // namespace cleat::nvmf_target
