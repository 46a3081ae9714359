// SPDX-License-Identifier: Apache-2.0
// The folder in which engines keep the reservations of exported namespaces (src/engine/stores/reservation_files.h): what is in it of a namespace
// goes with the attachment, so that a disk that is attached there anew begins without a reservation. Files of which no attachment is known stay: a
// store that is restored may have their attachments again.
//
// Any thread; blocks on the file system.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {

class ReservationFolder {
 public:
  explicit ReservationFolder(std::string folder) : folder_(std::move(folder)) {}

  // Of a namespace that no engine has. What an engine has left of it that was killed while it wrote goes too. Durable when it returns OK.
  Status Remove(const nvme::fabrics::Uuid& namespace_uuid) const;

 private:
  const std::string folder_;
};

}  // namespace cleat::control
