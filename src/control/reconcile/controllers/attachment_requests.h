// SPDX-License-Identifier: Apache-2.0
// Asks an engine to attach and to detach disks, and hands it the memory of memory disks. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/controller_requests.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/controllers/unclaimed_controllers.h"
#include "control/state/disks/memfd_keeper.h"

namespace cleat::control {

class AttachmentRequests {
 public:
  AttachmentRequests(const ReconcileContext& context, MemfdKeeper& memory, ControllerRequests& requests,
                     UnclaimedControllers& unclaimed, Reconcile& reconcile)
      : context_(context),
        memory_(memory),
        requests_(requests),
        unclaimed_(unclaimed),
        reconcile_(reconcile) {}

  void Attach(EngineView& engine, const std::string& controller, const AttachmentIntent& intent);
  void Detach(EngineView& engine, const std::string& controller, uint32_t target);
  // An engine needs the memory of a disk before it can attach the disk.
  void KeepMemory(EngineView& engine, const std::string& controller, const AttachmentIntent& intent);

 private:
  void OnAttached(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                  const engine::v1::Attachment& attachment);
  void OnNotAttached(EngineView& engine, ControllerView& view, const AttachmentKey& key, const Status& why);
  void OnDetached(EngineView& engine, ControllerView& view, uint32_t target);
  void OnNotDetached(EngineView& engine, ControllerView& view, const AttachmentKey& key, const Status& why);
  void OnMemoryKept(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                    const std::string& disk, uint64_t size_bytes, const Status& kept);

  const ReconcileContext& context_;
  MemfdKeeper& memory_;
  ControllerRequests& requests_;
  UnclaimedControllers& unclaimed_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
