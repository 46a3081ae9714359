// SPDX-License-Identifier: Apache-2.0
// AES-XTS (IEEE Std 1619-2018) as disks use it, behind one small interface: several implementations may be compiled in,
// the first that proves to compute the right thing on this machine is used.
//
// The format is dm-crypt's aes-xts-plain64: a data unit's tweak is its first sector's number as 128 bits, little-endian,
// counted in sectors of 512 bytes also when data units have 4096 (as LUKS2 and librbd count).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "keys/data_key.h"
#include "keys/secret.h"

namespace cleat::modules {

inline constexpr uint32_t kSectorBytes = 512;  // what tweaks count
inline constexpr uint32_t kDataUnitBytesMax = 4096;

// One key for both directions, for one thread: expanded, ready to be used any number of times without an allocation.
class XtsContext {
 public:
  virtual ~XtsContext() = default;

  // `units` whole data units from `in` to `out`, which is the same or doesn't overlap; of any alignment. The first one's
  // number is `first_sector`. `in` is read once. False: the library failed, and what is in `out` is not to be used.
  virtual bool Encrypt(const uint8_t* in, uint8_t* out, uint64_t first_sector, uint64_t units) = 0;
  virtual bool Decrypt(const uint8_t* in, uint8_t* out, uint64_t first_sector, uint64_t units) = 0;
};

// Immutable; any thread; lives as long as the process.
class XtsImplementation {
 public:
  virtual ~XtsImplementation() = default;
  virtual const char* name() const = 0;  // for the log
  // `key` was checked (keys::CheckDataKey); `unit_bytes` is 512 or 4096. Allocates. kInternal when the library won't.
  virtual Result<std::unique_ptr<XtsContext>> MakeContext(keys::Cipher cipher, uint32_t unit_bytes,
                                                          const keys::Secret& key) const = 0;
};

// What is compiled in, the fastest first.
std::span<const XtsImplementation* const> XtsImplementations();

// Encrypts and decrypts the standard's known answers, alone and within longer runs, for both ciphers and data units. The
// error says what went wrong.
Status TestXts(const XtsImplementation& implementation);

// The first of `candidates` that passes its test; what fails is logged. kInternal when none does: no encrypted disk can be
// served then, since what it would write could not be read again.
Result<const XtsImplementation*> ChooseXts(
    std::span<const XtsImplementation* const> candidates = XtsImplementations());

}  // namespace cleat::modules
