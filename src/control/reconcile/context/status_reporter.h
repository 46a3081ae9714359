// SPDX-License-Identifier: Apache-2.0
// Tells HostState what is: engines, and what they have, as the views say. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "control/link/engine_link.h"
#include "control/reconcile/context/context.h"

namespace cleat::control {

class StatusReporter {
 public:
  explicit StatusReporter(const ReconcileContext& context) : context_(context) {}

  void ReportEngine(const EngineInfo& info, bool connected, const std::string& message);
  // The engine has just said what it has; its view says the same.
  void ReportInventory(const EngineView& engine, const engine::v1::Inventory& inventory);
  // The controller and its attachments, as the engine has them.
  void ReportView(const EngineView& engine, const std::string& controller);
  // The engine is not connected, so that it is unknown what it does about the controller, or it has died.
  void ReportUnknown(const std::string& engine, const std::string& controller);
  // The controller of that engine, and its attachments, wait; `why`, for people.
  void ReportPending(const std::string& engine, const std::string& controller, const std::string& why);
  // The disk's open attachments there, with that message.
  void ReportAttachments(const EngineView& engine, const std::string& disk, const std::string& message);
  // Reports to people how many controllers stand by on each engine, where that may have changed and not more often than every 100 ms.
  // Returns when to call it again.
  uint64_t CountStandbys(uint64_t now_ns);

 private:
  static void NoteNotAnswering(const EngineView& engine, v1::EngineStatus& status);
  // Puts unclaimed controllers into the status, and returns a message about those that the store does not know.
  std::string NoteUnclaimed(const EngineView& engine, v1::EngineStatus& status);

  const ReconcileContext& context_;
  uint64_t recount_ns_ = 0;  // not before then
};

}  // namespace cleat::control
