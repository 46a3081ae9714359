// SPDX-License-Identifier: Apache-2.0
#include "engine/controller/controller.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace cleat::engine {
namespace {

ControllerState StateOf(vhost::EndpointState state) {
  switch (state) {
    case vhost::EndpointState::kConnecting:
    case vhost::EndpointState::kStopped:
      return ControllerState::kConnecting;
    case vhost::EndpointState::kHandshake:
    case vhost::EndpointState::kDraining:
      return ControllerState::kHandshake;
    case vhost::EndpointState::kReady:
      return ControllerState::kReady;
    case vhost::EndpointState::kBroken:
      return ControllerState::kBroken;
  }
  return ControllerState::kConnecting;
}

constexpr const char* kIncomingMessage =
    "waits for its VM, which migrates here: taken when the guest's rings start";

}  // namespace

Controller::Controller(ControllerContext& context, const ControllerSpec& spec,
                       std::shared_ptr<qos::Group> group, DescriptorBudget::Reservation descriptors,
                       Role role)
    : context_(context),
      spec_(spec),
      group_(std::move(group)),
      descriptors_(std::move(descriptors)),
      reactors_(context.placement.Take(QueuesOf(spec))),
      ownership_(context, spec_, targets_, [this] { Changed(); }),
      guest_device_(MakeGuestDevice(context, spec_, reactors_, ownership_, [this] { Changed(); })),
      stands_by_(role == Role::kStandBy) {
  ownership_.SetGuestDevice(*guest_device_);
  if (stands_by_) guest_device_->StandBy();
  for (uint32_t i = 0; i < guest_device_->targets(); ++i)
    targets_.push_back(std::make_unique<Target>(context.control));
}

Controller::~Controller() {
  for (const auto& target : targets_) CLEAT_CHECK(target->disk == nullptr);
  context_.placement.GiveBack(reactors_, QueuesOf(spec_));
}

// ---- What is

ControllerReport Controller::Report() const {
  ControllerReport report;
  report.spec = spec_;
  if (const auto status = guest_device_->status()) {
    report.state = StateOf(status->state);
    report.message = status->message;
    report.rings_up = status->rings_up;
    report.connections = status->connections;
  } else if (stands_by_) {
    report.state = ControllerState::kStandby;
    report.message = "stands by: another engine serves it";
  } else {
    report.message = guest_device_->idle_reason();
  }
  report.next_disk = guest_device_->next_disk();
  if (closed_) report.state = ControllerState::kClosing;
  return report;
}

std::vector<AttachmentReport> Controller::Attachments() const {
  std::vector<AttachmentReport> reports;
  for (const auto& target : targets_) {
    if (target->disk != nullptr) reports.push_back(target->disk->Report());
  }
  return reports;
}

std::optional<AttachmentReport> Controller::Attachment(uint32_t target) const {
  if (target >= targets_.size() || targets_[target]->disk == nullptr) return std::nullopt;
  return targets_[target]->disk->Report();
}

bool Controller::Has(const std::string& disk) const {
  for (const auto& target : targets_) {
    if (target->disk != nullptr && target->disk->spec.disk.name == disk) return true;
  }
  return false;
}

void Controller::SetState(AttachedDisk& disk, AttachmentState state, const std::string& message) {
  disk.state = state;
  disk.message = message;
  context_.on_attachment_changed(spec_.name, disk.spec.target);
}

void Controller::Update(const ControllerSpec& spec) {
  spec_.revision = spec.revision;
  if (spec.exported) {
    spec_.exported->hosts = spec.exported->hosts;
    spec_.exported->hosts_revision = spec.exported->hosts_revision;
    guest_device_->HostsChanged();
    Changed();
  }
  if (spec_.last_disk == spec.last_disk) return;
  spec_.last_disk = spec.last_disk;
  spec_.last_disk_name = spec.last_disk_name;
  guest_device_->LastDiskChanged();
  Changed();
}

Status Controller::Serve() {
  if (closed_) return Error(ErrorCode::kNotFound, spec_.name + " was deleted");
  if (stands_by_) {
    return Error(ErrorCode::kFailedPrecondition, spec_.name + " stands by: it has to be taken to be served");
  }
  Status served = guest_device_->Serve(UniqueFd());
  if (served) Changed();
  return served;
}

// ---- Attach

Status Controller::CheckAttachable(const AttachmentSpec& attachment) const {
  if (attachment.target < targets_.size()) return Ok{};
  return Error(ErrorCode::kInvalidArgument,
               spec_.name + ": there is no target " + std::to_string(attachment.target) + ": " +
                   (targets_.size() == 1 ? "a blk controller has target 0 only"
                                         : "use 0 to " + std::to_string(targets_.size() - 1)));
}

Status Controller::CheckUntaken(const Target& target, const AttachmentSpec& attachment) const {
  if (closed_) return Error(ErrorCode::kNotFound, spec_.name + " was deleted");
  if (target.disk == nullptr || target.disk->spec.SameAs(attachment)) return Ok{};
  const bool same_disk = target.disk->spec.disk.name == attachment.disk.name;
  return Error(ErrorCode::kAlreadyExists, spec_.name + " has " + target.disk->spec.disk.name +
                                              " attached at target " + std::to_string(attachment.target) +
                                              "; detach it before attaching " + attachment.disk.name +
                                              (same_disk ? " in another way" : ""));
}

Task<Status> Controller::Attach(const AttachmentSpec& attachment) {
  CLEAT_CO_TRY(CheckAttachable(attachment));
  Target& target = *targets_[attachment.target];
  const auto guard = co_await target.operations.Lock();
  CLEAT_CO_TRY(CheckUntaken(target, attachment));
  if (target.disk != nullptr) {
    target.disk->spec.revision = attachment.revision;
    if (attachment.disk.limits.revision > target.disk->spec.disk.limits.revision) {
      target.disk->SetLimits(attachment.disk.limits);
      target.disk->SetOnNoSpace(attachment.disk.on_no_space);
      target.disk->SetInDoubt(attachment.disk.in_doubt);
    }
    context_.on_attachment_changed(spec_.name, attachment.target);
    co_return Ok{};
  }
  const uint32_t files = FilesOf(attachment.disk.backend, reactors_.size());
  CLEAT_CO_ASSIGN(auto descriptors, context_.Reserve(files, attachment.disk.name));
  target.disk = std::make_unique<AttachedDisk>(context_, attachment, reactors_, group_);
  target.disk->descriptors = std::move(descriptors);
  SetState(*target.disk, AttachmentState::kOpening, "opening " + attachment.disk.name);

  Status shown = co_await Show(*target.disk);
  if (!shown) {
    spdlog::warn("{}: not attached to {}: {}", attachment.disk.name, spec_.name, shown.error().message);
    co_await Teardown(target, block::Device::Parting::kAttachFailed);
    co_return shown;
  }
  if (stands_by_) {
    SetState(*target.disk, AttachmentState::kStandby, "");
  } else if (!target.disk->owned()) {
    SetState(*target.disk, AttachmentState::kIncoming, kIncomingMessage);
  } else {
    SetState(*target.disk, AttachmentState::kActive, "");
    if (target.disk->acquire_pending) ownership_.GoOnReleasing();
  }
  Changed();
  if (stands_by_) {
    spdlog::info("{}: prepared on {}: target {}", attachment.disk.name, spec_.name, attachment.target);
  } else {
    spdlog::info("{}: attached to {}: target {}{}", attachment.disk.name, spec_.name, attachment.target,
                 target.disk->owned() ? "" : ", incoming");
  }
  co_return Ok{};
}

Task<Status> Controller::Show(AttachedDisk& disk) {
  CLEAT_CO_TRY(co_await disk.Open());
  if (stands_by_) {
    // Take acquires it.
  } else if (disk.spec.incoming && !ownership_.wanted()) {
    disk.acquire_pending = true;
  } else {
    CLEAT_CO_TRY(co_await disk.Acquire());
    if (ownership_.wanted()) disk.StayHere();  // rings run already, whatever an engine before was about
  }
  disk.shown = true;  // also if that fails half-way
  Status added = co_await guest_device_->Add(disk);
  if (added && !disk.fenced().empty()) added = Error(ErrorCode::kUnavailable, disk.fenced());
  co_return added;
}

// ---- Detach, close

// Takes back whatever part of an attach was done, in the opposite order.
Task<void> Controller::Teardown(Target& target, block::Device::Parting parting) {
  AttachedDisk& disk = *target.disk;
  const uint32_t number = disk.spec.target;
  if (disk.shown) {
    // A disk that is still to be acquired, and that no ring has asked for, has its guest on another host: gone there, or
    // still to come. The next guest whose rings start here may come with a disk at this target, which this removal must
    // not take from it.
    const bool guest_is_here = !disk.acquire_pending || ownership_.wanted();
    co_await guest_device_->Remove(disk, guest_is_here);
  }
  co_await disk.Close(parting);
  target.disk.reset();
  context_.on_attachment_changed(spec_.name, number);
  Changed();
}

Task<Status> Controller::Detach(uint32_t number) {
  if (number >= targets_.size()) co_return Ok{};
  Target& target = *targets_[number];
  const auto guard = co_await target.operations.Lock();
  if (target.disk == nullptr) co_return Ok{};
  const std::string name = target.disk->spec.disk.name;
  SetState(*target.disk, AttachmentState::kClosing, "waiting for requests in flight");
  co_await Teardown(target, block::Device::Parting::kDetached);
  spdlog::info("{}: detached from {}", name, spec_.name);
  co_return Ok{};
}

Task<Status> Controller::Close(CloseMode mode) {
  std::vector<AsyncMutex::Guard> guards;
  for (const auto& target : targets_) {
    auto guard = co_await target->operations.Lock();
    guards.push_back(std::move(guard));
  }
  if (closed_) co_return Ok{};
  for (const auto& target : targets_) {
    if (target->disk == nullptr || mode == CloseMode::kDetach) continue;
    co_return Error(ErrorCode::kFailedPrecondition,
                    spec_.name + " has " + target->disk->spec.disk.name + " attached: detach it first");
  }
  closed_ = true;
  for (const auto& target : targets_) {
    if (target->disk != nullptr) {
      SetState(*target->disk, AttachmentState::kClosing, "the controller is closing");
    }
  }
  Changed();
  co_await guest_device_->Close();
  co_await ownership_.Close();
  for (const auto& target : targets_) {
    if (target->disk == nullptr) continue;
    co_await Teardown(*target, block::Device::Parting::kStaysAttached);
  }
  co_return Ok{};
}

// ---- Resize

Task<Status> Controller::Resize(const ResizeSpec& resize) {
  const auto concerns = [&](const Target& target) {
    return target.disk != nullptr && target.disk->spec.disk.name == resize.disk;
  };
  for (const auto& target : targets_) {
    // Before it waits for its turn: another disk's operation may last, its storage hangs.
    if (!concerns(*target)) continue;
    const auto guard = co_await target->operations.Lock();
    if (!concerns(*target)) continue;
    AttachedDisk* disk = target->disk.get();
    // Larger: its storage has grown by itself since this was asked for.
    if (disk->spec.disk.size_bytes >= resize.size_bytes) continue;
    CLEAT_CO_TRY(co_await disk->Resize(resize));
    co_await guest_device_->Resized(*disk);
    context_.on_attachment_changed(spec_.name, disk->spec.target);
    spdlog::info("{}: size changed on {}: {} bytes", resize.disk, spec_.name, resize.size_bytes);
  }
  co_return Ok{};
}

// ---- Limits

void Controller::Limit(const LimitSpec& limit) {
  for (const auto& target : targets_) {
    AttachedDisk* disk = target->disk.get();
    if (disk == nullptr || disk->spec.disk.name != limit.disk) continue;
    disk->SetLimits(limit.limits);
    disk->SetOnNoSpace(limit.on_no_space);
    disk->SetInDoubt(limit.in_doubt);
    context_.on_attachment_changed(spec_.name, disk->spec.target);
  }
}

}  // namespace cleat::engine
