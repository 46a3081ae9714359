// SPDX-License-Identifier: Apache-2.0
// All associations of a subsystem go from one process to the next.
//
// Giving away:  all I/O queues stop reading -> none's requests wait in the pipeline -> nothing is in the storage -> each is saved
// Taking:       what was in flight goes to the storage, from all queues -> all read on
//
// Between the arrows all queues, on all reactors, have done the one before they do the next: of two paths of a host neither is a step ahead, on which a
// newer write would overtake an older one (io/write_order.h).
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "nvmf_target/target_service.h"

namespace cleat::nvmf_target {

namespace {

constexpr uint64_t kAbortAgainNs = 50 * kNsPerMs;

}  // namespace

struct TargetService::KnownQueue {
  AdminQueue* association = nullptr;  // for as long as that one knows the queue
  uint16_t id = 0;
  std::shared_ptr<IoQueue> queue;
};

std::vector<AdminQueue*> TargetService::AssociationsOf(const std::string& nqn) const {
  std::vector<AdminQueue*> associations;
  for (const auto& [queue, connection] : connections_) {
    const nvme::target::TargetController* const controller = queue->controller();
    if (controller != nullptr && !controller->discovery() && controller->subsystem()->config().nqn == nqn)
      associations.push_back(queue);
  }
  return associations;
}

// Whether an association is about to be over.
bool TargetService::AnyEnds(const std::string& nqn) const {
  return std::ranges::any_of(AssociationsOf(nqn),
                             [](const AdminQueue* queue) { return queue->controller()->ending(); });
}

Task<void> TargetService::OnEach(const std::vector<KnownQueue>& queues,
                                 std::function<void(IoQueue&, size_t)> what) {
  Event all_done(control_);
  size_t left = queues.size();
  for (size_t i = 0; i < queues.size(); ++i) {
    queues[i].queue->Post([&, i] {
      what(*queues[i].queue, i);
      control_.PostCall([&] {
        if (--left == 0) all_done.Set();
      });
    });
  }
  if (left > 0) co_await all_done.Wait();
}

void TargetService::StartQueue(const nvme::target::TargetController& controller,
                               std::shared_ptr<IoQueue> queue) {
  Shown* const shown = ShownOf(controller);
  if (shown != nullptr && shown->starts_later) return shown->not_started.push_back(std::move(queue));
  queue->Post([queue] { queue->Start(); });
}

void TargetService::StartQueues(Shown& shown) {
  shown.starts_later = false;
  for (const std::shared_ptr<IoQueue>& queue : std::exchange(shown.not_started, {}))
    queue->Post([queue] { queue->Start(); });
}

// ---- The process that gives them away

Task<Result<std::vector<SavedAssociation>>> TargetService::HandOver(std::string nqn, uint64_t deadline_ns) {
  while (StartsLater(nqn)) (void)co_await changed_.Wait();
  Shown* const shown = Find(nqn);
  if (shown == nullptr || !shown->served) co_return std::vector<SavedAssociation>();
  target_.LetIn(nqn, false);
  shown->starts_later = true;
  std::vector<KnownQueue> queues;
  for (AdminQueue* const association : AssociationsOf(nqn)) {
    for (const auto& [id, queue] : association->queues()) queues.push_back({association, id, queue});
  }
  co_await OnEach(queues, [](IoQueue& queue, size_t) { queue.StopReading(); });
  if (!co_await BecomeQuiet(queues, deadline_ns)) {
    co_await OnEach(queues, [](IoQueue& queue, size_t) { queue.RunAgain(); });
    co_await OnEach(queues, [](IoQueue& queue, size_t) { queue.ReadOn(); });
    target_.LetIn(nqn, true);
    StartQueues(*shown);
    changed_.Pulse();
    co_return Error(ErrorCode::kDeadlineExceeded, nqn + ": requests of its hosts are still in the storage");
  }
  // A controller that was reset by another one ends here, so that its host hears of it: the next process does not know it. What takes too long
  // counts as failed there.
  const Deadline deadline(control_, changed_, deadline_ns);
  while (AnyEnds(nqn) && !deadline.passed()) (void)co_await changed_.Wait();
  std::vector<std::optional<SavedQueue>> saved(queues.size());
  co_await OnEach(queues, [&saved](IoQueue& queue, size_t i) { saved[i] = queue.Save(); });
  std::vector<SavedAssociation> associations = Part(nqn, queues, std::move(saved));
  StopListening(shown->config.addresses);
  shown->served = false;
  (void)target_.Remove(nqn);
  // Queues that have not begun are closed, with their associations.
  shown->not_started.clear();
  shown->starts_later = false;
  changed_.Pulse();
  while (AnyQueueOf(nqn)) (void)co_await changed_.Wait();
  co_await BecomeInaccessible(*shown);
  co_return associations;
}

// False: not by the deadline.
Task<bool> TargetService::BecomeQuiet(const std::vector<KnownQueue>& queues, uint64_t deadline_ns) {
  // Outlives this where some queue is quiet too late.
  const auto busy = std::make_shared<size_t>(queues.size());
  for (const KnownQueue& known : queues) {
    known.queue->Post([this, busy, queue = known.queue] {
      queue->Settle([this, busy] {
        --*busy;
        changed_.Pulse();
      });
    });
  }
  const Deadline deadline(control_, changed_, deadline_ns);
  while (*busy > 0 && !deadline.passed()) {
    // What began to wait within the storage's pipeline since is not waited for either.
    const Deadline look(control_, changed_, control_.now_ns() + kAbortAgainNs);
    while (*busy > 0 && !deadline.passed() && !look.passed()) (void)co_await changed_.Wait();
    for (const KnownQueue& known : queues)
      known.queue->Post([queue = known.queue] { queue->AbortQueuedAgain(); });
  }
  co_return *busy == 0;
}

std::vector<SavedAssociation> TargetService::Part(const std::string& nqn,
                                                  const std::vector<KnownQueue>& queues,
                                                  std::vector<std::optional<SavedQueue>> saved) {
  std::vector<SavedAssociation> associations;
  const std::vector<AdminQueue*> all = AssociationsOf(nqn);
  uint64_t bytes = 0;
  for (AdminQueue* const association : all) {
    std::vector<SavedQueue> of_association;
    for (size_t i = 0; i < queues.size(); ++i) {
      if (queues[i].association != association || !saved[i]) continue;
      saved[i]->id = queues[i].id;
      saved[i]->peer = association->TakeOut(queues[i].id);
      of_association.push_back(std::move(*saved[i]));
    }
    if (!association->may_leave()) {
      association->GiveUp({ErrorCode::kUnavailable, "the subsystem goes to another engine"});
      continue;
    }
    SavedAssociation leaves = association->Leave();
    Over(*association);
    std::ranges::move(of_association, std::back_inserter(leaves.queues));
    if (bytes + BytesOf(leaves) > kSavedBytesMax) continue;
    bytes += BytesOf(leaves);
    leaves.not_after_ns = control_.now_ns() + kTakeWithinNs;
    associations.push_back(std::move(leaves));
  }
  spdlog::info("{}: hands {} of {} associations of hosts over", Find(nqn)->name, associations.size(),
               all.size());
  return associations;
}

// ---- The process that takes them

void TargetService::Restore(const std::string& nqn, std::vector<SavedAssociation> associations) {
  Shown& shown = *Find(nqn);
  shown.starts_later = true;
  uint64_t bytes = 0, room = 0;
  size_t taken = 0;
  for (SavedAssociation& saved : associations) {
    const uint64_t more_bytes = BytesOf(saved), more_room = RoomOf(saved);
    const bool too_much = bytes + more_bytes > kSavedBytesMax || room + more_room > kSavedRoomMax;
    const Status restored =
        too_much ? Error(ErrorCode::kResourceExhausted, "more is handed over than there may be")
                 : RestoreOne(nqn, saved);
    if (restored.ok()) {
      ++taken;
      bytes += more_bytes;
      room += more_room;
    } else if (MayLog(refusals_, "are refused")) {
      spdlog::warn("{}: connections of {} were handed over and are closed: {}; it connects again", shown.name,
                   saved.controller.host_nqn, restored.error().message);
    }
  }
  spdlog::info("{}: goes on with {} associations of hosts that were handed over", shown.name, taken);
  Spawn(StartRestored(nqn));
}

Status TargetService::RestoreOne(const std::string& nqn, SavedAssociation& saved) {
  if (saved.queues.empty() || !saved.queues.front().socket.valid())
    return Error(ErrorCode::kInvalidArgument, "no admin queue");
  control_.RefreshNow();
  if (control_.now_ns() >= saved.not_after_ns)
    return Error(ErrorCode::kDeadlineExceeded, "they are too old to go on with");
  const std::string peer = TextOfAddress(saved.queues.front().peer);
  if (connections_.size() + io_queues_ + saved.queues.size() > kConnectionsMax)
    return Error(ErrorCode::kResourceExhausted, "there are too many connections");
  CLEAT_TRY(AdminQueue::Check(saved));
  std::vector<AdminQueue::Parts> parts(saved.queues.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    SavedQueue& of_queue = saved.queues[i];
    if (descriptors_ != nullptr) {
      CLEAT_ASSIGN(parts[i].descriptor, descriptors_->Reserve(1, peer));
    }
    parts[i].transport = std::make_unique<TargetStream>(of_queue, tuning_);
    parts[i].local = saved.controller.local;
    parts[i].peer = of_queue.peer;
  }
  AdminQueueHost& host = *this;
  auto queue = std::make_unique<AdminQueue>(host, std::move(parts.front()));
  parts.erase(parts.begin());
  CLEAT_TRY(queue->Restore(nqn, saved, std::move(parts)));
  AdminQueue& restored = *queue;
  connections_.emplace(&restored, std::move(queue));
  return Ok{};
}

Task<void> TargetService::StartRestored(std::string nqn) {
  std::vector<KnownQueue> queues;
  for (const std::shared_ptr<IoQueue>& queue : Find(nqn)->not_started) queues.push_back({.queue = queue});
  co_await OnEach(queues, [](IoQueue& queue, size_t) { queue.Open(); });
  // Hosts that have come while the subsystem stood by go on with the others.
  PostPathStatus(*Find(nqn), nvme::fabrics::AnaState::kOptimized);
  StartQueues(*Find(nqn));
  changed_.Pulse();
}

}  // namespace cleat::nvmf_target
