// SPDX-License-Identifier: Apache-2.0
// Which key-encryption keys it takes to open the keys that a store holds. A pure function, any thread.
#pragma once

#include <map>
#include <string>

#include "control/model/model.h"

namespace cleat::control {

// By the id of the key-encryption key: the name of one of the objects whose key it wraps.
std::map<std::string, std::string> KeysNeeded(const Rows& rows);

}  // namespace cleat::control
