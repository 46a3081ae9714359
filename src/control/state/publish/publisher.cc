// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/publisher.h"

#include <utility>

#include "base/log.h"

namespace cleat::control {
namespace {

// Status changes take revisions too and aren't stored one by one, so they are reserved in blocks; a restart
// goes on with the next block.
constexpr uint64_t kRevisionsPerBlock = 1'000'000;

}  // namespace

Status Publisher::Start() {
  CLEAT_ASSIGN(auto first, store_.ReserveRevisions(kRevisionsPerBlock));
  revision_ = first - 1;
  revisions_until_ = first + kRevisionsPerBlock;
  return Ok{};
}

void Publisher::StartHistory() {
  ++revision_;
  newest_published_ = revision_;
  hub_.StartHistory(revision_);
}

uint64_t Publisher::NextRevision() {
  if (++revision_ < revisions_until_) return revision_;
  auto first = store_.ReserveRevisions(kRevisionsPerBlock);
  if (first.ok()) {
    revision_ = *first;
    revisions_until_ = *first + kRevisionsPerBlock;
  } else {
    // Going on is better than stopping: the store's next successful write reserves again, and no other
    // process hands out revisions meanwhile.
    spdlog::error(
        "revisions: none reserved: {}; the next write that succeeds reserves some: see to the store's file "
        "system",
        first.error().message);
  }
  return revision_;
}

std::shared_ptr<v1::WatchResponse> Publisher::NewEvent(uint64_t revision) {
  auto event = std::make_shared<Event>();
  event->set_revision(revision);
  return event;
}

void Publisher::Tell(const WatchEvent& event) {
  newest_published_ = event->revision();
  hub_.Publish(event);
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
  for (const auto& [id, entry] : tables_.disks) add(entry);
  for (const auto& [id, entry] : tables_.groups) add(entry);
  for (const auto& [id, entry] : tables_.controllers) {
    add(entry);
    for (const auto& [attachment_id, attachment] : entry.attachments) add(attachment);
  }
  return snapshot;
}

Result<std::shared_ptr<Watcher>> Publisher::Watch(uint64_t start_revision) {
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

void Publisher::PathsChanged() {
  changed_.paths = true;
  wake_();
}

}  // namespace cleat::control
