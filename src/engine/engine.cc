// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "reactor/for_each_concurrently.h"
#include "vhost/descriptors_needed.h"

namespace cleat::engine {
namespace {

Error ShuttingDown() {
  return {ErrorCode::kUnavailable, "this engine is shutting down"};
}

Error NoSuchController(const std::string& name) {
  return {ErrorCode::kNotFound, name + " does not exist in this engine: create it first"};
}

Status CheckSpec(const ControllerSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "controller '" + spec.name + "': " + why);
  };
  if (spec.name.empty()) return refuse("has no name");
  if (spec.queues < 1 || spec.queues > kQueuesMax) {
    return refuse(std::to_string(spec.queues) + " queues: use 1 to " + std::to_string(kQueuesMax));
  }
  if (spec.exported.has_value() != (spec.type == ControllerType::kNvmf))
    return refuse("an export, and nothing else, is of the type NVMF");
  if (spec.exported) return Ok{};
  if (spec.socket_path.empty() || spec.socket_path.front() != '/') {
    return refuse("socket path '" + spec.socket_path + "' is not absolute");
  }
  if (spec.socket_path.size() > kSocketPathBytesMax) {
    return refuse("socket path has " + std::to_string(spec.socket_path.size()) + " bytes: at most " +
                  std::to_string(kSocketPathBytesMax));
  }
  return Ok{};
}

// Of both kinds: those of an engine that stands by are there until it listens where it serves.
uint64_t ListenersOf(const ExportSpec& spec) {
  return spec.addresses.size() + spec.standby_addresses.size();
}

Status CheckSpec(const AttachmentSpec& attachment) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "attaching '" + attachment.disk.name + "': " + why);
  };
  if (attachment.disk.name.empty()) return refuse("the disk has no name");
  CLEAT_TRY(qos::CheckLimits(attachment.disk.limits.limits, attachment.disk.name));
  if (attachment.disk.serial.size() > kSerialBytesMax) {
    return refuse("serial '" + attachment.disk.serial + "' is longer than " +
                  std::to_string(kSerialBytesMax) + " bytes");
  }
  return Ok{};
}

}  // namespace

Engine::Engine(const Parts& parts)
    : parts_(parts),
      placement_(parts.io_reactors),
      context_{parts.control,
               placement_,
               parts.disks,
               parts.endpoints,
               parts.counters,
               [this](const std::string& controller) {
                 if (listener_ != nullptr) listener_->ControllerChanged(controller);
               },
               [this](const std::string& controller, uint32_t target) {
                 if (listener_ != nullptr) listener_->AttachmentChanged(controller, target);
               },
               [this](const std::string& controller, const std::string& disk, uint64_t size_bytes) {
                 Spawn(OnDiskGrew(controller, {disk, size_bytes}));
               },
               parts.descriptors,
               parts.reading,
               parts.earlier_io,
               parts.target,
               parts.keyring,
               parts.unwrapping},
      requests_(parts.control) {}

Engine::~Engine() {
  CLEAT_CHECK(controllers_.empty());
}

std::shared_ptr<Controller> Engine::Find(const std::string& name) const {
  const auto found = controllers_.find(name);
  return found == controllers_.end() ? nullptr : found->second;
}

std::vector<ControllerReport> Engine::Controllers() const {
  std::vector<ControllerReport> reports;
  reports.reserve(controllers_.size());
  for (const auto& [name, controller] : controllers_) reports.push_back(controller->Report());
  return reports;
}

std::vector<AttachmentReport> Engine::Attachments() const {
  std::vector<AttachmentReport> reports;
  for (const auto& [name, controller] : controllers_) {
    for (AttachmentReport& report : controller->Attachments()) reports.push_back(std::move(report));
  }
  return reports;
}

std::optional<ControllerReport> Engine::ControllerByName(const std::string& name) const {
  const auto controller = Find(name);
  if (controller == nullptr) return std::nullopt;
  return controller->Report();
}

std::optional<AttachmentReport> Engine::AttachmentByKey(const std::string& controller,
                                                        uint32_t target) const {
  const auto found = Find(controller);
  if (found == nullptr) return std::nullopt;
  return found->Attachment(target);
}

Status Engine::PutController(const ControllerSpec& spec, Controller::Role role) {
  if (requests_.closed()) return ShuttingDown();
  CLEAT_TRY(CheckSpec(spec));
  if (const auto existing = Find(spec.name)) {
    if (existing->Report().state == ControllerState::kClosing) {
      return Error(ErrorCode::kAborted, spec.name + " is being deleted: try again when it is gone");
    }
    if (!existing->spec().SameAs(spec)) {
      return Error(
          ErrorCode::kFailedPrecondition,
          spec.name + " exists on " +
              (existing->spec().exported ? existing->spec().exported->nqn : existing->spec().socket_path) +
              " with other settings, which can't change while it lives: delete it first");
    }
    existing->Update(spec);
    return Ok{};
  }
  auto group = spec.group.empty() ? nullptr : parts_.groups.Find(spec.group);
  if (!spec.group.empty() && group == nullptr) {
    return Error(ErrorCode::kNotFound,
                 spec.name + ": " + spec.group + " does not exist in this engine: put it first");
  }
  if (controllers_.size() >= kControllersMax) {
    return Error(ErrorCode::kResourceExhausted,
                 spec.name + ": this engine has " + std::to_string(kControllersMax) +
                     " controllers, the most that one process can serve; start " + "another engine");
  }
  CLEAT_TRY(CheckPlace(spec));
  // A controller that stands by reserves as well: that its guest can be taken must not depend on what is left then.
  CLEAT_ASSIGN(auto descriptors,
               context_.Reserve(spec.exported ? ListenersOf(*spec.exported)
                                              : vhost::DescriptorsNeeded(QueuesOf(spec), ModeOf(spec)),
                                spec.name));
  const auto controller =
      std::make_shared<Controller>(context_, spec, std::move(group), std::move(descriptors), role);
  controllers_.emplace(spec.name, controller);
  context_.on_controller_changed(spec.name);
  return Ok{};
}

// That its guests find it and no other.
Status Engine::CheckPlace(const ControllerSpec& spec) const {
  if (spec.exported && parts_.target == nullptr)
    return Error(ErrorCode::kUnimplemented, spec.name + ": this engine has no NVMe/TCP target");
  for (const auto& [name, controller] : controllers_) {
    const ControllerSpec& other = controller->spec();
    if (spec.exported && other.exported && spec.exported->nqn == other.exported->nqn) {
      return Error(ErrorCode::kAlreadyExists,
                   spec.name + ": the NQN " + spec.exported->nqn + " is " + name + "'s: choose another one");
    }
    if (!spec.exported && other.socket_path == spec.socket_path) {
      return Error(ErrorCode::kAlreadyExists,
                   spec.name + ": socket " + spec.socket_path + " is " + name + "'s: choose another path");
    }
  }
  return Ok{};
}

Task<void> Engine::AwaitHosts(std::string name) {
  const Gate::Holder holder(requests_);
  const auto controller = Find(name);
  if (holder && controller != nullptr) co_await controller->AwaitHosts();
}

Status Engine::ServeController(const std::string& name) {
  if (requests_.closed()) return ShuttingDown();
  const auto controller = Find(name);
  if (controller == nullptr) return NoSuchController(name);
  return controller->Serve();
}

Task<Result<Yielded>> Engine::YieldController(std::string name, uint64_t drain_ns) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  const auto controller = Find(name);
  if (controller == nullptr) co_return NoSuchController(name);
  co_return co_await controller->Yield(parts_.control.now_ns() + drain_ns);
}

Task<Status> Engine::TakeController(std::string name, Yielded yielded, UniqueFd counters) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  const auto controller = Find(name);
  if (controller == nullptr) co_return NoSuchController(name);
  const bool stood_by = controller->stands_by();
  Status taken = co_await controller->Take(yielded.hand_over, std::move(yielded.connections));
  if (taken && stood_by && counters) {
    co_await controller->ImportCounters(std::move(counters), yielded.hand_over);
  }
  co_return taken;
}

Task<Status> Engine::DeleteController(std::string name) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  const auto controller = Find(name);
  if (controller == nullptr) co_return Ok{};
  CLEAT_CO_TRY(co_await controller->Close(Controller::CloseMode::kRefuseIfAttached));
  // Two deletes may have waited for one another; the name may be somebody else's by now.
  if (Find(name) == controller) {
    controllers_.erase(name);
    context_.on_controller_changed(name);
  }
  co_return Ok{};
}

Task<Status> Engine::Attach(AttachmentSpec attachment) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  CLEAT_CO_TRY(CheckSpec(attachment));
  const auto controller = Find(attachment.controller);
  if (controller == nullptr) co_return NoSuchController(attachment.controller);
  if (attachment.incoming && controller->spec().exported)
    co_return Error(ErrorCode::kInvalidArgument,
                    attachment.controller + ": hosts of an export do not migrate");
  co_return co_await controller->Attach(attachment);
}

Task<Status> Engine::Detach(std::string controller_name, uint32_t target) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  const auto controller = Find(controller_name);
  if (controller == nullptr) co_return Ok{};
  co_return co_await controller->Detach(target);
}

Status Engine::KeepMemory(const MemoryReport& memory, UniqueFd fd) {
  if (requests_.closed()) return ShuttingDown();
  DescriptorBudget::Reservation kept;
  if (!memory_descriptors_.contains(memory.disk)) {
    CLEAT_ASSIGN(kept, context_.Reserve(1, memory.disk));
  }
  CLEAT_TRY(parts_.memories.Keep(memory, std::move(fd)));
  memory_descriptors_.try_emplace(memory.disk, std::move(kept));
  return Ok{};
}

Status Engine::DropMemory(const std::string& disk) {
  for (const auto& [name, controller] : controllers_) {
    if (controller->Has(disk)) {
      return Error(ErrorCode::kFailedPrecondition,
                   fmt::format("{} is attached to {}: detach it first", disk, name));
    }
  }
  parts_.memories.Drop(disk);
  memory_descriptors_.erase(disk);
  return Ok{};
}

Task<Status> Engine::ResizeDisk(ResizeSpec resize) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  CLEAT_CO_TRY(parts_.memories.Grow(resize.disk, resize.size_bytes));
  std::vector<std::shared_ptr<Controller>> having;  // which outlive a wait
  for (const auto& [name, controller] : controllers_) {
    if (controller->Has(resize.disk)) having.push_back(controller);
  }
  for (const auto& controller : having) {
    CLEAT_CO_TRY(co_await controller->Resize(resize));
  }
  co_return Ok{};
}

Task<void> Engine::OnDiskGrew(std::string controller_name, ResizeSpec resize) {
  const Gate::Holder holder(requests_);
  const auto controller = Find(controller_name);
  if (!holder || controller == nullptr) co_return;
  const Status grown = co_await controller->Resize(resize);
  if (!grown)
    spdlog::warn("{}: resize not propagated to the guest of {}: {}", resize.disk, controller_name,
                 grown.error().message);
}

// ---- Clusters

Status Engine::PutCluster(const ClusterSpec& cluster) {
  if (requests_.closed()) return ShuttingDown();
  return parts_.clusters.Put(cluster);
}

Status Engine::DropCluster(const std::string& name) {
  parts_.clusters.Drop(name);
  return Ok{};
}

// ---- Limits

Status Engine::ShareGroups(UniqueFd memory) {
  if (requests_.closed()) return ShuttingDown();
  return parts_.groups.UseMemory(std::move(memory));
}

Status Engine::PutGroup(const GroupSpec& group) {
  if (requests_.closed()) return ShuttingDown();
  return parts_.groups.Put(group);
}

Status Engine::DropGroup(const std::string& name) {
  for (const auto& [controller_name, controller] : controllers_) {
    if (controller->spec().group == name) {
      return Error(ErrorCode::kFailedPrecondition,
                   fmt::format("{} has {}: delete that first", name, controller_name));
    }
  }
  return parts_.groups.Drop(name);
}

Status Engine::LimitDisk(const LimitSpec& limit) {
  if (requests_.closed()) return ShuttingDown();
  CLEAT_TRY(qos::CheckLimits(limit.limits.limits, limit.disk));
  for (const auto& [name, controller] : controllers_) controller->Limit(limit);
  return Ok{};
}

Task<Result<DiscoveryReport>> Engine::Discover(DiscoverySpec discovery, DiscoverySeen seen,
                                               CancelToken& cancel) {
  const Gate::Holder holder(requests_);
  if (!holder) co_return ShuttingDown();
  if (!parts_.discover)
    co_return Error(ErrorCode::kUnimplemented, "this engine was built without a way to discovery services");
  const CancelToo ends_with_engine(ending_, cancel);
  co_return co_await parts_.discover(std::move(discovery), std::move(seen), cancel);
}

Task<void> Engine::Shutdown() {
  auto no_requests = requests_.Close();
  ending_.Cancel();
  parts_.endpoints.ProcessEnds();
  const auto controllers = controllers_;
  const auto close = [this](const auto& named) -> Task<void> {
    const std::shared_ptr<Controller> controller = named.second;
    const Status closed = co_await controller->Close(Controller::CloseMode::kDetach);
    CLEAT_CHECK(closed.ok());
    if (Find(named.first) == controller) controllers_.erase(named.first);
  };
  co_await ForEachConcurrently(parts_.control, controllers, close);
  co_await no_requests;
}

}  // namespace cleat::engine
