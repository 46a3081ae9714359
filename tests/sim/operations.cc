// SPDX-License-Identifier: Apache-2.0
// Drawing operations and running them. Requests and their model: operations_requests.cc.
#include "operations.h"

#include <utility>

namespace cleat::sim {
namespace {

StoragePlan Storage() {
  StoragePlan plan;
  plan.fail_per_million = 20'000;
  plan.open_fails_percent = 8;
  plan.acquire_fails_percent = 5;
  return plan;
}

constexpr SimNetwork::Plan kNetwork{.make_fails_percent = 3, .start_fails_percent = 3};

std::string ControllerName(uint64_t index) {
  return "controllers/c" + std::to_string(index);
}
std::string GroupName(uint64_t index) {
  return "groups/g" + std::to_string(index);
}
std::string SocketPath(uint64_t index) {
  return "/sim/vm" + std::to_string(index) + ".sock";
}

}  // namespace

Operations::Operations(const OperationsConfig& config)
    : config_(config),
      world_(config.seed, kIoReactors),
      random_(world_.random().Next()),
      disks_(world_, Storage(), config.defect),
      network_(world_, kNetwork, config.defect),
      groups_(world_.control()),
      counters_(observe::EngineCounters::Make("sim", config.seed, world_.io_reactors()).value()),
      engine_({world_.control(), world_.io_reactors(), disks_, network_, memories_, groups_, clusters_,
               counters_.get()}) {
  world_.set_trace(config.trace);
  engine_.SetListener(this);
  for (uint32_t i = 0; i < kDisks; ++i) disks_.AddMedium("disks/d" + std::to_string(i), kDiskBlocks);
  for (uint32_t i = 0; i < kControllers; ++i) {
    GuestOptions options;
    options.name = "vm" + std::to_string(i);
    options.socket_path = SocketPath(i);
    options.seed = random_.Next();
    options.defect = config.defect;
    guests_.push_back(std::make_unique<SimGuest>(
        world_, network_, options, [this](const std::string& serial) { return FindDisk(serial); }));
  }
  world_.AddDump(
      [this] { return "requests running: " + std::to_string(running_) + "; " + network_.Describe(); });
}

Operations::~Operations() {
  engine_.SetListener(nullptr);
}

uint64_t Operations::completed_io() const {
  uint64_t completed = 0;
  for (const auto& guest : guests_) completed += guest->completed();
  return completed;
}

std::string Operations::Run() {
  for (uint64_t i = 0; i < config_.operations && !world_.failed(); ++i) {
    world_.set_step(i);
    OneOperation();
    if (random_.Chance(1, 2)) {
      for (uint64_t turns = random_.Below(20); turns > 0; --turns) world_.Step();
    }
    if (random_.Chance(1, 4)) world_.RunFor(random_.Below(2 * kNsPerMs));
    if (running_ >= kRunningMax || random_.Chance(1, 60)) Quiet();
  }
  world_.set_step(config_.operations);
  if (!world_.failed()) Quiet();
  if (!world_.failed()) {
    // Once more with everything going on at once.
    for (uint32_t i = 0; i < 30; ++i) OneOperation();
    disks_.LetGoAll();
  }
  Spawn(Shutdown());
  Put();  // refused, as everything is from now on
  disks_.LetGoAll();
  const bool ended = world_.RunUntil([this] { return running_ == 0; }, kQuietLimitNs, "shutting down");
  std::string result;
  for (const std::string& violation : world_.violations()) result += violation + "\n";
  if (!ended) {
    // What hangs can't be taken down: the process ends here, with what is known.
    std::fprintf(stderr, "%s\n", result.c_str());
    if (config_.defect == Defect::kNone) std::abort();
  }
  return result;
}

void Operations::OneOperation() {
  const uint64_t dice = random_.Below(100);
  if (dice < 55) return RequestOperation(dice);
  if (dice < 58) return disks_.Hold("disks/d" + std::to_string(random_.Below(kDisks)));
  if (dice < 64) return disks_.LetGoAll();
  GuestOperation(DrawGuest());
}

void Operations::RequestOperation(uint64_t dice) {
  if (dice < 22) {
    Spawn(Attach(DrawAttachment()));
  } else if (dice < 38) {
    Spawn(Detach(DrawName(), random_.Chance(1, 20) ? 1 : 0));
  } else if (dice < 42) {
    Spawn(LimitDisk());
  } else if (dice < 45) {
    PutGroup();
  } else if (dice < 46) {
    DropGroup();
  } else if (dice < 52) {
    Put();
  } else {
    Spawn(Delete(DrawName()));
  }
}

void Operations::GuestOperation(SimGuest& guest) {
  using Action = SimGuest::Action;
  const uint64_t dice = random_.Below(100);
  if (dice < 30) return guest.PowerOn();
  if (dice < 34) return guest.Kill();
  if (dice < 44) return guest.Hangup();
  if (dice < 47) return guest.HangupInHandshake(static_cast<uint32_t>(random_.Below(30)));
  if (dice < 55) return guest.Do(Action::kReset);
  if (dice < 60) return guest.Do(Action::kPause);
  if (dice < 66) return guest.Do(Action::kResume);
  if (dice < 70) return guest.Do(Action::kHotPlug);
  if (dice < 72) return guest.Do(Action::kMisbehave);
  guest.AddLoad(random_.Between(1, 40));
}

std::string Operations::DrawName() {
  return ControllerName(random_.Below(kControllers));
}

engine::ControllerSpec Operations::DrawController() {
  engine::ControllerSpec spec;
  const uint64_t index = random_.Below(kControllers);
  spec.name = ControllerName(index);
  spec.socket_path = SocketPath(index);
  spec.queues = static_cast<uint32_t>(1 + index % 5);
  spec.revision = next_revision_++;
  // The first ones are in no group.
  if (index > 1) spec.group = GroupName(index % kGroups);
  if (random_.Chance(1, 20)) spec.group = GroupName(random_.Below(kGroups + 1));
  if (random_.Chance(1, 12)) spec.queues = 6;
  if (random_.Chance(1, 12)) spec.socket_path = SocketPath(random_.Below(kControllers));
  if (random_.Chance(1, 30)) spec.queues = random_.Chance(1, 2) ? 0 : engine::kQueuesMax + 1;
  if (random_.Chance(1, 30))
    spec.socket_path = random_.Chance(1, 2) ? "relative" : "/" + std::string(200, 'x');
  return spec;
}

// Fast enough for what waits to be through soon; rarely such as can't be.
engine::LimitsSpec Operations::DrawLimits() {
  engine::LimitsSpec spec;
  spec.revision = next_revision_++;
  for (size_t i = 0; i < qos::kMeters; ++i) {
    if (!random_.Chance(1, 3)) continue;
    const bool bytes = i >= static_cast<size_t>(qos::Meter::kBytes);
    const uint64_t unit = bytes ? 16 * kBlockBytes : 1;
    qos::Rate& rate = spec.limits.rates[i];
    rate.per_second = random_.Between(2'000, 200'000) * unit;
    if (random_.Chance(1, 3)) {
      rate.burst_per_second = rate.per_second + random_.Between(1, 100'000) * unit;
      rate.burst_ms = static_cast<uint32_t>(random_.Between(1, 2'000));
    }
    // -1, a rate that no storage has, a burst that is none.
    if (random_.Chance(1, 40)) rate.per_second = ~uint64_t{0};
    if (random_.Chance(1, 40)) rate.burst_per_second = rate.per_second / 2 + 1;
  }
  return spec;
}

// The serial says which disk it is, for whom, and how it is attached: what the guest sees must be that.
engine::AttachmentSpec Operations::DrawAttachment() {
  engine::AttachmentSpec spec;
  const uint64_t controller = random_.Below(kControllers);
  // A disk of one's own, mostly, so that many can be attached at the same time.
  const uint64_t disk = random_.Chance(2, 3) ? controller % kDisks : random_.Below(kDisks);
  spec.controller = ControllerName(controller);
  spec.disk.name = "disks/d" + std::to_string(disk);
  spec.disk.size_bytes = kDiskBlocks * kBlockBytes;
  const bool large = random_.Chance(1, 8);
  spec.disk.logical_block_bytes = large ? 4096 : 512;
  spec.disk.physical_block_bytes = 4096;
  spec.read_only = random_.Chance(1, 6);
  spec.revision = next_revision_++;
  spec.disk.serial = "d" + std::to_string(disk) + "@c" + std::to_string(controller) + "." +
                     (large ? "4" : "s") + (spec.read_only ? "r" : "w");
  if (const auto limits = limits_.find(spec.disk.name); limits != limits_.end())
    spec.disk.limits = limits->second;
  if (random_.Chance(1, 40)) spec.target = 1;
  if (random_.Chance(1, 60)) spec.disk.serial += std::string(20, 'x');
  if (random_.Chance(1, 60)) spec.disk.name = "disks/unknown";
  return spec;
}

GuestDisk Operations::FindDisk(const std::string& serial) {
  GuestDisk disk;
  const size_t at = serial.find('@');
  Medium* medium = at == std::string::npos ? nullptr : disks_.Find("disks/" + serial.substr(0, at));
  if (medium == nullptr) return disk;
  disk.model = &medium->model;
  disk.logical_blocks = serial.find(".4") != std::string::npos ? 8 : 1;
  disk.read_only = serial.back() == 'r';
  disk.may_fail = true;
  return disk;
}

}  // namespace cleat::sim
