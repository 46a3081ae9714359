// SPDX-License-Identifier: Apache-2.0
#include "engine/attached/attached_disk.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace cleat::engine {

AttachedDisk::AttachedDisk(ControllerContext& context, const AttachmentSpec& attachment,
                           const std::vector<Reactor*>& reactors, std::shared_ptr<qos::Group> group)
    : spec(attachment),
      context_(context),
      group_(std::move(group)),
      storage_(context.control, attachment,
               [this] { context_.on_attachment_changed(spec.controller, spec.target); }) {
  for (Reactor* io : reactors) places_.push_back({io, nullptr, nullptr, storage_.AddCell()});
}

AttachedDisk::~AttachedDisk() {
  CLEAT_CHECK(pipeline_ == nullptr);
}

DiskEvents AttachedDisk::Events() {
  DiskEvents events;
  events.grew = [this](uint64_t size_bytes) {
    grown_bytes_ = size_bytes;
    if (size_bytes > spec.disk.size_bytes) context_.on_disk_grew(spec.controller, spec.disk.name, size_bytes);
  };
  events.fenced = [this](const Error& why) {
    fenced_ = why.message;
    spdlog::error("{}; fenced on {} until then", fenced_, spec.controller);
    if (state != AttachmentState::kActive) return;
    state = AttachmentState::kFenced;
    message = fenced_;
    context_.on_attachment_changed(spec.controller, spec.target);
  };
  events.paths_changed = [this] { storage_.PathsChanged(); };
  return events;
}

AttachmentReport AttachedDisk::Report() const {
  AttachmentReport report{spec, state, message, storage_.state(), {}};
  const std::string storage = storage_.message();
  const bool tells = state == AttachmentState::kOpening || state == AttachmentState::kActive;
  if (!storage.empty()) report.message = tells || message.empty() ? storage : message + "; " + storage;
  if (pipeline_ == nullptr) return report;
  report.io_path = pipeline_->device().io_path().substr(0, kIoPathBytesMax);
  report.paths = pipeline_->device().paths();
  if (report.paths && report.paths->waiting_since_ns != 0)
    report.waiting_since_s = storage_.UnixSeconds(report.paths->waiting_since_ns);
  return report;
}

Task<Status> AttachedDisk::Open() {
  storage_.BeginOpening();
  Status opened = co_await OpenStorage();
  storage_.EndOpening();
  co_return opened;
}

Task<Status> AttachedDisk::OpenStorage() {
  const auto access = spec.read_only ? block::AccessMode::kReadOnly : block::AccessMode::kReadWrite;
  DiskEvents events = Events();
  CLEAT_CO_ASSIGN(auto opened, co_await context_.disks.Open(spec.disk, access, group_, std::move(events)));
  pipeline_ = std::move(opened.pipeline);
  limited_ = opened.limited;
  pipeline_->device().SetUser(spec.controller + " target " + std::to_string(spec.target));
  // The limits may have changed meanwhile.
  if (limited_->limits() != spec.disk.limits.limits) limited_->SetLimits(spec.disk.limits.limits);
  SetOnNoSpace(spec.disk.on_no_space);
  SetInDoubt(spec.disk.in_doubt);
  storage_.SetDevice(pipeline_->device());
  co_return co_await OpenChannels();
}

// What another attachment has left is over from now on, also if a restored store has that one again.
Task<Status> AttachedDisk::Acquire() {
  if (owned_) co_return Ok{};
  Status acquired = co_await pipeline_->Acquire();
  owned_ = acquired.ok();
  if (owned_) {
    AddCounters();
    block::Device& device = pipeline_->device();
    if (device.IsLeaving(spec.revision)) {
      acquire_pending = true;
    } else {
      device.SetLeaving(0);
    }
  }
  co_return acquired;
}

Task<Status> AttachedDisk::Release() {
  if (!std::exchange(owned_, false)) co_return Ok{};
  Status released = co_await pipeline_->Release();
  if (!released) LogNotReleased(released.error());
  co_return released;
}

void AttachedDisk::LogNotReleased(const Error& error) {
  spdlog::error("{}; the storage may take it for owned by this engine", error.message);
}

Task<Status> AttachedDisk::ReleaseToOtherHost() {
  if (!owned_) co_return Ok{};
  block::Device& device = pipeline_->device();
  device.SetLeaving(spec.revision);
  device.SetParting(block::Device::Parting::kToOtherHost);
  Status released = co_await pipeline_->Release();
  device.SetParting(block::Device::Parting::kToNextEngine);
  owned_ = !released && released.error().code == ErrorCode::kAborted;
  if (!released && !owned_) LogNotReleased(released.error());
  co_return released;
}

virtio::DiskChannelRef AttachedDisk::ChannelOn(Reactor& io) const {
  for (const Place& place : places_) {
    if (place.io == &io) {
      observe::ReactorCounters* counters = context_.counters != nullptr ? context_.counters->On(io) : nullptr;
      return {place.channel.get(), place.counters.get(), counters, spec.disk.identity};
    }
  }
  return nullptr;
}

Task<Status> AttachedDisk::OpenChannels() {
  Status result;
  for (Place& place : places_) {
    co_await place.io->Enter();
    auto channel = pipeline_->OpenChannel(*place.io);
    if (channel) {
      place.channel = std::move(channel).value();
      place.channel->SetFailureListener(place.storage.get());
    } else {
      result = std::move(channel).error();
    }
    co_await context_.control.Enter();
    if (!result) break;
  }
  co_return result;
}

// Only of a disk that is owned: what stands by counts nothing.
void AttachedDisk::AddCounters() {
  if (context_.counters == nullptr) return;
  for (Place& place : places_) {
    if (place.counters != nullptr) continue;
    place.counters = context_.counters->AddDisk(spec.controller, spec.disk.name, spec.target, *place.io,
                                                context_.control.now_ns());
    if (place.counters == nullptr) continue;
    place.counters->slow_listener = place.storage.get();
    storage_.AddCounters(*place.counters, *context_.counters->On(*place.io));
  }
}

std::vector<uint64_t> AttachedDisk::Cells() const {
  std::vector<uint64_t> cells;
  for (const Place& place : places_) {
    if (place.counters != nullptr) cells.push_back(place.counters->index());
  }
  return cells;
}

Task<void> AttachedDisk::ImportCounters(const observe::CarriedCounters& carried) {
  if (places_.empty() || places_.front().counters == nullptr || carried.disk != spec.disk.name) co_return;
  Place& place = places_.front();
  co_await place.io->Enter();
  carried.AddTo(*place.counters);
  co_await context_.control.Enter();
}

Task<void> AttachedDisk::CloseChannels() {
  storage_.End();
  for (Place& place : places_) {
    if (place.channel == nullptr) continue;
    co_await place.io->Enter();
    place.channel.reset();
    co_await context_.control.Enter();
    place.counters.reset();
  }
}

Task<void> AttachedDisk::Close(block::Device::Parting parting) {
  if (pipeline_ == nullptr) co_return;
  co_await CloseChannels();
  pipeline_->device().SetParting(parting);
  (void)co_await Release();
  const Status closed = co_await pipeline_->Close();
  if (!closed) spdlog::error("{}; it is detached all the same", closed.error().message);
  pipeline_.reset();
  limited_ = nullptr;
}

void AttachedDisk::SetLimits(const LimitsSpec& limits) {
  spec.disk.limits = limits;
  if (limited_ != nullptr) limited_->SetLimits(limits.limits);
}

void AttachedDisk::SetOnNoSpace(OnNoSpace on_no_space) {
  spec.disk.on_no_space = on_no_space;
  if (pipeline_ != nullptr) pipeline_->SetWaitsForSpace(on_no_space == OnNoSpace::kWait);
}

void AttachedDisk::SetInDoubt(const block::InDoubt& in_doubt) {
  spec.disk.in_doubt = in_doubt;
  if (pipeline_ != nullptr) pipeline_->device().SetInDoubt(in_doubt);
}

std::vector<uint64_t> AttachedDisk::SaveUse() const {
  return limited_ == nullptr ? std::vector<uint64_t>() : limited_->SaveUse();
}

void AttachedDisk::RestoreUse(std::span<const uint64_t> use) {
  if (limited_ != nullptr) limited_->RestoreUse(use);
}

Task<Status> AttachedDisk::Resize(const ResizeSpec& resize) {
  if (!resize.extents.empty()) CLEAT_CO_TRY(co_await pipeline_->Extend(resize.extents));
  CLEAT_CO_TRY(co_await pipeline_->Resize(resize.size_bytes));
  spec.disk.size_bytes = resize.size_bytes;
  spec.disk.backend = WithExtents(spec.disk.backend, resize.extents);
  co_return Ok{};
}

}  // namespace cleat::engine
