// SPDX-License-Identifier: Apache-2.0
// Upgrades of a host's engines as whoever is in charge of it asks for them: from the one that has the controllers to the
// other one, and with the next call back again; plainly, or with one of the three processes killed in the middle of it.
//
// Of the test's main thread, as the host's processes are. The host outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/random.h"
#include "host.h"

namespace cleat::system_test {

class UpgradeRig {
 public:
  // Of the longest upgrade that a test waits for: far above what it takes.
  static constexpr uint64_t kUpgradeTimeoutNs = 180 * kNsPerSecond;
  // A machine that is busy with other things may keep a disk waiting for many seconds; that is no reason to stay here.
  static constexpr int64_t kDrainSeconds = 60;

  // Both engines run, and `from` has the controllers.
  UpgradeRig(Host& host, std::string from, std::string to, uint64_t seed)
      : host_(host), random_(seed), from_(std::move(from)), to_(std::move(to)) {}

  // Each says what went wrong; "" when nothing did. Then from() and to() have changed places.
  std::string Upgrade();
  // Somebody dies at some moment of it and comes back; it is asked for again until it is done.
  std::string UpgradeWithDeath();

  // ---- Steps. Requests in flight get so many seconds to end, before their controller stays.
  std::string Begin(int64_t drain_s = kDrainSeconds);
  // Until it is over, however it ends: as it was told then.
  v1::UpgradeStatus WaitEnd();
  std::string WaitDone();
  void ChangePlaces() { std::swap(from_, to_); }

  const std::string& from() const { return from_; }  // has the controllers
  const std::string& to() const { return to_; }
  uint64_t deaths() const { return deaths_; }
  v1::EngineStatus StatusOf(const std::string& id);
  // Until that engine has so many controllers ready to take. Says what went wrong; "" when nothing did.
  std::string WaitStandingBy(const std::string& id, uint64_t controllers);

 private:
  void KillSomebody();

  Host& host_;
  Random random_;
  std::string from_;
  std::string to_;
  uint64_t deaths_ = 0;
};

}  // namespace cleat::system_test
