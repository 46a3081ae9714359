// SPDX-License-Identifier: Apache-2.0
// Disks of a pool that come and go beside those under load, so that extents change hands: made, found to be zeroes, written, found to be as
// they were written, and purged. Of the test's main thread, while nobody is killed; the host outlives them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/system/host.h"
#include "tests/system/peer.h"

namespace cleat::nvme_soak {

class Tenants {
 public:
  Tenants(system_test::Host& host, std::string pool, uint64_t extent_bytes, uint64_t seed)
      : host_(host), pool_(std::move(pool)), extent_bytes_(extent_bytes), random_(seed) {}

  // One is made, or the oldest is looked at and purged. Its extents may still be erased when this returns.
  void Step();
  // Of as many extents; false where there is no room.
  bool Make(uint64_t extents);
  void PurgeOldest();
  bool empty() const { return present_.empty(); }

  uint64_t made() const { return made_; }
  uint64_t purged() const { return purged_; }
  uint64_t foreign() const { return foreign_; }  // pieces of new disks that were not zeroes
  // What was wrong, of the foreign pieces the first few.
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  struct Tenant {
    uint64_t number = 0;
    uint64_t extents = 0;
    std::string id() const { return "t" + std::to_string(number); }
  };

  enum class Visit : uint8_t { kNew, kLast };
  void Look(const Tenant& tenant, Visit visit);
  Status ReadAndWrite(system_test::Peer& peer, const Tenant& tenant, Visit visit);
  // What a tenant writes to a piece of its disk.
  static std::vector<uint8_t> PieceOf(const Tenant& tenant, uint64_t at);
  // Says it again while the pool is not ready. False when there is no room.
  template <typename Call>
  bool Insist(const std::string& what, Call call);
  void Find(std::string what);

  system_test::Host& host_;
  const std::string pool_;
  const uint64_t extent_bytes_;
  Random random_;
  std::deque<Tenant> present_;
  uint64_t made_ = 0;
  uint64_t purged_ = 0;
  uint64_t foreign_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace cleat::nvme_soak
