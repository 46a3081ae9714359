// SPDX-License-Identifier: Apache-2.0
// Requests about a controller or about one of its targets, one at a time for each. A failure leaves a back-off, and its reason in the
// status. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"

namespace cleat::control {

class ControllerRequests {
 public:
  ControllerRequests(const ReconcileContext& context, Reconcile& reconcile)
      : context_(context), reconcile_(reconcile) {}

  using Done = std::function<void(EngineView&, ControllerView&, const engine::v1::Reply&)>;
  using DoneWithFd = std::function<void(EngineView&, ControllerView&, const engine::v1::Reply&, UniqueFd)>;
  struct Request {
    engine::v1::Envelope envelope;
    std::vector<UniqueFd> fds = {};
    std::optional<uint32_t> target = std::nullopt;  // nothing: about the controller itself
  };
  // `done` is called with the answer, and then the controller is reconciled.
  void Ask(EngineView& engine, const std::string& controller, Request request, Done done);
  // The same, and `done` gets the descriptor that came with the answer, or an invalid one.
  void AskForFd(EngineView& engine, const std::string& controller, Request request, DoneWithFd done);

  // `what` completes "CONTROLLER can't be ...".
  void FailController(EngineView& engine, ControllerView& view, const std::string& controller,
                      const std::string& request, const Status& why);
  void FailAttachment(EngineView& engine, ControllerView& view, const AttachmentKey& key, const Status& why);

 private:
  const ReconcileContext& context_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
