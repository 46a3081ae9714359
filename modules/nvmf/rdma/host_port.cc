// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/rdma/host_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace cleat::modules {

using nvme::rdma_host::HostAdapter;

namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint32_t kCommandsLeast = 256;  // one I/O queue, and some
constexpr uint32_t kWindowsLeast = 64;

}  // namespace

HostPort::HostPort(rdma::Device& device, Reactor& reactor, const Size& size, std::function<void()> on_failed)
    : RdmaPortPoller(reactor, std::move(on_failed)), device_(device), size_(size), data_(size.slabs) {}

Result<std::unique_ptr<HostPort>> HostPort::Make(rdma::Device& device, Reactor& reactor, const Size& size,
                                                 nvme::rdma_host::DirectMemory* direct,
                                                 std::function<void()> on_failed) {
  std::unique_ptr<HostPort> made(new HostPort(device, reactor, size, std::move(on_failed)));
  CLEAT_TRY(made->FitToDevice());
  CLEAT_TRY(made->MakeMemory());
  CLEAT_TRY(made->MakeWindows());
  const Size& fits = made->size_;
  const uint32_t completions = HostAdapter::CompletionEntries(fits.commands, fits.windows);
  CLEAT_ASSIGN(made->completions_, device.MakeCompletionQueue(completions, reactor.index()));
  made->SetCompletions(*made->completions_, completions);
  CLEAT_ASSIGN(made->receives_, device.MakeReceiveQueue(HostAdapter::ReceiveEntries(fits.commands)));
  nvme::rdma_host::HostAdapterOptions options;
  options.commands = fits.commands;
  if (fits.queue_commands > 0) options.queues_max = fits.commands / fits.queue_commands;
  options.in_capsule_bytes = fits.in_capsule_bytes;
  options.slot_memory = {.address = reinterpret_cast<uint64_t>(made->slots_.get()),
                         .length_bytes = static_cast<uint32_t>(
                             HostAdapter::SlotMemoryBytes(fits.commands, fits.in_capsule_bytes)),
                         .local_key = made->slots_registration_->local_key()};
  options.direct = direct;
  options.data_registration = made->data_registration_.get();
  for (const auto& window : made->windows_) options.windows.push_back(window.get());
  options.completions_max = completions;
  made->adapter_ =
      std::make_unique<HostAdapter>(std::move(options), made->data_, *made->completions_, *made->receives_);
  return made;
}

Status HostPort::FitToDevice() {
  const rdma::DeviceLimits& limits = device_.limits();
  if (!limits.windows_of_type_2b) {
    return Error(
        ErrorCode::kUnimplemented,
        device_.name() +
            ": the adapter has no memory windows of type 2B, by which a target reaches the memory of "
            "one command alone: take another adapter, or reach the target over TCP");
  }
  size_.windows = std::min(size_.windows, limits.windows);
  const auto fits = [this, &limits](uint32_t commands) {
    return HostAdapter::ReceiveEntries(commands) <= limits.receive_entries &&
           HostAdapter::CompletionEntries(commands, std::min(size_.windows, commands)) <=
               limits.completion_entries;
  };
  while (size_.commands >= kCommandsLeast && !fits(size_.commands)) size_.commands /= 2;
  if (size_.commands >= kCommandsLeast && size_.windows > 0) {
    size_.windows = std::min(size_.windows, size_.commands);
    return {};
  }
  return Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: the adapter has room for {} completions, {} receives and {} memory windows, "
                  "which is too little to reach targets by it",
                  device_.name(), limits.completion_entries, limits.receive_entries, limits.windows));
}

Status HostPort::MakeMemory() {
  const uint64_t bytes =
      (HostAdapter::SlotMemoryBytes(size_.commands, size_.in_capsule_bytes) + kPageBytes - 1) / kPageBytes *
      kPageBytes;
  slots_ = {static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, bytes)),
            [](uint8_t* memory) { std::free(memory); }};
  if (slots_ == nullptr)
    return Error(ErrorCode::kResourceExhausted, device_.name() + ": no memory for commands to targets");
  CLEAT_ASSIGN(slots_registration_, device_.Register({slots_.get(), bytes}, {.local_write = true}));
  const block::MemoryRegion& data = *data_.region();
  CLEAT_ASSIGN(data_registration_,
               device_.Register({data.base(), data.size_bytes()}, {.local_write = true, .windows = true}));
  return {};
}

// An adapter may have fewer windows left than it says it has, as others make some, too.
Status HostPort::MakeWindows() {
  while (windows_.size() < size_.windows) {
    auto window = device_.MakeWindow();
    if (!window.ok() && windows_.size() >= kWindowsLeast) break;
    CLEAT_ASSIGN(auto made, std::move(window));
    windows_.push_back(std::move(made));
  }
  size_.windows = static_cast<uint32_t>(windows_.size());
  return {};
}

std::vector<rdma::MemoryWindow*> HostPort::Replace(std::span<rdma::MemoryWindow* const> windows) {
  std::vector<rdma::MemoryWindow*> fresh;
  for (rdma::MemoryWindow* const window : windows) {
    const auto owned =
        std::ranges::find_if(windows_, [window](const auto& known) { return known.get() == window; });
    CLEAT_CHECK(owned != windows_.end());
    owned->reset();
    auto made = device_.MakeWindow();
    if (made.ok()) *owned = std::move(made).value();
    fresh.push_back(owned->get());
  }
  return fresh;
}

// ---- On the reactor

bool HostPort::Poll() {
  const bool found = Count(adapter_->Poll(kPollMax));
  if (adapter_->failed()) [[unlikely]]
    Fail();
  return found;
}

}  // namespace cleat::modules
