// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/target_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvme/rdma_target/target_adapter.h"
#include "nvme/rdma_target/target_queue.h"
#include "tests/sim/rdma/host_model.h"
#include "tests/sim/rdma/storage_model.h"

namespace cleat::sim::rdma {
namespace {

using nvme::rdma_target::TargetAdapter;
using nvme::rdma_target::TargetQueue;

constexpr uint32_t kPlaces = 3;          // connections at a time, at most
constexpr uint32_t kConnectionsMax = 6;  // in all
constexpr uint64_t kTimeMaxNs = 200'000'000;
constexpr uint64_t kGoodMaxNs = 20'000'000;  // that the commands of a good host take, at most
constexpr uint64_t kPatienceNs = 1'000'000;  // until the target gives a host up that is none
constexpr uint32_t kSlotKey = 7;
constexpr uint32_t kDataKey = 8;
constexpr uint32_t kOwnKey = 9;  // of the queues' own memory, with the place added

verbs::LocalPiece PieceOf(std::vector<uint8_t>& memory, size_t from, uint32_t bytes, uint32_t key) {
  return {std::bit_cast<uint64_t>(memory.data() + from), bytes, key};
}

// Whether a queue may end so whose host keeps all rules.
bool EndsGoodHosts(const std::string& reason) {
  static constexpr const char* kReasons[] = {"the host is done", "given up", "another queue has ended",
                                             "the adapter takes no more works"};
  return std::any_of(std::begin(kReasons), std::end(kReasons),
                     [&](const char* one) { return reason.find(one) != std::string::npos; });
}

struct Connection {
  std::unique_ptr<QueueOwner> owner;
  std::unique_ptr<HostModel> host;
  std::unique_ptr<ModelQueuePair> pair;
  std::unique_ptr<TargetQueue> queue;
  std::vector<uint8_t> own_memory;
  uint64_t began_ns = 0;
  uint64_t ended_ns = 0;
  bool is_over() const { return queue == nullptr; }
};

class TargetRun {
 public:
  TargetRun(uint64_t seed, AdapterDefect adapter_defect, TargetDefect target_defect);
  TargetOutcome Go();

 private:
  void Connect(uint32_t place);
  void Turn();
  void TearDown(Connection& connection);
  bool all_over() const {
    return std::all_of(places_.begin(), places_.end(), [](const Connection* c) { return c == nullptr; });
  }

  ModelWorld world_;
  const TargetDefect defect_;
  const uint32_t in_capsule_bytes_;
  const uint32_t slots_;
  const bool copies_;  // the adapter takes entries by copy
  CommandPool pool_;
  ModelAdapter model_;
  std::vector<uint8_t> slot_memory_;
  std::unique_ptr<TargetAdapter> adapter_;
  std::vector<Connection*> places_;
  std::vector<std::unique_ptr<Connection>> connections_;  // of the past as well
  uint32_t connections_max_;
  TargetOutcome outcome_;
};

TargetRun::TargetRun(uint64_t seed, AdapterDefect adapter_defect, TargetDefect target_defect)
    : world_(seed),
      defect_(target_defect),
      in_capsule_bytes_(world_.Chance(30) ? 0 : 4096),
      slots_(static_cast<uint32_t>(world_.random.Between(8, 32))),
      copies_(world_.Chance(70)),
      pool_(world_, static_cast<uint32_t>(world_.random.Between(4, 24))),
      model_(world_, adapter_defect, 512, slots_),
      slot_memory_(TargetAdapter::SlotMemoryBytes(slots_, in_capsule_bytes_)),
      places_(world_.random.Between(1, kPlaces)),
      connections_max_(static_cast<uint32_t>(world_.random.Between(1, kConnectionsMax))) {
  model_.Register(slot_memory_.data(), slot_memory_.size(), kSlotKey);
  const auto& region = pool_.registered_region();
  model_.Register(region->base(), region->size_bytes(), kDataKey);
  if (world_.Chance(10)) model_.short_post_percent = 2;
  nvme::rdma_target::TargetAdapterOptions options;
  options.slots = slots_;
  options.in_capsule_bytes = in_capsule_bytes_;
  options.slot_memory = PieceOf(slot_memory_, 0, static_cast<uint32_t>(slot_memory_.size()), kSlotKey);
  options.completions_max = 512;
  options.reads_max = static_cast<uint32_t>(world_.random.Between(1, 12));
  adapter_ = std::make_unique<TargetAdapter>(options, model_, model_);
  if (!adapter_->keys().Add(region.get(), kDataKey).ok()) world_.Wrong("a region has no room");
  adapter_->Post();
}

void TargetRun::Connect(uint32_t place) {
  constexpr uint32_t kStagingMax = 3000;
  constexpr uint32_t kEntryBytes = 16;
  auto made = std::make_unique<Connection>();
  Connection& connection = *made;
  const auto kind =
      world_.Chance(50) ? HostKind::kGood : static_cast<HostKind>(world_.random.Below(kHostKinds));
  HostOptions host{.kind = kind,
                   .entries = static_cast<uint32_t>(world_.random.Between(1, 10)),
                   .commands = static_cast<uint32_t>(world_.random.Between(5, 40)),
                   .in_capsule_bytes = in_capsule_bytes_,
                   .flow_control = world_.Chance(50)};
  verbs::SendLimits limits;
  limits.read_credits = static_cast<uint32_t>(world_.random.Between(1, 4));
  limits.works = limits.read_credits + 1 + static_cast<uint32_t>(world_.random.Between(1, 30));
  limits.pieces = static_cast<uint32_t>(world_.random.Between(1, 4));
  limits.inline_bytes = copies_ ? 16 : 0;
  if (!adapter_->CheckRoom(host.entries, limits).ok()) return;
  const uint64_t seed_of_memory = world_.random.Next();
  connection.owner = std::make_unique<QueueOwner>(world_, pool_, seed_of_memory % 2 == 0,
                                                  defect_ == TargetDefect::kReusesMemoryAtTheEnd);
  connection.host = std::make_unique<HostModel>(world_, host, connection.owner->disk);
  connection.owner->data_came = [host = connection.host.get()](uint16_t cid, const auto& bytes) {
    host->DataCame(cid, bytes);
  };
  // The queues of an association end together.
  connection.owner->ended = [this] {
    Connection* const other = places_[world_.random.Below(places_.size())];
    if (world_.Chance(30) && other != nullptr && other->queue != nullptr)
      other->queue->Abort({ErrorCode::kCancelled, "another queue has ended"});
  };
  connection.pair = std::make_unique<ModelQueuePair>(model_, place + 1, limits, *connection.host);
  nvme::rdma_target::TargetQueueOptions options;
  options.name = "host";
  options.entries_max = host.entries;
  const auto staging_bytes = static_cast<uint32_t>(world_.random.Between(100, kStagingMax));
  connection.own_memory.resize(kStagingMax * 2 + kEntryBytes * 4);
  model_.Register(connection.own_memory.data(), connection.own_memory.size(), kOwnKey + place);
  options.entry_memory = PieceOf(connection.own_memory, 0, kEntryBytes * 4, kOwnKey + place);
  options.staging_in = PieceOf(connection.own_memory, kEntryBytes * 4, staging_bytes, kOwnKey + place);
  options.staging_out =
      PieceOf(connection.own_memory, kEntryBytes * 4 + kStagingMax, staging_bytes, kOwnKey + place);
  connection.queue = std::make_unique<TargetQueue>(*adapter_, *connection.pair, options, *connection.owner);
  connection.queue->BecomeQueue(host.entries, host.flow_control, in_capsule_bytes_);
  connection.owner->queue = connection.queue.get();
  connection.host->Start(*connection.pair);
  if (kind != HostKind::kGood || world_.Chance(10)) {
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

// Of the queue pair, and once nothing runs of the queue.
void TargetRun::TearDown(Connection& connection) {
  TargetQueue& queue = *connection.queue;
  if (connection.pair != nullptr) {
    if (!queue.ended()) return;
    if (connection.ended_ns == 0) {
      connection.ended_ns = world_.now();
      outcome_.ended += connection.host->done() ? 0 : 1;
    }
    const bool waited_for = queue.with_adapter() == 0 || world_.now() > connection.ended_ns + 10'000;
    if (!waited_for && !world_.Chance(5)) return;
    if (defect_ != TargetDefect::kDestroysWithoutPolling) {
      while (!model_.empty()) adapter_->Poll(64);
    }
    connection.host->Disconnected();
    connection.pair.reset();
    queue.Destroyed();
    if (queue.with_adapter() != 0) world_.Wrong("something is with the adapter beyond the queue pair");
  }
  if (queue.commands() > 0) return;
  connection.owner->queue = nullptr;
  connection.queue.reset();
}

void TargetRun::Turn() {
  adapter_->Poll(static_cast<uint32_t>(world_.random.Between(1, 64)));
  if (world_.Chance(50)) adapter_->Post();
  for (uint32_t place = 0; place < places_.size(); ++place) {
    Connection*& connection = places_[place];
    if (connection == nullptr) {
      if (outcome_.connections < connections_max_) Connect(place);
      continue;
    }
    if (connection->host->done()) connection->queue->Abort({ErrorCode::kCancelled, "the host is done"});
    if (world_.now() > connection->began_ns + kGoodMaxNs && !connection->queue->ended())
      world_.Wrong("a good host waits and waits");
    TearDown(*connection);
    if (!connection->is_over()) continue;
    outcome_.answered += connection->host->answered();
    const std::string& reason = connection->owner->reason;
    if (connection->host->kind() == HostKind::kGood && !EndsGoodHosts(reason))
      world_.Wrong("a good host's queue ends: " + reason);
    connection = nullptr;
  }
  if (all_over() && outcome_.connections >= connections_max_) return;
  world_.After(1 + world_.random.Below(2'000), [this] { Turn(); });
}

TargetOutcome TargetRun::Go() {
  world_.After(0, [this] { Turn(); });
  while (world_.wrong.empty() && world_.Step()) {
    if (world_.now() > kTimeMaxNs) world_.Wrong("nothing moves any more");
  }
  if (world_.wrong.empty()) {
    adapter_->Poll(512);
    pool_.CheckAllBack();
    if (model_.lost_receives() > 0 || adapter_->slots_posted() != slots_)
      world_.Wrong("memory for capsules is lost");
    if (adapter_->scheduler().outstanding() != 0) world_.Wrong("READs are outstanding of nobody");
  }
  outcome_.wrong = world_.wrong;
  return outcome_;
}

}  // namespace

// What went wrong may have left anything behind, which nobody tidies up: such runs are kept as they are.
TargetOutcome RunTarget(uint64_t seed, AdapterDefect adapter_defect, TargetDefect target_defect) {
  auto run = std::make_unique<TargetRun>(seed, adapter_defect, target_defect);
  const TargetOutcome outcome = run->Go();
  static auto* const kept = new std::vector<std::unique_ptr<TargetRun>>;
  if (!outcome.wrong.empty()) kept->push_back(std::move(run));
  return outcome;
}

}  // namespace cleat::sim::rdma
