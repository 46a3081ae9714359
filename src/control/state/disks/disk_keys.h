// SPDX-License-Identifier: Apache-2.0
// The keys of all disks, deleted ones that are kept included: compared, and wrapped anew. Any thread; what needs the state's mutex says so.
#pragma once

#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/disks/disk_storages.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class DiskKeys {
 public:
  // All outlive it.
  DiskKeys(StateCore& core, const SpecKeys& keys, DiskStorages& storages)
      : core_(core), keys_(keys), storages_(storages) {}

  // For ApplyHost: OK when the spec has no key, or the disk's own.
  Status CheckSameKey(const std::string& id, const v1::DiskSpec& spec);
  // Wraps all keys that are under another key-encryption key under the current one. What can't be unwrapped is logged and left as it is. No
  // engine hears of it: what it has of attached disks stays good.
  Status RewrapKeys();

 private:
  // The names of all disks that may have a key, and of those that are on their way into a table or from one to the other: what is written
  // of them before is under the former key-encryption key.
  WriteNames NamesOfKeys() const CLEAT_REQUIRES(holds_state);
  void SetRewrapped(RowChange& changed) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const SpecKeys& keys_;
  DiskStorages& storages_;
};

}  // namespace cleat::control
