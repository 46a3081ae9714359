// SPDX-License-Identifier: Apache-2.0
// The guests of a host whose engines are exchanged: one for each kind of device, ring and disk - files, memory, encrypted disks, and
// two whose own limits and whose VM's limit hold whatever engine serves them.
//
// Of the test's main thread. Host and rig, which has the guests, outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "crash_rig.h"
#include "host.h"

namespace cleat::system_test {

class UpgradeGuests {
 public:
  UpgradeGuests(Host& host, CrashRig& rig) : host_(host), rig_(rig) {}

  // All of them, and their group. The host has a key for keys.
  Status Add();

  // ---- Fail the test when it is not so.
  void ExpectAllOn(const std::string& engine);
  // Since then, while `engines` in turn began to serve them.
  void ExpectLimitsHeld(uint64_t since_ns, uint64_t engines);

 private:
  Status Add(const CrashCase& what);
  Status AddEncrypted(bool scsi);
  Status AddLimited(bool scsi);

  Host& host_;
  CrashRig& rig_;
  std::vector<size_t> limited_;  // of the rig's guests
};

}  // namespace cleat::system_test
