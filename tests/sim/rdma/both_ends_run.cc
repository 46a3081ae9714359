// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/both_ends_run.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvme/rdma_host/host_queue.h"
#include "nvme/rdma_target/target_adapter.h"
#include "nvme/rdma_target/target_queue.h"
#include "tests/sim/rdma/far_adapter.h"
#include "tests/sim/rdma/guest_model.h"
#include "tests/sim/rdma/storage_model.h"

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::DataBuffers;
using nvme::rdma_host::HostAdapter;
using nvme::rdma_host::HostQueue;
using nvme::rdma_target::TargetAdapter;
using nvme::rdma_target::TargetQueue;

constexpr uint32_t kConnectionsMax = 3;
constexpr uint32_t kInCapsuleBytes = 4096;
constexpr uint32_t kCompletionsMax = 512;
constexpr uint32_t kSlots = 40;       // of the target
constexpr uint32_t kPart = 6 * 1024;  // of a disk: storage_model.h has small ones
constexpr uint32_t kStagingBytes = 2000;
constexpr uint64_t kTimeMaxNs = 50'000'000;
constexpr uint32_t kSlotKey = 7;
constexpr uint32_t kDataKey = 8;
constexpr uint32_t kOwnKey = 9;

verbs::LocalPiece PieceOf(std::vector<uint8_t>& memory, size_t from, size_t bytes, uint32_t key) {
  return {reinterpret_cast<uint64_t>(memory.data() + from), static_cast<uint32_t>(bytes), key};
}

struct Connection {
  std::unique_ptr<GuestModel> guest;
  std::unique_ptr<QueueOwner> storage;
  std::unique_ptr<InitiatorPair> host_pair;
  std::unique_ptr<FarPair> target_pair;
  std::unique_ptr<HostQueue> host;
  std::unique_ptr<TargetQueue> target;
  std::vector<uint8_t> own_memory;
  bool is_over() const { return host == nullptr && target == nullptr; }
};

class BothEndsRun {
 public:
  explicit BothEndsRun(uint64_t seed);
  BothEndsOutcome Go();

 private:
  void MakeHostAdapter();
  ModelWindow* MakeWindow();
  void Connect(uint32_t number);
  void Turn();
  void EndHost(Connection& connection);
  void EndTarget(Connection& connection);
  void CheckAllBack();

  ModelWorld world_;
  const bool aborts_;
  const uint32_t commands_;
  CommandPool pool_;
  DataBuffers data_;
  InitiatorModel host_model_;
  FarAdapter target_model_;
  ModelRegistration registration_;
  std::vector<uint8_t> host_slots_;
  std::vector<uint8_t> target_slots_;
  std::vector<std::unique_ptr<ModelWindow>> windows_;
  uint32_t next_window_ = 1;
  DirectModel direct_{world_};
  std::unique_ptr<HostAdapter> host_;
  std::unique_ptr<TargetAdapter> target_;
  std::vector<std::unique_ptr<Connection>> connections_;
  BothEndsOutcome outcome_;
};

BothEndsRun::BothEndsRun(uint64_t seed)
    : world_(seed),
      aborts_(world_.Chance(30)),
      commands_(static_cast<uint32_t>(world_.random.Between(2, 24))),
      pool_(world_, static_cast<uint32_t>(world_.random.Between(4, 24))),
      data_(2),
      host_model_(world_, InitiatorDefect::kNone, kCompletionsMax, HostAdapter::ReceiveEntries(commands_)),
      registration_(kDataKey, data_.region()->base(), data_.region()->size_bytes()),
      host_slots_(HostAdapter::SlotMemoryBytes(commands_, kInCapsuleBytes)),
      target_slots_(TargetAdapter::SlotMemoryBytes(kSlots, kInCapsuleBytes)) {
  MakeHostAdapter();
  nvme::rdma_target::TargetAdapterOptions options;
  options.slots = kSlots;
  options.in_capsule_bytes = kInCapsuleBytes;
  options.slot_memory = PieceOf(target_slots_, 0, target_slots_.size(), kSlotKey);
  options.completions_max = kCompletionsMax;
  options.reads_max = static_cast<uint32_t>(world_.random.Between(1, 12));
  target_ = std::make_unique<TargetAdapter>(options, target_model_, target_model_);
  if (!target_->keys().Add(pool_.registered_region().get(), kDataKey).ok())
    world_.Wrong("a region has no room");
  target_->Post();
  for (uint32_t i = 0, count = 1 + static_cast<uint32_t>(world_.random.Below(kConnectionsMax)); i < count;
       ++i)
    Connect(i + 1);
}

void BothEndsRun::MakeHostAdapter() {
  nvme::rdma_host::HostAdapterOptions options;
  options.commands = commands_;
  options.in_capsule_bytes = kInCapsuleBytes;
  options.slot_memory = PieceOf(host_slots_, 0, host_slots_.size(), kSlotKey);
  options.data_registration = &registration_;
  options.direct = &direct_;
  for (uint32_t i = 0; i < commands_; ++i) options.windows.push_back(MakeWindow());
  options.completions_max = kCompletionsMax;
  host_model_.Register(options.slot_memory);
  host_ = std::make_unique<HostAdapter>(std::move(options), data_, host_model_, host_model_);
  host_->Post();
}

ModelWindow* BothEndsRun::MakeWindow() {
  windows_.push_back(std::make_unique<ModelWindow>(host_model_, next_window_++));
  return windows_.back().get();
}

void BothEndsRun::Connect(uint32_t number) {
  constexpr uint32_t kEntryBytes = 64;
  auto made = std::make_unique<Connection>();
  Connection& connection = *made;
  const auto entries = static_cast<uint32_t>(world_.random.Between(2, 11));
  const auto mark = static_cast<uint8_t>(number);
  connection.guest =
      std::make_unique<GuestModel>(world_, GuestOptions{.entries = entries,
                                                        .commands = 30,
                                                        .mark = mark,
                                                        .large_percent = 0,
                                                        .part_bytes = kPart,
                                                        .direct = world_.Chance(50) ? &direct_ : nullptr});
  connection.storage = std::make_unique<QueueOwner>(world_, pool_, world_.Chance(50), false);
  std::fill(connection.storage->disk.begin(), connection.storage->disk.end(),
            static_cast<uint8_t>(mark << 4));
  connection.storage->data_came = [](uint16_t, const auto&) {};
  connection.storage->ended = [] {};
  verbs::SendLimits of_target;
  of_target.read_credits = static_cast<uint32_t>(world_.random.Between(1, 4));
  of_target.works = of_target.read_credits + 1 + static_cast<uint32_t>(world_.random.Between(1, 30));
  of_target.pieces = static_cast<uint32_t>(world_.random.Between(1, 4));
  of_target.inline_bytes = 16;
  connection.target_pair = std::make_unique<FarPair>(world_, target_model_, number, of_target);
  connection.host_pair = std::make_unique<InitiatorPair>(host_model_, number, HostAdapter::LimitsFor(entries),
                                                         *connection.target_pair);
  connection.target_pair->Connect(connection.host_pair.get());
  // As the connection manager tells both.
  connection.target_pair->disconnected = [&connection] {
    const Error reason(ErrorCode::kUnavailable, "disconnected");
    if (connection.target != nullptr) connection.target->Abort(reason);
    if (connection.host != nullptr) connection.host->Abort(reason);
  };
  connection.own_memory.resize(kEntryBytes + kStagingBytes * 2);
  nvme::rdma_target::TargetQueueOptions options;
  options.name = "host";
  options.entries_max = entries;
  options.staging_in = PieceOf(connection.own_memory, kEntryBytes, kStagingBytes, kOwnKey);
  options.staging_out = PieceOf(connection.own_memory, kEntryBytes + kStagingBytes, kStagingBytes, kOwnKey);
  connection.target =
      std::make_unique<TargetQueue>(*target_, *connection.target_pair, options, *connection.storage);
  connection.target->BecomeQueue(entries, world_.Chance(50), kInCapsuleBytes);
  connection.storage->queue = connection.target.get();
  connection.host = std::make_unique<HostQueue>(
      *host_, *connection.host_pair,
      nvme::rdma_host::HostQueueOptions{
          .name = "queue", .entries = entries, .in_capsule_bytes = world_.Chance(50) ? kInCapsuleBytes : 0},
      *connection.guest);
  connection.guest->Start(*connection.host);
  if (aborts_) {
    world_.After(world_.random.Below(100'000), [this, &connection] {
      const Error reason(ErrorCode::kCancelled, "given up");
      if (world_.Chance(50) && connection.target != nullptr) return connection.target->Abort(reason);
      if (connection.host != nullptr) connection.host->Abort(reason);
    });
  }
  connections_.push_back(std::move(made));
}

void BothEndsRun::EndHost(Connection& connection) {
  HostQueue& queue = *connection.host;
  if (connection.guest->done()) queue.Abort({ErrorCode::kCancelled, "the guest is done"});
  if (!queue.ended() || !queue.flushed()) return;
  while (!host_model_.empty()) host_->Poll(64);
  const std::vector<verbs::MemoryWindow*> bound = queue.bound();
  std::erase_if(windows_, [&](const auto& window) {
    return std::find(bound.begin(), bound.end(), window.get()) != bound.end();
  });
  std::vector<verbs::MemoryWindow*> fresh;
  for (size_t i = 0; i < bound.size(); ++i) fresh.push_back(MakeWindow());
  // The connection's end is heard by the target.
  connection.target_pair->Connect(nullptr);
  connection.target_pair->Broken();
  connection.host_pair.reset();
  queue.Destroyed(fresh);
  connection.guest->Gone();
  connection.host.reset();
}

void BothEndsRun::EndTarget(Connection& connection) {
  TargetQueue& queue = *connection.target;
  // The pair is used by what is on the wire for as long as the host's lives.
  if (!queue.ended() || connection.host != nullptr) return;
  if (connection.target_pair != nullptr) {
    if (queue.with_adapter() > 0) return;
    while (!target_model_.empty()) target_->Poll(64);
    connection.target_pair.reset();
    queue.Destroyed();
  }
  if (queue.commands() > 0) return;
  connection.storage->queue = nullptr;
  connection.target.reset();
}

void BothEndsRun::Turn() {
  host_->Poll(static_cast<uint32_t>(world_.random.Between(1, 64)));
  target_->Poll(static_cast<uint32_t>(world_.random.Between(1, 64)));
  if (world_.Chance(50)) host_->Post();
  if (world_.Chance(50)) target_->Post();
  bool all_over = true;
  for (const auto& connection : connections_) {
    if (connection->host != nullptr) EndHost(*connection);
    if (connection->target != nullptr) EndTarget(*connection);
    all_over = all_over && connection->is_over();
  }
  if (!all_over) world_.After(1 + world_.random.Below(2'000), [this] { Turn(); });
}

void BothEndsRun::CheckAllBack() {
  host_->Poll(kCompletionsMax);
  target_->Poll(kCompletionsMax);
  pool_.CheckAllBack();
  for (const auto& connection : connections_) {
    connection->guest->CheckAllBack();
    outcome_.completed += connection->guest->completed();
    outcome_.unanswered += connection->guest->unanswered();
    if (!aborts_ && connection->guest->unanswered() > 0)
      world_.Wrong("a command is not answered, as " + connection->guest->reason());
  }
  if (host_->places_free() != host_->places() || data_.slabs_in_use() != 0 ||
      host_->receives_posted() != HostAdapter::ReceiveEntries(commands_))
    world_.Wrong("something of the host's has not come back");
  if (target_->slots_posted() != kSlots) world_.Wrong("memory for capsules is lost");
}

BothEndsOutcome BothEndsRun::Go() {
  world_.After(0, [this] { Turn(); });
  while (world_.wrong.empty() && world_.Step()) {
    if (world_.now() > kTimeMaxNs) world_.Wrong("nothing moves any more");
  }
  if (world_.wrong.empty()) CheckAllBack();
  outcome_.wrong = world_.wrong;
  return outcome_;
}

}  // namespace

// What went wrong may have left anything behind, which nobody tidies up: such runs are kept as they are.
BothEndsOutcome RunBothEnds(uint64_t seed) {
  auto run = std::make_unique<BothEndsRun>(seed);
  BothEndsOutcome outcome = run->Go();
  static auto* const kept = new std::vector<std::unique_ptr<BothEndsRun>>;
  if (!outcome.wrong.empty()) kept->push_back(std::move(run));
  return outcome;
}

}  // namespace cleat::sim::rdma
