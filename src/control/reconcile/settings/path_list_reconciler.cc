// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/settings/path_list_reconciler.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"

namespace cleat::control {

void PathListReconciler::AskRead(EngineView& engine) {
  if (engine.info.protocol < kProtocolPathLists) return;
  engine::v1::Envelope envelope;
  envelope.mutable_read_path_lists();
  context_.requests.Ask(engine, std::move(envelope), {},
                        [this](EngineView& answered, const engine::v1::Reply& reply, const UniqueFd&) {
                          const std::string& id = answered.info.id;
                          if (!reply.ok())
                            spdlog::error(
                                "{}: path lists not read again: {}; the former ones stay in force there",
                                EngineName(id), reply.message());
                          const std::string difference = context_.state.engines().PathDifferenceOf(id);
                          if (!difference.empty())
                            spdlog::warn("{}: path lists differ: {}", EngineName(id), difference);
                        });
}

void PathListReconciler::AskReadEverywhere() {
  for (auto& [peer, engine] : context_.engines.all()) AskRead(engine);
}

}  // namespace cleat::control
