// SPDX-License-Identifier: Apache-2.0
#include "engine/attached_disk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace cleat::engine {

AttachedDisk::AttachedDisk(ControllerContext& context, const AttachmentSpec& attachment, size_t reactors)
    : spec(attachment), context_(context), channels_(std::min(reactors, context.io_reactors.size())) {}

AttachedDisk::~AttachedDisk() {
  CLEAT_CHECK(pipeline_ == nullptr);
}

Task<Status> AttachedDisk::Open() {
  const auto access = spec.read_only ? block::AccessMode::kReadOnly : block::AccessMode::kReadWrite;
  auto open = context_.disks.Open(spec.disk, access);
  auto pipeline = co_await std::move(open);
  if (!pipeline) co_return std::move(pipeline).error();
  pipeline_ = std::move(pipeline).value();

  auto acquire = pipeline_->Acquire();
  Status acquired = co_await std::move(acquire);
  if (!acquired) co_return acquired;
  acquired_ = true;

  auto channels = OpenChannels();
  co_return co_await std::move(channels);
}

Task<Status> AttachedDisk::OpenChannels() {
  Status result;
  for (size_t i = 0; i < channels_.size() && result.ok(); ++i) {
    Reactor& io = *context_.io_reactors[i];
    co_await io.Enter();
    auto channel = pipeline_->OpenChannel(io);
    if (channel) {
      channels_[i] = std::move(channel).value();
    } else {
      result = std::move(channel).error();
    }
    co_await context_.control.Enter();
  }
  co_return result;
}

Task<void> AttachedDisk::CloseChannels() {
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i] == nullptr) continue;
    co_await context_.io_reactors[i]->Enter();
    channels_[i].reset();
    co_await context_.control.Enter();
  }
}

Task<void> AttachedDisk::Close() {
  if (pipeline_ == nullptr) co_return;
  auto channels = CloseChannels();
  co_await std::move(channels);
  if (std::exchange(acquired_, false)) {
    auto release = pipeline_->Release();
    const Status released = co_await std::move(release);
    if (!released) spdlog::error("releasing {}: {}", spec.disk.name, released.error().message);
  }
  auto close = pipeline_->Close();
  const Status closed = co_await std::move(close);
  if (!closed) spdlog::error("closing {}: {}", spec.disk.name, closed.error().message);
  pipeline_.reset();
}

Task<Status> AttachedDisk::Resize(uint64_t size_bytes) {
  auto resize = pipeline_->Resize(size_bytes);
  Status resized = co_await std::move(resize);
  if (resized) spec.disk.size_bytes = size_bytes;
  co_return resized;
}

}  // namespace cleat::engine
