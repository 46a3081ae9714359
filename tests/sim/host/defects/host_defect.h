// SPDX-License-Identifier: Apache-2.0
// Defects of cleatd that its negative controls plant: this program has sources of its own in place of those of src/control that do it right.
#pragma once

#include <cstdint>

namespace cleat::sim {

enum class HostDefect : uint8_t {
  kNone,
  kForgetRequest,      // an answer of an engine is lost within cleatd: the request is pending for ever
  kShownBeforeStored,  // a change is shown, acknowledged and told to engines, and stored with the next one
  kToldBeforeStored,   // the same, but for its answer, which comes when it is stored
  kTwoChangesSwapped,  // two changes of one disk are stored in another order than they are shown
};

extern HostDefect planted;  // set between runs

// On a simulated thread, with kToldBeforeStored: stores what is held back, before a call is answered. False: not all is stored.
bool StoreWhatIsHeldBack();

}  // namespace cleat::sim
