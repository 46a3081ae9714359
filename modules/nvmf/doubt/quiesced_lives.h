// SPDX-License-Identifier: Apache-2.0
// Lives that are proved dead by time, of targets that promise it: a controller that has lost contact with its host executes nothing of it any
// more once its keep alive timeout and then its Command Quiesce Time are over (base specification 2.1, 9.6; Proof::kTimeElapsed).
//
// A controller counts its timeout from the last sign of life that it has received, which may have been on its way when the connection
// died; and where any command counts as one it looks only once in each timeout whether there was one (2.1, 3.9.2). So the timeout counts
// twice, or three times, from the moment on in which nothing can be sent any more for the life.
//
// Plain state with the time passed in. Ownership: the disk's core owns it, on the control reactor. Limits: of kOwnMax lives it knows that
// they were this engine's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/host/association.h"
#include "nvme/host/doubt/doubt.h"

namespace cleat::modules {

class QuiescedLives {
 public:
  static constexpr size_t kOwnMax = 256;

  // `paths`: how many the disk has.
  explicit QuiescedLives(size_t paths) : waits_ns_(paths) {}

  // A life has begun by the path; `info` is its controller's.
  void Began(uint32_t path, nvme::host::LifeId life, const nvme::host::AssociationInfo& info);
  // All lives that have left something in doubt, of none of which anything can be sent any more.
  void SetInDoubt(std::span<const nvme::host::LifeId> lives, uint64_t now_ns);

  // The lives whose time is over.
  std::vector<nvme::host::LifeId> Due(uint64_t now_ns) const;
  // When the next one's is; nullopt: nobody's, as far as is known.
  std::optional<uint64_t> next_ns() const;
  // Why nothing that is in doubt will be proved, for people; empty: it will, or nothing is.
  std::string WhyNotProved() const;

 private:
  // How long after its end a life is over; nullopt: that is not known.
  std::optional<uint64_t> WaitNs(nvme::host::LifeId life) const;

  std::vector<std::optional<uint64_t>> waits_ns_;  // by path, the longest of its controllers
  std::string silent_;                             // a controller that gave no time
  std::deque<nvme::host::LifeId> own_;
  std::map<nvme::host::LifeId, uint64_t> in_doubt_;  // since when
};

}  // namespace cleat::modules
