// SPDX-License-Identifier: Apache-2.0
// The objects of a request that have a plain key: refused when it came over the network, overwritten when the call is over. The request
// is gRPC's own, made for this call, and const only by the signature. A call's thread.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/callers/access.h"
#include "control/model/reasons.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {

class PlainKeys {
 public:
  PlainKeys() = default;
  template <typename Object>
  explicit PlainKeys(Object* object) {
    Add(object);
  }
  explicit PlainKeys(v1::DiscoverSubsystemsRequest* request) : field_(PlainKeyIn(*request)) {
    wipes_.emplace_back([request] { WipePlainKey(request); });
  }
  ~PlainKeys() {
    for (const auto& wipe : wipes_) wipe();
  }
  PlainKeys(const PlainKeys&) = delete;
  PlainKeys& operator=(const PlainKeys&) = delete;

  // A disk, cluster, subsystem or controller.
  template <typename Object>
  void Add(Object* object) {
    std::string field = PlainKeyIn(object->spec());
    if (field.empty()) return;
    if (field_.empty()) field_ = std::move(field);
    wipes_.emplace_back([object] { WipePlainKey(object->mutable_spec()); });
  }
  template <typename Objects>
  void AddAll(Objects* objects) {
    for (auto& object : *objects) Add(&object);
  }
  Status Check(const Caller& caller) const {
    if (field_.empty() || caller.kind == Caller::Kind::kLocal) return Ok{};
    return Refuse(v1::REASON_PLAIN_KEY_NOT_LOCAL,
                  "a plain key is only taken over the unix socket: send it there, or wrap it under cleatd's "
                  "key-encryption key. It has been on the network: don't use it any more",
                  {{"field", field_}});
  }

 private:
  std::string field_;  // of the first
  std::vector<std::function<void()>> wipes_;
};

}  // namespace cleat::control
