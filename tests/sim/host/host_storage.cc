// SPDX-License-Identifier: Apache-2.0
#include "host_storage.h"

#include <algorithm>
#include <utility>

#include "block/filter_device.h"
#include "modules/null/null.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kLockWaitNs = 10 * kNsPerSecond;
constexpr uint64_t kLockRetryNs = 5 * kNsPerMs;

// The lock of a disk, and the time that it takes.
class LockedDisk final : public block::FilterDevice {
 public:
  LockedDisk(HostStorage& storage, Reactor& control, uint64_t process, std::unique_ptr<block::Device> below)
      : FilterDevice(std::move(below)), storage_(storage), control_(control), process_(process) {}

  Task<Status> Acquire(block::AccessMode mode) override {
    auto lock = storage_.Lock(control_, process_, name(), mode);
    co_return co_await std::move(lock);
  }
  Task<Status> Release() override {
    auto unlock = storage_.Unlock(control_, process_, name());
    co_await std::move(unlock);
    co_return Ok{};
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    auto delay = storage_.Delay(control_, process_);
    co_await std::move(delay);
    SetSize(size_bytes);
    co_return Ok{};
  }
  Task<Status> Close() override {
    auto delay = storage_.Delay(control_, process_);
    co_await std::move(delay);
    auto close = below().Close();
    co_return co_await std::move(close);
  }

 private:
  HostStorage& storage_;
  Reactor& control_;
  const uint64_t process_;
};

class HostEndpoint final : public vhost::Endpoint {
 public:
  HostEndpoint(HostStorage& storage, Reactor& control, uint64_t process, std::string controller,
               vhost::StatusFn on_status)
      : storage_(storage),
        control_(control),
        process_(process),
        controller_(std::move(controller)),
        on_status_(std::move(on_status)) {}
  ~HostEndpoint() override { CLEAT_CHECK(!serving_); }

  Status Start() override {
    storage_.LetIn(process_, controller_);
    serving_ = true;
    on_status_();
    return Ok{};
  }
  Task<void> Stop() override {
    if (!serving_) co_return;
    auto delay = storage_.Delay(control_, process_);
    co_await std::move(delay);
    storage_.LetGo(process_, controller_);
    serving_ = false;
    on_status_();
  }
  Task<Status> Yield(uint64_t deadline_ns) override {
    if (!storage_.DrawDrains()) {
      co_await control_.SleepFor(deadline_ns > control_.now_ns() ? deadline_ns - control_.now_ns() : 0);
      co_return Error(ErrorCode::kDeadlineExceeded, controller_ + ": requests are still in the storage");
    }
    auto stop = Stop();
    co_await std::move(stop);
    co_return Ok{};
  }
  void ConfigChanged() override {}
  vhost::EndpointStatus status() const override {
    return {.state = serving_ ? vhost::EndpointState::kConnecting : vhost::EndpointState::kStopped,
            .message = {}};
  }

 private:
  HostStorage& storage_;
  Reactor& control_;
  const uint64_t process_;
  const std::string controller_;
  const vhost::StatusFn on_status_;
  bool serving_ = false;
};

std::string Numbered(uint64_t process) {
  return "engine process " + std::to_string(process);
}

}  // namespace

HostStorage::HostStorage(World& world) : world_(world), random_(world.random().Next()) {
  world_.AddActor(*this);
}

HostStorage::~HostStorage() {
  world_.RemoveActor(*this);
}

void HostStorage::Die(uint64_t process) {
  living_.erase(process);
  to_free_.emplace(world_.now_ns() + random_.Below(kLockKeptNsMax), process);
  const std::map<std::string, uint64_t> servers = servers_;
  for (const auto& [controller, server] : servers) LetGo(process, controller);
}

void HostStorage::Free(uint64_t process) {
  for (auto& [disk, locks] : locks_) {
    if (locks.writer == process) locks.writer = 0;
    locks.readers.erase(process);
  }
}

// ---- Disks

Task<void> HostStorage::Delay(Reactor& control, uint64_t process) {
  if (IsAlive(process)) co_await control.SleepFor(random_.Below(kDelayNsMax));
}

Task<Status> HostStorage::Lock(Reactor& control, uint64_t process, std::string disk, block::AccessMode mode) {
  auto delay = Delay(control, process);
  co_await std::move(delay);
  const uint64_t give_up_ns = control.now_ns() + kLockWaitNs;
  for (;;) {
    if (!IsAlive(process)) co_return Error(ErrorCode::kCancelled, disk + ": the process has died");
    Locks& locks = locks_[disk];
    const bool others_read = locks.readers.size() > (locks.readers.contains(process) ? 1U : 0U);
    const bool others_write = locks.writer != 0 && locks.writer != process;
    if (!others_write && (mode == block::AccessMode::kReadOnly || !others_read)) break;
    const auto reader = std::ranges::find_if(
        locks.readers, [&](uint64_t other) { return other != process && IsAlive(other); });
    const uint64_t other = others_write ? locks.writer : reader != locks.readers.end() ? *reader : 0;
    if (IsAlive(other)) {
      if (!undecided_.contains(disk))
        world_.Violation(Numbered(process) + " is to serve " + disk + ", which " + Numbered(other) +
                         " serves");
      co_return Error(ErrorCode::kFailedPrecondition, disk + " is in use");
    }
    if (control.now_ns() >= give_up_ns) co_return Error(ErrorCode::kUnavailable, disk + " is still locked");
    co_await control.SleepFor(kLockRetryNs);
  }
  if (mode == block::AccessMode::kReadOnly) {
    locks_[disk].readers.insert(process);
  } else {
    locks_[disk].writer = process;
  }
  co_return Ok{};
}

Task<void> HostStorage::Unlock(Reactor& control, uint64_t process, std::string disk) {
  auto delay = Delay(control, process);
  co_await std::move(delay);
  if (!IsAlive(process)) co_return;
  Locks& locks = locks_[disk];
  if (locks.writer == process) locks.writer = 0;
  locks.readers.erase(process);
}

Task<Result<engine::OpenDisk>> HostDisks::Open(const engine::DiskSpec& disk, block::AccessMode mode,
                                               std::shared_ptr<qos::Group> group,
                                               engine::DiskEvents /*events*/) {
  auto delay = storage_.Delay(control_, process_);
  co_await std::move(delay);
  if (storage_.DrawFailure()) co_return Error(ErrorCode::kUnavailable, disk.name + ": its storage is away");
  modules::NullOptions options(
      block::DiskShape(disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes));
  auto open = modules::OpenNull(std::move(options));
  auto opened = co_await std::move(open);
  CLEAT_CHECK(opened.ok());
  std::unique_ptr<block::Device> top =
      std::make_unique<LockedDisk>(storage_, control_, process_, std::move(*opened));
  auto made = engine::MakeLimitedPipeline(top, disk.limits.limits, std::move(group), mode);
  CLEAT_CHECK(made.ok());
  co_return made;
}

// ---- Guests

void HostStorage::LetIn(uint64_t process, const std::string& controller) {
  if (!IsAlive(process)) return;
  const uint64_t server = ServerOf(controller);
  if (server != 0 && server != process && !undecided_.contains(controller))
    world_.Violation(Numbered(process) + " serves " + controller + ", which " + Numbered(server) + " serves");
  waiting_[controller].insert(process);
  if (server == 0) LetNextIn(controller);
}

void HostStorage::LetGo(uint64_t process, const std::string& controller) {
  waiting_[controller].erase(process);
  if (ServerOf(controller) != process) return;
  servers_[controller] = 0;
  LetNextIn(controller);
}

// The guest listens on, and goes on with whoever has connected meanwhile.
void HostStorage::LetNextIn(const std::string& controller) {
  std::set<uint64_t>& waiting = waiting_[controller];
  if (!waiting.empty()) servers_[controller] = waiting.extract(waiting.begin()).value();
}

uint64_t HostStorage::ServerOf(const std::string& controller) const {
  const auto found = servers_.find(controller);
  return found == servers_.end() ? 0 : found->second;
}

Result<std::unique_ptr<vhost::Endpoint>> HostEndpoints::Make(const vhost::EndpointOptions& options,
                                                             virtio::DeviceModel& /*model*/,
                                                             vhost::StatusFn on_status) {
  return std::unique_ptr<vhost::Endpoint>(
      std::make_unique<HostEndpoint>(storage_, control_, process_, options.name, std::move(on_status)));
}

// ---- Actor

bool HostStorage::Step() {
  if (NextNs() > world_.now_ns()) return false;
  Free(to_free_.begin()->second);
  to_free_.erase(to_free_.begin());
  return true;
}

uint64_t HostStorage::NextNs() const {
  return to_free_.empty() ? kNoDeadline : to_free_.begin()->first;
}

std::string HostStorage::Describe() const {
  std::string text = "storage:";
  for (const auto& [disk, locks] : locks_) {
    if (locks.writer != 0) text += " " + disk + " of " + std::to_string(locks.writer) + ";";
  }
  for (const auto& [controller, server] : servers_) {
    if (server != 0) text += " " + controller + " of " + std::to_string(server) + ";";
  }
  return text;
}

}  // namespace cleat::sim
