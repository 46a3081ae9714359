// SPDX-License-Identifier: Apache-2.0
#include "engine/module_disk_factory.h"

#include <utility>

#include "modules/crypto/crypto.h"
#include "modules/fault/fault.h"
#include "modules/null/null.h"
#include "modules/ram/ram.h"
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
                                                                            block::AccessMode mode,
                                                                            DiskEvents events) {
  if (std::holds_alternative<RbdBackend>(disk.backend)) {
    auto open = ceph_.Open(disk, mode, std::move(events));
    co_return co_await std::move(open);
  }
  if (const auto* file = std::get_if<FileBackend>(&disk.backend)) {
    modules::UringOptions options(ShapeOf(disk), file->path, mode);
    const auto links = file->path_checked ? PathGuard::Links::kNone : PathGuard::Links::kTrusted;
    options.find = [this, links](const std::string& path, const std::string& what) {
      return paths_.FindDisk(path, what, links);
    };
    auto open = modules::OpenUring(std::move(options), uring_, blocking_);
    co_return co_await std::move(open);
  }
  if (std::holds_alternative<MemoryBackend>(disk.backend)) {
    auto memory = memories_.Duplicate(disk.name);
    if (!memory) co_return std::move(memory).error();
    modules::RamOptions options(ShapeOf(disk), std::move(memory).value());
    auto open = modules::OpenRam(std::move(options), blocking_);
    co_return co_await std::move(open);
  }
  modules::NullOptions options(ShapeOf(disk));
  options.zero_fill = !std::get<NullBackend>(disk.backend).skip_reads;
  auto open = modules::OpenNull(std::move(options));
  co_return co_await std::move(open);
}

// Off the control reactor: the keyring may read its files again.
Task<Result<keys::Secret>> ModuleDiskFactory::KeyOf(const DiskSpec& disk) {
  const std::function<Result<keys::Secret>()> unwrap = [&] {
    return keyring_.Unwrap(disk.encryption->key_encryption_key, disk.encryption->wrapped_key, disk.name);
  };
  co_return co_await blocking_.Run<Result<keys::Secret>>(unwrap);
}

Task<Result<std::unique_ptr<block::Device>>> ModuleDiskFactory::OpenLayers(const DiskSpec& disk,
                                                                           block::AccessMode mode,
                                                                           DiskEvents events) {
  // The key first: without it there is nothing to open.
  keys::Secret key;
  if (disk.encryption) {
    auto unwrap = KeyOf(disk);
    auto unwrapped = co_await std::move(unwrap);
    if (!unwrapped) co_return std::move(unwrapped).error();
    key = std::move(unwrapped).value();
  }
  auto open = OpenBackend(disk, mode, std::move(events));
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
  if (disk.encryption) {
    modules::CryptoOptions options(disk.encryption->cipher, disk.encryption->data_unit_bytes, std::move(key));
    block::Device& plain = *device;
    auto encrypted = modules::CryptoDevice::Make(std::move(device), std::move(options), crypto_);
    if (!encrypted) {
      auto close = CloseUntaken(plain);
      co_await std::move(close);
      co_return std::move(encrypted).error();
    }
    device = std::move(encrypted).value();
  }
  co_return device;
}

Task<Result<OpenDisk>> ModuleDiskFactory::Open(const DiskSpec& disk, block::AccessMode mode,
                                               std::shared_ptr<qos::Group> group, DiskEvents events) {
  auto open = OpenLayers(disk, mode, std::move(events));
  auto opened = co_await std::move(open);
  if (!opened) co_return std::move(opened).error();
  std::unique_ptr<block::Device> device = std::move(opened).value();
  auto made = MakeLimitedPipeline(device, disk.limits.limits, std::move(group), mode);
  if (!made) {
    auto close = CloseUntaken(*device);
    co_await std::move(close);
  }
  co_return made;
}

}  // namespace cleat::engine
