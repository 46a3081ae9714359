// SPDX-License-Identifier: Apache-2.0
#include "engine/controller.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "virtio/blk_model.h"

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

}  // namespace

struct Controller::AttachedDisk {
  AttachmentSpec spec;
  AttachmentState state = AttachmentState::kOpening;
  std::string message;
  std::unique_ptr<block::Pipeline> pipeline;
  bool acquired = false;
  // By I/O reactor; made and destroyed there.
  std::vector<std::unique_ptr<block::PipelineChannel>> channels;
  std::unique_ptr<virtio::DeviceModel> model;
  std::unique_ptr<vhost::Endpoint> endpoint;
};

Controller::Controller(ControllerContext& context, const ControllerSpec& spec)
    : context_(context), spec_(spec), operations_(context.control) {}

Controller::~Controller() {
  CLEAT_CHECK(disk_ == nullptr);
}

ControllerReport Controller::Report() const {
  ControllerReport report;
  report.spec = spec_;
  if (disk_ != nullptr && disk_->endpoint != nullptr) {
    const vhost::EndpointStatus status = disk_->endpoint->status();
    report.state = StateOf(status.state);
    report.message = status.message;
    report.rings_up = status.rings_up;
    report.connections = status.connections;
  } else {
    report.message = "no disk attached: a blk controller connects to its peer once it has one";
  }
  if (closing_) report.state = ControllerState::kClosing;
  return report;
}

std::optional<AttachmentReport> Controller::Attachment() const {
  if (disk_ == nullptr) return std::nullopt;
  return AttachmentReport{disk_->spec, disk_->state, disk_->message};
}

void Controller::Changed() const {
  context_.on_controller_changed(spec_.name);
}

void Controller::SetState(AttachedDisk& disk, AttachmentState state, const std::string& message) {
  disk.state = state;
  disk.message = message;
  context_.on_attachment_changed(spec_.name, disk.spec.target);
}

Status Controller::CheckAttachable(const AttachmentSpec& attachment) const {
  if (closed_) return Error(ErrorCode::kNotFound, spec_.name + " was deleted");
  if (attachment.target != 0) {
    return Error(ErrorCode::kInvalidArgument, spec_.name + ": a blk controller has target 0 only, not " +
                                                  std::to_string(attachment.target));
  }
  if (disk_ != nullptr && !disk_->spec.SameAs(attachment)) {
    return Error(ErrorCode::kAlreadyExists,
                 spec_.name + " has " + disk_->spec.disk.name + " attached; detach it before attaching " +
                     attachment.disk.name +
                     (disk_->spec.disk.name == attachment.disk.name ? " in another way" : ""));
  }
  return Ok{};
}

Task<Status> Controller::Attach(const AttachmentSpec& attachment) {
  const auto guard = co_await operations_.Lock();
  const Status attachable = CheckAttachable(attachment);
  if (!attachable) co_return attachable;
  if (disk_ != nullptr) {
    disk_->spec.revision = attachment.revision;
    context_.on_attachment_changed(spec_.name, attachment.target);
    co_return Ok{};
  }
  disk_ = std::make_unique<AttachedDisk>();
  disk_->spec = attachment;
  SetState(*disk_, AttachmentState::kOpening, "opening " + attachment.disk.name);

  auto open = OpenDisk(*disk_);
  Status opened = co_await std::move(open);
  if (!opened) {
    spdlog::warn("attaching {} to {} failed: {}", attachment.disk.name, spec_.name, opened.error().message);
    auto take_down = TakeDown();
    co_await std::move(take_down);
    co_return opened;
  }
  SetState(*disk_, AttachmentState::kActive, "");
  Changed();
  spdlog::info("attached {} to {}", attachment.disk.name, spec_.name);
  co_return Ok{};
}

Task<Status> Controller::OpenDisk(AttachedDisk& disk) {
  const auto mode = disk.spec.read_only ? block::AccessMode::kReadOnly : block::AccessMode::kReadWrite;
  auto open = context_.disks.Open(disk.spec.disk, mode);
  auto pipeline = co_await std::move(open);
  if (!pipeline) co_return std::move(pipeline).error();
  disk.pipeline = std::move(pipeline).value();

  auto acquire = disk.pipeline->Acquire();
  Status acquired = co_await std::move(acquire);
  if (!acquired) co_return acquired;
  disk.acquired = true;

  auto open_channels = OpenChannels(disk);
  Status channels = co_await std::move(open_channels);
  if (!channels) co_return channels;

  // The channel of the reactor that asks, which is one of the first `queues`.
  const auto channel_of = [&disk](Reactor& io) -> block::PipelineChannel* {
    return io.index() < disk.channels.size() ? disk.channels[io.index()].get() : nullptr;
  };
  disk.model = std::make_unique<virtio::BlkModel>(disk.pipeline->geometry(), mode, disk.spec.disk.serial,
                                                  spec_.queues, channel_of);

  vhost::EndpointOptions endpoint_options;
  endpoint_options.name = spec_.name;
  endpoint_options.socket_path = spec_.socket_path;
  endpoint_options.mode =
      spec_.socket_mode == SocketMode::kClient ? vhost::SocketMode::kClient : vhost::SocketMode::kServer;
  auto endpoint = context_.endpoints.Make(endpoint_options, *disk.model, [this] { Changed(); });
  if (!endpoint) co_return std::move(endpoint).error();
  disk.endpoint = std::move(endpoint).value();
  co_return disk.endpoint->Start();
}

// Queue q runs on reactor q modulo their number, so the first `queues` reactors are enough.
Task<Status> Controller::OpenChannels(AttachedDisk& disk) {
  const size_t count = std::min<size_t>(spec_.queues, context_.io_reactors.size());
  disk.channels.resize(count);
  Status result;
  for (size_t i = 0; i < count && result.ok(); ++i) {
    Reactor& io = *context_.io_reactors[i];
    co_await io.Enter();
    auto channel = disk.pipeline->OpenChannel(io);
    if (channel) {
      disk.channels[i] = std::move(channel).value();
    } else {
      result = std::move(channel).error();
    }
    co_await context_.control.Enter();
  }
  co_return result;
}

Task<void> Controller::CloseChannels(AttachedDisk& disk) {
  for (size_t i = 0; i < disk.channels.size(); ++i) {
    if (disk.channels[i] == nullptr) continue;
    co_await context_.io_reactors[i]->Enter();
    disk.channels[i].reset();
    co_await context_.control.Enter();
  }
}

// Takes back whatever part of an attach was done, in the opposite order.
Task<void> Controller::TakeDown() {
  AttachedDisk& disk = *disk_;
  const uint32_t target = disk.spec.target;
  if (disk.endpoint != nullptr) {
    auto stop = disk.endpoint->Stop();
    co_await std::move(stop);
    disk.endpoint.reset();
  }
  disk.model.reset();
  auto close_channels = CloseChannels(disk);
  co_await std::move(close_channels);
  if (disk.pipeline != nullptr) {
    if (disk.acquired) {
      auto release = disk.pipeline->Release();
      const Status released = co_await std::move(release);
      if (!released) spdlog::error("releasing {}: {}", disk.spec.disk.name, released.error().message);
    }
    auto close = disk.pipeline->Close();
    const Status closed = co_await std::move(close);
    if (!closed) spdlog::error("closing {}: {}", disk.spec.disk.name, closed.error().message);
  }
  disk_.reset();
  context_.on_attachment_changed(spec_.name, target);
  Changed();
}

Task<Status> Controller::Detach(uint32_t target) {
  const auto guard = co_await operations_.Lock();
  if (disk_ == nullptr || disk_->spec.target != target) co_return Ok{};
  const std::string name = disk_->spec.disk.name;
  SetState(*disk_, AttachmentState::kClosing, "waiting for requests in flight");
  auto take_down = TakeDown();
  co_await std::move(take_down);
  spdlog::info("detached {} from {}", name, spec_.name);
  co_return Ok{};
}

Task<Status> Controller::Close(CloseMode mode) {
  const auto guard = co_await operations_.Lock();
  if (closed_) co_return Ok{};
  if (disk_ != nullptr && mode == CloseMode::kRefuseIfAttached) {
    co_return Error(ErrorCode::kFailedPrecondition,
                    spec_.name + " has " + disk_->spec.disk.name + " attached: detach it first");
  }
  closed_ = closing_ = true;
  if (disk_ != nullptr) {
    SetState(*disk_, AttachmentState::kClosing, "the controller is closing");
    Changed();
    auto take_down = TakeDown();
    co_await std::move(take_down);
  }
  co_return Ok{};
}

}  // namespace cleat::engine
