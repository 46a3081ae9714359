// SPDX-License-Identifier: Apache-2.0
#include "engine/module_disk_factory.h"

#include <utility>

#include "modules/fault/fault.h"
#include "modules/malloc/malloc.h"
#include "modules/null/null.h"
#include "modules/uring/uring.h"

namespace cleat::engine {
namespace {

block::DiskShape ShapeOf(const DiskSpec& disk) {
  return {disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes};
}

// The next layer was refused, and with an error it has not taken the one below: that stays its opener's to close.
// What went wrong first is what the caller hears; closing what nobody used yet has nothing to lose.
Task<void> CloseUntaken(block::Device& device) {
  auto close = device.Close();
  (void)co_await std::move(close);
}

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> ModuleDiskFactory::OpenBackend(const DiskSpec& disk,
                                                                            block::AccessMode mode) {
  if (const auto* file = std::get_if<FileBackend>(&disk.backend)) {
    modules::UringOptions options(ShapeOf(disk), file->path, mode);
    auto open = modules::OpenUring(std::move(options), uring_, blocking_);
    co_return co_await std::move(open);
  }
  if (std::holds_alternative<MemoryBackend>(disk.backend)) {
    auto memory = memories_.Duplicate(disk.name);
    if (!memory) co_return std::move(memory).error();
    modules::MallocOptions options(ShapeOf(disk), std::move(memory).value());
    auto open = modules::OpenMalloc(std::move(options), blocking_);
    co_return co_await std::move(open);
  }
  modules::NullOptions options(ShapeOf(disk));
  options.zero_fill = !std::get<NullBackend>(disk.backend).skip_reads;
  auto open = modules::OpenNull(std::move(options));
  co_return co_await std::move(open);
}

Task<Result<std::unique_ptr<block::Pipeline>>> ModuleDiskFactory::Open(const DiskSpec& disk,
                                                                       block::AccessMode mode) {
  auto open = OpenBackend(disk, mode);
  auto opened = co_await std::move(open);
  if (!opened) co_return std::move(opened).error();
  std::unique_ptr<block::Device> device = std::move(opened).value();
  if (disk.fault) {
    const modules::FaultPlan plan(disk.fault->seed, disk.fault->delay_ns_max, disk.fault->fail_per_million);
    block::Device& plain = *device;
    auto faulty = modules::FaultDevice::Make(std::move(device), plan);
    if (!faulty) {
      auto close = CloseUntaken(plain);
      co_await std::move(close);
      co_return std::move(faulty).error();
    }
    device = std::move(faulty).value();
  }
  block::Device& top = *device;
  auto pipeline = block::Pipeline::Make(std::move(device), mode);
  if (!pipeline) {
    auto close = CloseUntaken(top);
    co_await std::move(close);
  }
  co_return pipeline;
}

}  // namespace cleat::engine
