// SPDX-License-Identifier: Apache-2.0
// The key-encryption keys of a process: the current one, under which it wraps, and an older one, under which keys may
// still be wrapped while they are re-wrapped. From files (kek_file.h), which are read again when a key is asked for that
// is not known: thus a key is changed without a restart.
//
// Owned by the process' main. Any thread but I/O reactors: a mutex, and files are read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "keys/key_encryption_key.h"

namespace cleat::keys {

inline constexpr size_t kKeksMax = 2;

struct WrappedKey {
  std::string kek_id;
  std::vector<uint8_t> bytes;
};

class Keyring {
 public:
  Keyring() = default;  // without any: wraps and unwraps nothing until SetFiles
  Keyring(const Keyring&) = delete;
  Keyring& operator=(const Keyring&) = delete;

  // The current one's file first; up to kKeksMax, else kInvalidArgument. On an error (see LoadKekFile) nothing changes.
  Status SetFiles(std::vector<std::string> paths);
  // The same files, not looked at before a key is asked for: they may not be there yet.
  void SetFilesLater(std::vector<std::string> paths);
  // Reads the files again. On an error what was read before is kept.
  Status Reload();

  // Under the current one. kFailedPrecondition when there is none.
  Result<WrappedKey> Wrap(const Secret& key, Wrapping wrapping = Wrapping::kPlain) const;
  // kFailedPrecondition: no file of this process has that key-encryption key, nor has one got it since. Others as
  // Kek::Unwrap. Errors name `object`.
  Result<Secret> Unwrap(std::string_view kek_id, std::span<const uint8_t> wrapped, std::string_view object,
                        Wrapping wrapping = Wrapping::kPlain);
  // The same key under the current KEK; the key itself is seen by nobody. kek_id is the current one's afterwards.
  Result<WrappedKey> Rewrap(std::string_view kek_id, std::span<const uint8_t> wrapped,
                            std::string_view object, Wrapping wrapping = Wrapping::kPlain);

  std::string current_id() const;        // empty when there is none
  std::vector<std::string> ids() const;  // current first

 private:
  using Keks = std::vector<Kek>;
  std::shared_ptr<const Keks> keks() const;
  static const Kek* Find(const Keks& keks, std::string_view id);

  mutable Mutex mutex_;  // files are read without it
  std::vector<std::string> paths_ CLEAT_GUARDED_BY(mutex_);
  std::shared_ptr<const Keks> keks_ CLEAT_GUARDED_BY(mutex_) = std::make_shared<const Keks>();
};

}  // namespace cleat::keys
