// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "keys/ceph_key.h"
#include "modules/rbd/rbd_cluster.h"

namespace cleat::test {

// What a keyring has, as ClusterOptions take it.
inline modules::ClusterKey ClusterKeyOf(const std::string& base64) {
  return modules::ClusterKey(keys::DecodeCephKey(base64).value());
}

}  // namespace cleat::test
