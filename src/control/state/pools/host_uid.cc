// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/host_uid.h"

#include <fstream>
#include <string>

namespace cleat::control {

const pool::Uid& HostUid() {
  static const pool::Uid uid = [] {
    std::ifstream file("/etc/machine-id");
    std::string text;
    file >> text;
    return pool::UidOf(text).value_or(pool::Uid());
  }();
  return uid;
}

}  // namespace cleat::control
