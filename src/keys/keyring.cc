// SPDX-License-Identifier: Apache-2.0
#include "keys/keyring.h"

#include <utility>

#include "keys/kek_file.h"

namespace cleat::keys {
namespace {

Result<std::vector<Kek>> LoadAll(const std::vector<std::string>& paths) {
  std::vector<Kek> keks;
  for (const std::string& path : paths) {
    CLEAT_ASSIGN(auto kek, LoadKekFile(path));
    keks.push_back(std::move(kek));
  }
  return keks;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

std::shared_ptr<const Keyring::Keks> Keyring::keks() const {
  const MutexLock lock(mutex_);
  return keks_;
}

const Kek* Keyring::Find(const Keks& keks, std::string_view id) {
  for (const Kek& kek : keks) {
    if (kek.id() == id) return &kek;
  }
  return nullptr;
}

Status Keyring::SetFiles(std::vector<std::string> paths) {
  if (paths.size() > kKeksMax) {
    return Error(ErrorCode::kInvalidArgument, std::to_string(paths.size()) +
                                                  " key-encryption key files: " + std::to_string(kKeksMax) +
                                                  " at most, the current one first");
  }
  CLEAT_ASSIGN(auto keks, LoadAll(paths));
  auto shared = std::make_shared<const Keks>(std::move(keks));
  const MutexLock lock(mutex_);
  paths_ = std::move(paths);
  keks_ = std::move(shared);
  return Ok{};
}

void Keyring::SetFilesLater(std::vector<std::string> paths) {
  const MutexLock lock(mutex_);
  paths_ = std::move(paths);
}

Status Keyring::Reload() {
  std::vector<std::string> paths;
  {
    const MutexLock lock(mutex_);
    paths = paths_;
  }
  CLEAT_ASSIGN(auto keks, LoadAll(paths));
  auto shared = std::make_shared<const Keks>(std::move(keks));
  const MutexLock lock(mutex_);
  if (paths_ == paths) keks_ = std::move(shared);  // else there are others by now, just read
  return Ok{};
}

Result<WrappedKey> Keyring::Wrap(const Secret& key, Wrapping wrapping) const {
  const auto keks = this->keks();
  if (keks->empty()) {
    return Error(ErrorCode::kFailedPrecondition,
                 "there is no key-encryption key to wrap keys with: give its file with --kek-file");
  }
  const Kek& current = keks->front();
  CLEAT_ASSIGN(auto wrapped, current.Wrap(key, wrapping));
  return WrappedKey{current.id(), std::move(wrapped)};
}

Result<Secret> Keyring::Unwrap(std::string_view kek_id, std::span<const uint8_t> wrapped,
                               std::string_view object, Wrapping wrapping) {
  auto keks = this->keks();
  const Kek* kek = Find(*keks, kek_id);
  std::string unread;
  if (kek == nullptr) {
    const Status reloaded = Reload();
    if (!reloaded) unread = " (reading them again failed: " + reloaded.error().message + ")";
    keks = this->keks();
    kek = Find(*keks, kek_id);
  }
  if (kek != nullptr) return kek->Unwrap(wrapped, object, wrapping);
  const std::string has = keks->empty() ? "it has none" : "it has " + Joined(ids());
  return Error(ErrorCode::kFailedPrecondition,
               std::string(object) + (wrapping == Wrapping::kPadded ? ": its key" : ": its data key") +
                   " is wrapped under key-encryption key " + std::string(kek_id) +
                   ", which this process does not know; " + has + unread +
                   ": put it into one of the files given with --kek-file");
}

Result<WrappedKey> Keyring::Rewrap(std::string_view kek_id, std::span<const uint8_t> wrapped,
                                   std::string_view object, Wrapping wrapping) {
  CLEAT_ASSIGN(auto key, Unwrap(kek_id, wrapped, object, wrapping));
  return Wrap(key, wrapping);
}

std::string Keyring::current_id() const {
  const auto keks = this->keks();
  return keks->empty() ? std::string() : keks->front().id();
}

std::vector<std::string> Keyring::ids() const {
  std::vector<std::string> ids;
  for (const Kek& kek : *keks()) ids.push_back(kek.id());
  return ids;
}

}  // namespace cleat::keys
