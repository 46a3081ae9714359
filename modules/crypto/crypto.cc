// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/crypto.h"

#include <algorithm>
#include <string>

#include "modules/crypto/crypto_channel.h"

namespace cleat::modules {
namespace {

block::Geometry Encrypted(block::Geometry geometry) {
  // Zeroes can always be written.
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kCryptoZeroBytesMax;
  return geometry;
}

Status CheckDataUnit(uint32_t unit_bytes, const block::Device& disk) {
  if (unit_bytes != kSectorBytes && unit_bytes != kDataUnitBytesMax) {
    return Error(ErrorCode::kInvalidArgument, disk.name() + ": encryption in data units of " +
                                                  std::to_string(unit_bytes) + " bytes: use 512 or 4096");
  }
  const uint32_t block_bytes = disk.geometry().logical_block_bytes;
  if (unit_bytes > block_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 disk.name() + ": encryption in data units of " + std::to_string(unit_bytes) +
                     " bytes needs logical blocks of that size, the disk has " + std::to_string(block_bytes) +
                     ": use data units of 512 bytes, or make a disk with blocks of 4096");
  }
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<CryptoDevice>> CryptoDevice::Make(std::unique_ptr<block::Device>&& below,
                                                         CryptoOptions options, const CryptoHub& hub) {
  CLEAT_TRY(keys::CheckDataKey(options.cipher, options.key.bytes(), below->name()));
  CLEAT_TRY(CheckDataUnit(options.data_unit_bytes, *below));
  const Status usable = hub.status();
  if (!usable) return Error(usable.error().code, below->name() + ": " + usable.error().message);
  const block::Geometry geometry = Encrypted(below->geometry());
  return std::unique_ptr<CryptoDevice>(new CryptoDevice(std::move(below), geometry, std::move(options), hub));
}

CryptoDevice::CryptoDevice(std::unique_ptr<block::Device> below, const block::Geometry& geometry,
                           CryptoOptions options, const CryptoHub& hub)
    : FilterDevice(std::move(below), geometry), options_(std::move(options)), hub_(hub) {}

Result<std::unique_ptr<block::Channel>> CryptoDevice::OpenChannel(Reactor& reactor) {
  BouncePool* pool = hub_.Find(reactor);
  if (pool == nullptr) {
    return Error(ErrorCode::kFailedPrecondition,
                 name() + ": " + reactor.name() + " has no memory for encrypted writes");
  }
  auto cipher = hub_.xts().MakeContext(options_.cipher, options_.data_unit_bytes, options_.key);
  if (!cipher) return Error(cipher.error().code, name() + ": " + cipher.error().message);
  CLEAT_ASSIGN(auto channel, below().OpenChannel(reactor));
  return std::unique_ptr<block::Channel>(std::make_unique<CryptoChannel>(
      reactor, *pool, std::move(cipher).value(), options_.data_unit_bytes, std::move(channel)));
}

}  // namespace cleat::modules
