// SPDX-License-Identifier: Apache-2.0
// A filter that encrypts all that the storage below it sees: AES-XTS, byte for byte what dm-crypt's aes-xts-plain64 would
// write, so that a disk can be opened with `cryptsetup open --type plain`. See docs/encryption.md.
//
//   read               decrypted where it lies
//   write              encrypted into the reactor's own buffers; the guest's memory is only read
//   write zeroes       encrypted zeroes are written, whatever the storage could do better
//   discard            passed down; what is discarded reads back as anything (and the front ends say so)
//   flush, FUA         passed down
//   COMPARE AND WRITE  reads and writes by the pipeline's entrance, which come through here
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "block/filter_device.h"
#include "keys/data_key.h"
#include "keys/secret.h"
#include "modules/crypto/crypto_hub.h"

namespace cleat::modules {

// The most that one write zeroes may cover: 150 to 300 us of the reactor's time.
inline constexpr uint64_t kCryptoZeroBytesMax = uint64_t{1} << 20;

struct CryptoOptions {
  CryptoOptions(keys::Cipher c, uint32_t unit_bytes, keys::Secret k)
      : cipher(c), data_unit_bytes(unit_bytes), key(std::move(k)) {}

  keys::Cipher cipher;
  uint32_t data_unit_bytes;  // 512, or 4096 on a disk with logical blocks of that size
  keys::Secret key;          // both halves: 64 or 32 bytes
};

class CryptoDevice final : public block::FilterDevice {
 public:
  // On the control reactor. `hub` outlives the device. On an error `below` is left alone: whoever opened it closes it.
  //   kInvalidArgument  a key of another length than the cipher's, or with equal halves; data units of another size than
  //                     512 or 4096 bytes, or larger than the disk's logical blocks
  //   kInternal         no working implementation of the cipher
  static Result<std::unique_ptr<CryptoDevice>> Make(std::unique_ptr<block::Device>&& below,
                                                    CryptoOptions options, const CryptoHub& hub);

  uint32_t frames() const override { return FilterDevice::frames() + 1; }
  // kFailedPrecondition on a reactor that the hub does not know.
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;

 private:
  CryptoDevice(std::unique_ptr<block::Device> below, const block::Geometry& geometry, CryptoOptions options,
               const CryptoHub& hub);

  const CryptoOptions options_;
  const CryptoHub& hub_;
};

}  // namespace cleat::modules
