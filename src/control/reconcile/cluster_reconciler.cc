// SPDX-License-Identifier: Apache-2.0
// Clusters: an engine knows those of whose disks it has, or is to have, with the present spec. A cluster comes before its
// first disk and goes when it is deleted, by when it has no disk any more.
//
//   wanted or there, not there or older   PutCluster
//   there, deleted                        DropCluster
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {

void Reconciler::LookAtCluster(const std::string& cluster) {
  for (auto& [peer, engine] : engines_) LookAtCluster(engine, cluster);
}

void Reconciler::LookAtClusters(EngineView& engine) {
  std::set<std::string> clusters;
  for (const auto& [cluster, revision] : engine.clusters) clusters.insert(cluster);
  for (std::string& cluster : state_.ClustersOn(engine.info.id)) clusters.insert(std::move(cluster));
  for (const std::string& cluster : clusters) LookAtCluster(engine, cluster);
}

void Reconciler::LookAtCluster(EngineView& engine, const std::string& cluster) {
  if (engine.foreign || engine.cluster_busy.contains(cluster)) return;
  const std::optional<ClusterRow> row = state_.ClusterById(cluster);
  const auto known = engine.clusters.find(cluster);
  const bool there = known != engine.clusters.end();
  if (!there && (!row || !state_.UsesCluster(engine.info.id, cluster))) return;
  if (there && row && known->second >= row->spec_revision) {
    return state_.ReportCluster(engine.info.id, cluster, ClusterReport{.spec_revision = known->second});
  }
  if (const auto work = engine.cluster_work.find(cluster);
      work != engine.cluster_work.end() && clock_.NowNs() < work->second.not_before_ns) {
    return;
  }
  if (row) return AskPutCluster(engine, *row);
  if (UsesClusterAlone(engine, cluster)) return;
  AskDropCluster(engine, cluster);
}

void Reconciler::AskPutCluster(EngineView& engine, const ClusterRow& row) {
  engine::v1::Envelope envelope;
  *envelope.mutable_put_cluster()->mutable_cluster() = ToEngine(row);
  AskAboutCluster(engine, row.id, std::move(envelope),
                  [this, id = row.id, revision = row.spec_revision](EngineView& answered) {
                    answered.clusters[id] = revision;
                    state_.ReportCluster(answered.info.id, id, ClusterReport{.spec_revision = revision});
                    for (const std::string& controller : state_.ControllersOfCluster(id))
                      LookAt(answered, controller);
                  });
}

void Reconciler::AskDropCluster(EngineView& engine, const std::string& cluster) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_cluster()->set_name(ClusterName(cluster));
  AskAboutCluster(engine, cluster, std::move(envelope), [this, cluster](EngineView& answered) {
    answered.clusters.erase(cluster);
    state_.ReportCluster(answered.info.id, cluster, std::nullopt);
  });
}

void Reconciler::AskAboutCluster(EngineView& engine, const std::string& cluster,
                                 engine::v1::Envelope envelope, std::function<void(EngineView&)> done) {
  engine.cluster_busy.insert(cluster);
  const PeerId peer = engine.info.peer;
  link_.Request(
      peer, std::move(envelope), {},
      [this, peer, cluster, done = std::move(done)](const engine::v1::Reply& reply, const UniqueFd&) {
        EngineView& answered = *Find(peer);
        answered.cluster_busy.erase(cluster);
        if (const Status status = FromEngine(reply); status.ok()) {
          answered.cluster_work.erase(cluster);
          done(answered);
        } else {
          const double wait_s = Fail(answered.cluster_work[cluster],
                                     {.controller = {}, .disk = {}, .group = {}, .cluster = cluster});
          spdlog::warn("{}: {}: {}", EngineName(answered.info.id), ClusterName(cluster),
                       status.error().message);
          const auto known = answered.clusters.find(cluster);
          state_.ReportCluster(
              answered.info.id, cluster,
              ClusterReport{
                  .spec_revision = known == answered.clusters.end() ? 0 : known->second,
                  .message = fmt::format("{} (tried again in {:.3g} s)", status.error().message, wait_s)});
          FailWaiting(answered, cluster, status);
        }
        LookAtCluster(answered, cluster);
      });
}

// The disks that can't be attached without it.
void Reconciler::FailWaiting(EngineView& engine, const std::string& cluster, const Status& why) {
  for (const std::string& controller : state_.ControllersOfCluster(cluster)) {
    const auto found = engine.controllers.find(controller);
    if (found == engine.controllers.end()) continue;
    ControllerView& view = found->second;
    const ControllerIntent intent = state_.IntentOf(controller);
    for (const AttachmentIntent& attachment : intent.attachments) {
      const uint32_t target = attachment.row.spec.target();
      const bool waits = attachment.disk.spec.rbd().cluster() == ClusterName(cluster) &&
                         !attachment.row.deleting && !view.attachments.contains(target) &&
                         !view.targets_busy.contains(target);
      if (waits) FailAttachment(engine, view, {controller, target, attachment.row.revision}, why);
    }
    LookAt(engine, controller);
  }
}

}  // namespace cleat::control
