// SPDX-License-Identifier: Apache-2.0
#include "sim_disk_factory.h"

#include <utility>

#include "block/filter_device.h"

namespace cleat::sim {
namespace {

block::Geometry GeometryOf(const engine::DiskSpec& disk) {
  block::DiskShape shape(disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes);
  block::Geometry geometry = shape.ToGeometry();
  geometry.discard = true;
  geometry.discard_granularity_bytes = disk.logical_block_bytes;
  geometry.discard_max_bytes = disk.size_bytes;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = disk.size_bytes;
  geometry.write_cache = true;
  return geometry;
}

}  // namespace

// What takes its time on control: taking, giving up and closing a disk. Lies over the fault filter.
class SimDiskFactory::DelayedDisk final : public block::FilterDevice {
 public:
  DelayedDisk(SimDiskFactory& factory, Medium& medium, std::unique_ptr<block::Device> below)
      : FilterDevice(std::move(below)), factory_(factory), medium_(medium) {}

  Task<Status> Acquire(block::AccessMode mode) override {
    auto delay = factory_.Delay(medium_);
    co_await std::move(delay);
    if (factory_.random_.Chance(factory_.plan_.acquire_fails_percent, 100)) {
      co_return factory_.world_.injections().Make(ErrorCode::kIo, name() + ": the lock can't be taken");
    }
    const bool two_owners = factory_.defect_ == Defect::kTwoOwners;
    if (medium_.HeldByOthers(mode) && !two_owners) {
      if (medium_.owners.contains(nullptr)) {  // a planted defect: nobody has it
        co_return Error(ErrorCode::kFailedPrecondition, name() + " is in use");
      }
      co_return factory_.world_.injections().Make(ErrorCode::kFailedPrecondition, name() + " is in use");
    }
    auto acquire = below().Acquire(mode);
    co_return co_await std::move(acquire);
  }
  Task<Status> Release() override {
    auto delay = factory_.Delay(medium_);
    co_await std::move(delay);
    auto release = below().Release();
    co_return co_await std::move(release);
  }
  Task<Status> Close() override {
    auto delay = factory_.Delay(medium_);
    co_await std::move(delay);
    auto close = below().Close();
    co_return co_await std::move(close);
  }

 private:
  SimDiskFactory& factory_;
  Medium& medium_;
};

SimDiskFactory::SimDiskFactory(World& world, const StoragePlan& plan, Defect defect)
    : world_(world), plan_(plan), defect_(defect), random_(world.random().Next()), let_go_(world.control()) {}

SimDiskFactory::~SimDiskFactory() = default;

Medium& SimDiskFactory::AddMedium(const std::string& disk, uint64_t blocks) {
  auto& medium = media_[disk];
  medium = std::make_unique<Medium>(disk, blocks);
  return *medium;
}

Medium* SimDiskFactory::Find(const std::string& disk) {
  const auto found = media_.find(disk);
  return found == media_.end() ? nullptr : found->second.get();
}

Task<void> SimDiskFactory::Delay(Medium& medium) {
  const uint64_t delay_ns = random_.Below(plan_.open_ns_max + 1);
  co_await world_.control().SleepFor(delay_ns);
  while (medium.held) co_await let_go_.Wait();
}

Task<Result<engine::OpenDisk>> SimDiskFactory::Open(const engine::DiskSpec& disk, block::AccessMode mode,
                                                    std::shared_ptr<qos::Group> group,
                                                    engine::DiskEvents /*events*/) {
  Medium* medium = Find(disk.name);
  if (medium == nullptr)
    co_return world_.injections().Make(ErrorCode::kNotFound, disk.name + ": no such medium");
  auto delay = Delay(*medium);
  co_await std::move(delay);
  if (random_.Chance(plan_.open_fails_percent, 100)) {
    co_return world_.injections().Make(ErrorCode::kUnavailable, disk.name + ": the cluster does not answer");
  }
  auto sim_disk = std::make_unique<SimDisk>(*medium, GeometryOf(disk), disk.serial, defect_,
                                            [this](const std::string& what) { world_.Violation(what); });
  const SimDisk* opened = sim_disk.get();
  const modules::FaultPlan plan(random_.Next(), plan_.delay_ns_max, plan_.fail_per_million);
  auto faulty = modules::FaultDevice::Make(std::move(sim_disk), plan);
  CLEAT_CHECK(faulty.ok());
  medium->open[opened] = faulty.value().get();
  if (medium->held) faulty.value()->Hold();
  std::unique_ptr<block::Device> top =
      std::make_unique<DelayedDisk>(*this, *medium, std::move(faulty).value());
  auto made = engine::MakeLimitedPipeline(top, disk.limits.limits, std::move(group), mode);
  CLEAT_CHECK(made.ok());
  co_return made;
}

void SimDiskFactory::Hold(const std::string& disk) {
  if (Medium* medium = Find(disk)) medium->Hold();
}

void SimDiskFactory::LetGoAll() {
  for (const auto& [name, medium] : media_) {
    if (medium->held) medium->LetGo();
  }
  let_go_.Pulse();
}

size_t SimDiskFactory::OpenFor(const std::string& user_suffix) const {
  size_t count = 0;
  for (const auto& [name, medium] : media_) {
    for (const auto& [disk, fault] : medium->open) {
      count += disk != nullptr && disk->user().ends_with(user_suffix) ? 1 : 0;
    }
  }
  return count;
}

size_t SimDiskFactory::OpenAll() const {
  size_t count = 0;
  for (const auto& [name, medium] : media_) count += medium->open.size();
  return count;
}

void SimDiskFactory::CheckContent() {
  for (const auto& [name, medium] : media_) {
    const std::string wrong = medium->model.CheckContent(medium->bytes);
    if (!wrong.empty()) world_.Violation("on the storage: " + wrong);
  }
}

}  // namespace cleat::sim
