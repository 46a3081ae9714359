// SPDX-License-Identifier: Apache-2.0
// The Ceph clusters that cleatd made known, with their keys wrapped. What is open of one stays as it was opened. Control
// reactor; owned by the process, outlives the engine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/protocol/spec.h"

namespace cleat::engine {

class ClusterStore {
 public:
  // kInvalidArgument, kResourceExhausted.
  Status Put(const ClusterSpec& spec);
  void Drop(const std::string& name) { clusters_.erase(name); }
  const ClusterSpec* Find(const std::string& name) const;  // until the next Put or Drop
  std::vector<ClusterSpec> Report() const;

 private:
  std::map<std::string, ClusterSpec> clusters_;
};

}  // namespace cleat::engine
