// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/publisher.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/model/reasons.h"
#include "control/store/sqlite_row.h"

namespace cleat::control {
namespace {

// Status changes take revisions too and aren't stored one by one, so they are reserved in blocks; a restart
// goes on with the next block.
constexpr uint64_t kRevisionsPerBlock = 1'000'000;

}  // namespace

Status Publisher::Start() {
  Status reserved = Reserve();
  if (reserved.ok() || !IsUnwritable(reserved.error())) return reserved;
  CLEAT_ASSIGN(const uint64_t next, store_.NextRevision());
  // Nothing was ever made in that store.
  if (next <= 1) return reserved;
  // The last one that former processes may have given. StartHistory adds one.
  revision_ = next - 2;
  stands_still_ = true;
  return Ok{};
}

Status Publisher::Reserve() {
  CLEAT_ASSIGN(const uint64_t first, store_.ReserveRevisions(kRevisionsPerBlock));
  revision_ = first - 1;
  revisions_until_ = first + kRevisionsPerBlock;
  return Ok{};
}

void Publisher::StartHistory() {
  ++revision_;
  newest_published_ = revision_;
  hub_.StartHistory(revision_);
}

Status Publisher::GoOn() {
  CLEAT_TRY(Reserve());
  stands_still_ = false;
  StartHistory();
  return Ok{};
}

uint64_t Publisher::NextRevision() {
  if (stands_still_ || revision_ + 1 < revisions_until_) return stands_still_ ? revision_ : ++revision_;
  if (const Status reserved = Reserve(); !reserved.ok()) {
    spdlog::error(
        "revisions: stand still: none reserved: {}; they rise again with the first write that succeeds",
        reserved.error().message);
    stands_still_ = true;
    return revision_;
  }
  return ++revision_;
}

std::shared_ptr<v1::WatchResponse> Publisher::NewEvent(uint64_t revision) {
  auto event = std::make_shared<Event>();
  event->set_revision(revision);
  return event;
}

void Publisher::Tell(const WatchEvent& event) {
  newest_published_ = event->revision();
  hub_.Publish(event, stands_still_ ? WatchHub::History::kForget : WatchHub::History::kRemember);
  published_.NotifyAll();
}

void Publisher::PublishGone(const std::string& name) {
  auto event = NewEvent(NextRevision());
  event->set_gone(name);
  Tell(event);
}

std::vector<WatchEvent> Publisher::Snapshot() const {
  std::vector<WatchEvent> snapshot;
  const auto add = [&](const auto& entry) CLEAT_REQUIRES(holds_state) { snapshot.push_back(EventOf(entry)); };
  for (const auto& [id, entry] : tables_.engines) add(entry);
  for (const auto& [id, entry] : tables_.clusters) add(entry);
  for (const auto& [id, entry] : tables_.subsystems) add(entry);
  for (const auto& [id, entry] : tables_.pools) add(entry);
  for (const auto& [id, entry] : tables_.disks) add(entry);
  for (const auto& [id, entry] : tables_.groups) add(entry);
  for (const auto& [id, entry] : tables_.controllers) {
    add(entry);
    for (const auto& [attachment_id, attachment] : entry.attachments) add(attachment);
  }
  return snapshot;
}

Result<std::shared_ptr<Watcher>> Publisher::Watch(uint64_t start_revision) {
  if (stands_still_ && start_revision != 0) {
    return Refuse(
        v1::REASON_WATCH_REVISION_GONE,
        fmt::format(
            "start_revision is {}: what changed since is not known: revisions stand still at {} until "
            "cleatd's store can be written: watch from 0, for a snapshot",
            start_revision, revision_));
  }
  CLEAT_ASSIGN(auto first, start_revision == 0 ? Result<std::vector<WatchEvent>>(Snapshot())
                                               : hub_.Since(start_revision));
  auto synced = NewEvent(newest_published_);
  synced->mutable_synced();
  first.push_back(std::move(synced));
  return hub_.Subscribe(std::move(first));
}

void Publisher::Stop() {
  published_.NotifyAll();
  hub_.Stop();
}

void Publisher::Mark(std::set<std::string>& ids, const std::string& id) {
  ids.insert(id);
  wake_();
}

void Publisher::UpgradeChanged() {
  changed_.upgrade = true;
  wake_();
}

void Publisher::EngineForgotten(const std::string& id, uint64_t incarnation) {
  changed_.forgotten[id] = incarnation;
  wake_();
}

void Publisher::DiscoveryAsked() {
  changed_.discoveries = true;
  wake_();
}

void Publisher::PathsChanged() {
  changed_.paths = true;
  wake_();
}

}  // namespace cleat::control
