// SPDX-License-Identifier: Apache-2.0
// The reservations of exported namespaces in files, so that they hold in the next engine, and after the host's restart where a host has asked for
// that. One file for each namespace, which has its UUID for a name:
//
//   "CLEATRSV", the version, the CRC32C of what follows (both 32 bits, little-endian), StoredReservation (proto/cleat/engine/v1)
//
// A file is replaced as a whole: what is written lies beside it as UUID.new until it is durable, and what an engine
// left there that was killed meanwhile goes when the namespace is stored next. cleatd removes the files of what is detached.
//
// Errors name the file, the cause and what to do. kDataLoss: the file is there and can't be right, so nobody knows whom to keep out.
//
// Owned by the process; outlives the target. Called on the control reactor; the file system is used on the pools' threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "nvmf_target/reservations/reservation_store.h"
#include "reactor/blocking.h"

namespace cleat::engine {

class ReservationFiles final : public nvmf_target::ReservationStore {
 public:
  static constexpr size_t kFileBytesMax = size_t{64} * 1024;
  static constexpr uint32_t kVersion = 1;

  // `folder` is made with the first file. `boot_id`: another one each time that the machine starts; empty: not known, and reservations that were
  // to end with a loss of power stay.
  // Hosts can have as much stored as they like (`storing`), and what is loaded is not to wait for that (`loading`).
  ReservationFiles(std::string folder, BlockingPool& loading, BlockingPool& storing, std::string boot_id)
      : folder_(std::move(folder)), loading_(loading), storing_(storing), boot_id_(std::move(boot_id)) {}

  Task<Result<nvme::target::Reservation>> Load(nvme::fabrics::Uuid namespace_uuid) override;
  Task<Status> Store(nvme::fabrics::Uuid namespace_uuid, nvme::target::Reservation reservation) override;

  // As the kernel says it.
  static Result<std::string> BootId();

 private:
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_;
  BlockingPool& loading_;
  BlockingPool& storing_;
  const std::string boot_id_;
};

// ---- A file's content. Pure.

// kInternal, for a reservation that no namespace can have.
Result<std::vector<uint8_t>> PackReservation(const nvme::target::Reservation& reservation,
                                             const std::string& boot_id);
// As it is for a machine with that boot id. kDataLoss, with the cause alone.
Result<nvme::target::Reservation> UnpackReservation(std::span<const uint8_t> bytes,
                                                    const std::string& boot_id);

}  // namespace cleat::engine
