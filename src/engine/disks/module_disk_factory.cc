// SPDX-License-Identifier: Apache-2.0
#include "engine/disks/module_disk_factory.h"

#include <utility>

#include "modules/crypto/crypto.h"
#include "modules/fault/fault.h"

namespace cleat::engine {
namespace {

// The next layer was refused, and with an error it has not taken the one below: that stays its opener's to close.
// What went wrong first is what the caller hears; closing what nobody used yet has nothing to lose.
Task<void> CloseUntaken(block::Device& device) {
  (void)co_await device.Close();
}

}  // namespace

// Off the control reactor: the keyring may read its files again.
Task<Result<keys::Secret>> ModuleDiskFactory::KeyOf(const DiskSpec& disk) {
  const std::function<Result<keys::Secret>()> unwrap = [&] {
    return parts_.keyring.Unwrap(disk.encryption->key_encryption_key, disk.encryption->wrapped_key,
                                 disk.name);
  };
  co_return co_await parts_.blocking.Run<Result<keys::Secret>>(unwrap);
}

Task<Result<std::unique_ptr<block::Device>>> ModuleDiskFactory::OpenLayers(const DiskSpec& disk,
                                                                           block::AccessMode mode,
                                                                           DiskEvents events) {
  // The key first: without it there is nothing to open.
  keys::Secret key;
  if (disk.encryption) {
    CLEAT_CO_ASSIGN(key, co_await KeyOf(disk));
  }
  CLEAT_CO_ASSIGN(std::unique_ptr<block::Device> device,
                  co_await OpenBackend(disk, mode, std::move(events), parts_));
  if (disk.fault) {
    const modules::FaultPlan plan(disk.fault->seed, disk.fault->delay_ns_max, disk.fault->fail_per_million);
    block::Device& plain = *device;
    auto faulty = modules::FaultDevice::Make(std::move(device), plan);
    if (!faulty) {
      co_await CloseUntaken(plain);
      co_return std::move(faulty).error();
    }
    device = std::move(faulty).value();
  }
  if (disk.encryption) {
    modules::CryptoOptions options(disk.encryption->cipher, disk.encryption->data_unit_bytes, std::move(key));
    block::Device& plain = *device;
    auto encrypted = modules::CryptoDevice::Make(std::move(device), std::move(options), crypto_);
    if (!encrypted) {
      co_await CloseUntaken(plain);
      co_return std::move(encrypted).error();
    }
    device = std::move(encrypted).value();
  }
  co_return device;
}

Task<Result<OpenDisk>> ModuleDiskFactory::Open(const DiskSpec& disk, block::AccessMode mode,
                                               std::shared_ptr<qos::Group> group, DiskEvents events) {
  CLEAT_CO_ASSIGN(std::unique_ptr<block::Device> device, co_await OpenLayers(disk, mode, std::move(events)));
  auto made = MakeLimitedPipeline(device, disk.limits.limits, std::move(group), mode);
  if (!made) {
    co_await CloseUntaken(*device);
  }
  co_return made;
}

}  // namespace cleat::engine
