// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/settings/cluster_reconciler.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

uint64_t RevisionKnown(const EngineView& engine, const std::string& cluster) {
  const auto known = engine.clusters.find(cluster);
  return known == engine.clusters.end() ? 0 : known->second;
}

// The attachment needs the cluster, is not there, and was not asked for.
bool WaitsFor(const AttachmentIntent& attachment, const std::string& cluster, const ControllerView& view) {
  const uint32_t target = attachment.row.spec.target();
  return ClusterOf(attachment.disk.spec) == ClusterName(cluster) && !attachment.row.deleting &&
         !view.attachments.contains(target) && !view.targets.IsBusy(target);
}

}  // namespace

ClusterStep PlanCluster(const EngineView& engine, const std::string& cluster,
                        const std::optional<ClusterRow>& row, bool used, uint64_t now_ns) {
  if (engine.foreign || engine.cluster_requests.IsBusy(ClusterId{cluster})) return ClusterStep::kNothing;
  const auto known = engine.clusters.find(cluster);
  const bool there = known != engine.clusters.end();
  if (!there && (!row || !used)) return ClusterStep::kNothing;
  if (there && row && known->second >= row->spec_revision) return ClusterStep::kReport;
  if (!engine.cluster_requests.Ready(ClusterId{cluster}, now_ns)) return ClusterStep::kNothing;
  if (row) return ClusterStep::kPut;
  return UsesClusterUnclaimed(engine, cluster) ? ClusterStep::kNothing : ClusterStep::kDrop;
}

void ClusterReconciler::ReconcileEverywhere(const std::string& cluster) {
  for (auto& [peer, engine] : context_.engines.all()) ReconcileOn(engine, cluster);
}

void ClusterReconciler::ReconcileAllOn(EngineView& engine) {
  std::set<std::string> clusters;
  for (const auto& [cluster, revision] : engine.clusters) clusters.insert(cluster);
  for (std::string& cluster : context_.state.clusters().On(engine.info.id))
    clusters.insert(std::move(cluster));
  for (const std::string& cluster : clusters) ReconcileOn(engine, cluster);
}

void ClusterReconciler::ReconcileOn(EngineView& engine, const std::string& cluster) {
  const log::RequestScope request(context_.LastRequest(ClusterName(cluster)));
  HostState& state = context_.state;
  const std::optional<ClusterRow> row = state.clusters().Row(cluster);
  const bool used =
      engine.clusters.contains(cluster) || (row && state.clusters().IsUsedOn(engine.info.id, cluster));
  switch (PlanCluster(engine, cluster, row, used, context_.now_ns())) {
    case ClusterStep::kNothing:
      return;
    case ClusterStep::kDrop:
      return AskDrop(engine, cluster);
    case ClusterStep::kPut:
      return AskPut(engine, *row);
    case ClusterStep::kReport:
      return state.clusters().Report(engine.info.id, cluster,
                                     ClusterReport{.spec_revision = RevisionKnown(engine, cluster)});
  }
}

void ClusterReconciler::AskPut(EngineView& engine, const ClusterRow& row) {
  engine::v1::Envelope envelope;
  *envelope.mutable_put_cluster()->mutable_cluster() = ToEngine(row);
  Ask(engine, row.id, std::move(envelope),
      [this, id = row.id, revision = row.spec_revision](EngineView& answered) {
        answered.clusters[id] = revision;
        context_.state.clusters().Report(answered.info.id, id, ClusterReport{.spec_revision = revision});
        for (const std::string& controller : context_.state.clusters().Controllers(id))
          reconcile_.ControllerOn(answered, controller);
      });
}

void ClusterReconciler::AskDrop(EngineView& engine, const std::string& cluster) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_cluster()->set_name(ClusterName(cluster));
  Ask(engine, cluster, std::move(envelope), [this, cluster](EngineView& answered) {
    answered.clusters.erase(cluster);
    context_.state.clusters().Report(answered.info.id, cluster, std::nullopt);
  });
}

void ClusterReconciler::Ask(EngineView& engine, const std::string& cluster, engine::v1::Envelope envelope,
                            std::function<void(EngineView&)> done) {
  context_.requests.AskOnce<ClusterId>(
      engine, &EngineView::cluster_requests, ClusterId{cluster}, std::move(envelope),
      [this, cluster, done = std::move(done)](EngineView& answered, const EngineRequests::Outcome& outcome) {
        if (outcome.status.ok()) {
          done(answered);
        } else {
          OnFailed(answered, cluster, outcome);
        }
        ReconcileOn(answered, cluster);
      });
}

void ClusterReconciler::OnFailed(EngineView& engine, const std::string& cluster,
                                 const EngineRequests::Outcome& outcome) {
  const std::string& why = outcome.status.error().message;
  spdlog::warn("{}: settings not applied on {}: {}; tried again in {:.3g} s", ClusterName(cluster),
               EngineName(engine.info.id), why, outcome.retry_s);
  context_.state.clusters().Report(
      engine.info.id, cluster,
      ClusterReport{.spec_revision = RevisionKnown(engine, cluster),
                    .message = fmt::format("{} (tried again in {:.3g} s)", why, outcome.retry_s)});
  FailWaiting(engine, cluster, outcome.status);
}

void ClusterReconciler::FailWaiting(EngineView& engine, const std::string& cluster, const Status& why) {
  for (const std::string& controller : context_.state.clusters().Controllers(cluster)) {
    const auto found = engine.controllers.find(controller);
    if (found == engine.controllers.end()) continue;
    ControllerView& view = found->second;
    const ControllerIntent intent = context_.state.controllers().IntentOf(controller);
    for (const AttachmentIntent& attachment : intent.attachments) {
      if (!WaitsFor(attachment, cluster, view)) continue;
      controllers_.FailAttachment(engine, view,
                                  {controller, attachment.row.spec.target(), attachment.row.revision}, why);
    }
    reconcile_.ControllerOn(engine, controller);
  }
}

}  // namespace cleat::control
