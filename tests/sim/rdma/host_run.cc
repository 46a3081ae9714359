// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/host_run.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvme/rdma_host/host_queue.h"
#include "tests/sim/rdma/guest_model.h"
#include "tests/sim/rdma/remote_target.h"

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::DataBuffers;
using nvme::rdma_host::HostAdapter;
using nvme::rdma_host::HostQueue;

constexpr uint32_t kPlaces = 3;          // connections at a time, at most
constexpr uint32_t kConnectionsMax = 6;  // in all
constexpr uint32_t kCompletionsMax = 512;
constexpr uint64_t kTimeMaxNs = 200'000'000;
constexpr uint64_t kGoodMaxNs =
    30'000'000;  // that the commands of a guest with a good controller take, at most
constexpr uint64_t kPatienceNs = 1'000'000;  // until the guest gives a controller up that is none
constexpr uint64_t kFlushMaxNs = 10'000;     // that the maker waits for a flush
constexpr uint32_t kSlotKey = 7;
constexpr uint32_t kDataKey = 8;

// Whether a queue may end so whose controller keeps all rules.
bool EndsGoodTargets(const std::string& reason) {
  static constexpr const char* kReasons[] = {"the guest is done", "given up", "another queue has ended",
                                             "the adapter takes no more works"};
  return std::any_of(std::begin(kReasons), std::end(kReasons),
                     [&](const char* one) { return reason.find(one) != std::string::npos; });
}

struct Connection {
  std::unique_ptr<GuestModel> guest;
  std::unique_ptr<RemoteTarget> target;
  std::unique_ptr<InitiatorPair> pair;
  std::unique_ptr<HostQueue> queue;
  uint64_t began_ns = 0;
  uint64_t ended_ns = 0;
};

class HostRun {
 public:
  HostRun(uint64_t seed, InitiatorDefect adapter_defect, HostDefect host_defect);
  HostOutcome Go();

 private:
  ModelWindow* MakeWindow();
  void Connect(uint32_t place);
  void Turn();
  bool TearDown(Connection& connection);
  void Destroy(Connection& connection);
  void CheckAllBack();
  bool all_over() const {
    return std::all_of(places_.begin(), places_.end(), [](const Connection* c) { return c == nullptr; });
  }

  ModelWorld world_;
  const HostDefect defect_;
  // What windows keep out is tried more than all else, where they do not.
  const bool only_late_;
  const uint32_t commands_;
  const uint32_t in_capsule_bytes_;
  DataBuffers data_;
  InitiatorModel model_;
  ModelRegistration registration_;
  std::vector<uint8_t> slot_memory_;
  std::vector<std::unique_ptr<ModelWindow>> windows_;
  uint32_t next_window_ = 1;
  DirectModel direct_{world_};
  std::unique_ptr<HostAdapter> adapter_;
  std::vector<ShownMemory> shown_;
  std::vector<Connection*> places_;
  std::vector<std::unique_ptr<Connection>> connections_;  // of the past as well
  uint32_t connections_max_;
  HostOutcome outcome_;
};

HostRun::HostRun(uint64_t seed, InitiatorDefect adapter_defect, HostDefect host_defect)
    : world_(seed),
      defect_(host_defect),
      only_late_(adapter_defect == InitiatorDefect::kKeyNotInvalidated ||
                 adapter_defect == InitiatorDefect::kWindowNotInvalidated),
      commands_(static_cast<uint32_t>(world_.random.Between(2, 24))),
      in_capsule_bytes_(world_.Chance(50) ? 0 : 4096),
      data_(static_cast<uint32_t>(world_.random.Between(2, 4))),
      model_(world_, adapter_defect, kCompletionsMax, HostAdapter::ReceiveEntries(commands_)),
      registration_(kDataKey, data_.region()->base(), data_.region()->size_bytes()),
      slot_memory_(HostAdapter::SlotMemoryBytes(commands_, in_capsule_bytes_)),
      places_(world_.random.Between(1, kPlaces)),
      connections_max_(static_cast<uint32_t>(world_.random.Between(1, kConnectionsMax))) {
  nvme::rdma_host::HostAdapterOptions options;
  options.commands = commands_;
  options.in_capsule_bytes = in_capsule_bytes_;
  options.slot_memory = {reinterpret_cast<uint64_t>(slot_memory_.data()),
                         static_cast<uint32_t>(slot_memory_.size()), kSlotKey};
  options.data_registration = &registration_;
  if (world_.Chance(60)) options.direct = &direct_;
  // Fewer than places, now and then.
  const uint32_t windows =
      world_.Chance(70) ? commands_ : 1 + static_cast<uint32_t>(world_.random.Below(commands_));
  for (uint32_t i = 0; i < windows; ++i) options.windows.push_back(MakeWindow());
  options.completions_max = kCompletionsMax;
  model_.Register(options.slot_memory);
  if (world_.Chance(10)) model_.short_post_percent = 2;
  adapter_ = std::make_unique<HostAdapter>(std::move(options), data_, model_, model_);
  adapter_->Post();
}

ModelWindow* HostRun::MakeWindow() {
  windows_.push_back(std::make_unique<ModelWindow>(model_, next_window_++));
  return windows_.back().get();
}

void HostRun::Connect(uint32_t place) {
  constexpr uint8_t kMarks = 14;
  auto made = std::make_unique<Connection>();
  Connection& connection = *made;
  const auto kind = world_.Chance(50) ? TargetKind::kGood
                    : only_late_      ? TargetKind::kAccessesLate
                                      : static_cast<TargetKind>(world_.random.Below(kTargetKinds));
  const auto entries = static_cast<uint32_t>(world_.random.Between(2, 11));
  const auto mark = static_cast<uint8_t>(1 + outcome_.connections % kMarks);
  verbs::SendLimits limits = HostAdapter::LimitsFor(entries);
  if (world_.Chance(40)) limits.works = static_cast<uint32_t>(world_.random.Between(2, limits.works));
  if (world_.Chance(30)) limits.inline_bytes = 0;
  if (!adapter_->CheckRoom(entries, limits).ok()) return;
  connection.guest = std::make_unique<GuestModel>(
      world_, GuestOptions{
                  .entries = entries,
                  .commands = static_cast<uint32_t>(world_.random.Between(5, 40)),
                  .mark = mark,
                  .believes = kind == TargetKind::kGood,
                  .large_percent = world_.random.Below(40),
                  .direct = adapter_->options().direct != nullptr && world_.Chance(70) ? &direct_ : nullptr});
  connection.target = std::make_unique<RemoteTarget>(
      world_,
      RemoteTargetOptions{.kind = kind,
                          .entries = entries,
                          .mark = mark,
                          .invalidates_percent = world_.Chance(50) ? 100 : world_.random.Below(100),
                          .misbehaves_percent = only_late_ ? 60U : 15U},
      shown_);
  connection.target->wrote = [guest = connection.guest.get(), kind](uint32_t offset, const auto& bytes) {
    return kind != TargetKind::kGood || guest->Wrote(offset, bytes) || guest->ended();
  };
  connection.target->arrived = [guest = connection.guest.get()](uint32_t number) { guest->Arrived(number); };
  // The queues of an association end together.
  connection.guest->on_ended = [this] {
    Connection* const other = places_[world_.random.Below(places_.size())];
    if (world_.Chance(30) && other != nullptr && other->queue != nullptr)
      other->queue->Abort({ErrorCode::kCancelled, "another queue has ended"});
  };
  connection.pair = std::make_unique<InitiatorPair>(model_, place + 1, limits, *connection.target);
  connection.queue =
      std::make_unique<HostQueue>(*adapter_, *connection.pair,
                                  nvme::rdma_host::HostQueueOptions{.name = "queue",
                                                                    .target = std::to_string(place),
                                                                    .entries = entries,
                                                                    .in_capsule_bytes = in_capsule_bytes_},
                                  *connection.guest);
  connection.target->Start(*connection.pair);
  connection.guest->Start(*connection.queue);
  if (kind != TargetKind::kGood || world_.Chance(10)) {
    const uint64_t when_ns = world_.random.Below(world_.Chance(20) ? kPatienceNs / 10 : kPatienceNs);
    world_.After(when_ns, [&connection] {
      if (connection.queue != nullptr) connection.queue->Abort({ErrorCode::kDeadlineExceeded, "given up"});
    });
  }
  connection.began_ns = world_.now();
  places_[place] = &connection;
  connections_.push_back(std::move(made));
  ++outcome_.connections;
}

// The windows, the queue pair, and what takes their place.
void HostRun::Destroy(Connection& connection) {
  HostQueue& queue = *connection.queue;
  if (defect_ != HostDefect::kDestroysWithoutPolling) {
    while (!model_.empty()) adapter_->Poll(64);
  }
  const std::vector<verbs::MemoryWindow*> bound = queue.bound();
  std::vector<verbs::MemoryWindow*> fresh;
  // One is left: an adapter without any has failed.
  uint32_t left = adapter_->windows();
  for (size_t i = 0; i < bound.size(); ++i) {
    const bool is_lost = left > 1 && world_.Chance(2);
    if (is_lost) --left;
    fresh.push_back(is_lost ? nullptr : MakeWindow());
  }
  const auto end = [this, &connection, bound] {
    if (defect_ != HostDefect::kForgetsWindows) {
      std::erase_if(windows_, [&](const auto& window) {
        return std::find(bound.begin(), bound.end(), window.get()) != bound.end();
      });
    }
    connection.target->Disconnected();
    connection.pair.reset();
  };
  if (defect_ == HostDefect::kGivesMemoryBackAtTheEnd) {
    queue.Destroyed(fresh);
    constexpr uint64_t kLaterNs = 20'000;
    world_.After(kLaterNs, end);
  } else {
    end();
    queue.Destroyed(fresh);
  }
}

// Whether it is over.
bool HostRun::TearDown(Connection& connection) {
  HostQueue& queue = *connection.queue;
  if (!queue.ended()) return false;
  if (connection.ended_ns == 0) {
    connection.ended_ns = world_.now();
    outcome_.ended += connection.guest->done() ? 0 : 1;
  }
  const bool waited_for = queue.flushed() || world_.now() > connection.ended_ns + kFlushMaxNs;
  if (!waited_for && !world_.Chance(5)) return false;
  Destroy(connection);
  connection.guest->Gone();
  connection.queue.reset();
  return true;
}

void HostRun::Turn() {
  adapter_->Poll(static_cast<uint32_t>(world_.random.Between(1, 64)));
  if (world_.Chance(50)) adapter_->Post();
  for (uint32_t place = 0; place < places_.size(); ++place) {
    Connection*& connection = places_[place];
    if (connection == nullptr) {
      if (outcome_.connections < connections_max_) Connect(place);
      continue;
    }
    if (connection->guest->done()) connection->queue->Abort({ErrorCode::kCancelled, "the guest is done"});
    if (world_.now() > connection->began_ns + kGoodMaxNs && !connection->queue->ended())
      world_.Wrong("a guest with a good controller waits and waits");
    if (!TearDown(*connection)) continue;
    outcome_.completed += connection->guest->completed();
    outcome_.unanswered += connection->guest->unanswered();
    if (connection->target->kind() == TargetKind::kGood && !EndsGoodTargets(connection->guest->reason()))
      world_.Wrong("a good controller's queue ends: " + connection->guest->reason());
    connection = nullptr;
  }
  if (all_over() && outcome_.connections >= connections_max_) return;
  world_.After(1 + world_.random.Below(2'000), [this] { Turn(); });
}

void HostRun::CheckAllBack() {
  for (const auto& connection : connections_) {
    if (connection->guest != nullptr) connection->guest->CheckAllBack();
  }
  adapter_->Poll(kCompletionsMax);
  if (adapter_->places_free() != adapter_->places()) world_.Wrong("a place has not come back");
  if (adapter_->windows_free() != adapter_->windows()) world_.Wrong("a window has not come back");
  if (data_.slabs_in_use() != 0) world_.Wrong("memory for data has not come back");
  if (model_.lost_receives() > 0 || adapter_->receives_posted() != HostAdapter::ReceiveEntries(commands_))
    world_.Wrong("memory for messages is lost");
  if (adapter_->wants_to_post()) world_.Wrong("something is to be posted of nobody");
}

HostOutcome HostRun::Go() {
  world_.After(0, [this] { Turn(); });
  while (world_.wrong.empty() && world_.Step()) {
    if (world_.now() > kTimeMaxNs) world_.Wrong("nothing moves any more");
  }
  if (world_.wrong.empty()) CheckAllBack();
  outcome_.refused = model_.refused();
  outcome_.wrong = world_.wrong;
  return outcome_;
}

}  // namespace

// What went wrong may have left anything behind, which nobody tidies up: such runs are kept as they are.
HostOutcome RunHost(uint64_t seed, InitiatorDefect adapter_defect, HostDefect host_defect) {
  auto run = std::make_unique<HostRun>(seed, adapter_defect, host_defect);
  HostOutcome outcome = run->Go();
  static auto* const kept = new std::vector<std::unique_ptr<HostRun>>;
  if (!outcome.wrong.empty()) kept->push_back(std::move(run));
  return outcome;
}

}  // namespace cleat::sim::rdma
