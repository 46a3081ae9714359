// SPDX-License-Identifier: Apache-2.0
// A disk under the store whose syncs take as long as a test wants: fdatasync of this program, which SQLite calls for each commit. The first
// one that comes waits, and with it all that share the store, until it is released.
#pragma once

#include <cstddef>

namespace cleat::control {

class HeldSyncs {
 public:
  HeldSyncs();
  ~HeldSyncs();  // releases
  HeldSyncs(const HeldSyncs&) = delete;
  HeldSyncs& operator=(const HeldSyncs&) = delete;

  // Until a sync waits; false when none has come for a long while.
  static bool AwaitHeld();
  static void Release();
  // Since the program began.
  static size_t count();
};

}  // namespace cleat::control
