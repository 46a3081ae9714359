// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_tcp/driver.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace cleat::perf {

std::optional<uint16_t> NvmePostedQueue::Reserve(uint16_t segments, bool /*indirect*/) {
  if (reserved_ == queue_->slots() || segments > options_.indirect_entries) return std::nullopt;
  return reserved_++;
}

void NvmePostedQueue::Prepare(uint16_t id, std::span<const Segment> chain) {
  CLEAT_CHECK(chain.size() >= 2 && chain.size() <= options_.indirect_entries);
  std::array<iovec, NvmeTcpQueue::kPiecesMax> data;
  const std::span<const Segment> pieces = chain.subspan(1, chain.size() - 2);
  for (size_t i = 0; i < pieces.size(); ++i)
    data[i] = {memory_.Span(pieces[i].gpa, pieces[i].len).data(), pieces[i].len};
  auto* const entry = memory_.At<wire::NvmeCommand>(chain.front().gpa);
  auto* const answer = memory_.At<NvmeAnswer>(chain.back().gpa);
  CLEAT_CHECK(entry != nullptr && answer != nullptr);
  queue_->Prepare(id, {.entry = entry,
                       .answer = answer,
                       .data = std::span(data).first(pieces.size()),
                       .to_host = !pieces.empty() && pieces.front().writable});
}

Result<std::unique_ptr<NvmeTcpDriver>> NvmeTcpDriver::Start(GuestMemory& memory,
                                                            const NvmeTcpOptions& options) {
  if (options.queues == 0 || options.queues > kNvmeQueuesMax || options.depth == 0 ||
      options.depth > NvmeTcpQueue::kSlotsMax) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} queues with {} commands in flight: from 1 to {} queues and {} commands are wanted",
                    options.queues, options.depth, kNvmeQueuesMax, NvmeTcpQueue::kSlotsMax));
  }
  std::unique_ptr<NvmeTcpDriver> driver(new NvmeTcpDriver(memory));
  CLEAT_ASSIGN(driver->controller_, NvmeTcpController::Open(options));
  NvmeTcpController& controller = *driver->controller_;
  if (options.depth > controller.facts().depth_max) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: {} commands in flight a queue, the controller takes {}: use more queues",
                             options.address, options.depth, controller.facts().depth_max));
  }
  CLEAT_ASSIGN(driver->namespace_, controller.FindNamespace());
  CLEAT_TRY(controller.ReserveQueues(options.queues));
  for (uint16_t i = 1; i <= options.queues; ++i) {
    CLEAT_ASSIGN(auto queue, controller.OpenQueue(i));
    driver->queues_.push_back(std::make_unique<NvmePostedQueue>(memory, std::move(queue)));
  }
  CLEAT_TRY(controller.StartKeepAlive());
  return driver;
}

}  // namespace cleat::perf
