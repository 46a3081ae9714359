// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/key_file.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"
#include "keys/ceph_key.h"

namespace cleat::modules {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

// Written through the mapping: write() would do as well, but the pages must be locked before the key is in them.
Status KeyFile::Fill(const keys::Secret& key) {
  CLEAT_CHECK(!fd_.valid());
  const keys::Secret text = keys::EncodeCephKey(key);
  CLEAT_CHECK(text.size() <= kPageBytes);
  fd_.Reset(memfd_create("ceph-key", MFD_CLOEXEC));
  if (!fd_.valid() || ftruncate(fd_.get(), kPageBytes) != 0)
    return ErrnoError(errno, "no memory for a Ceph key");
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (page == MAP_FAILED) return ErrnoError(errno, "no memory for a Ceph key");
  page_ = page;
  (void)mlock(page, kPageBytes);  // keys/secret_arena.h says when it can't be
  if (madvise(page, kPageBytes, MADV_DONTDUMP) != 0) {
    return ErrnoError(errno, "memory for a Ceph key can't be kept out of core dumps");
  }
  memcpy(page, text.bytes().data(), text.size());
  if (ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0)
    return ErrnoError(errno, "no memory for a Ceph key");
  return Ok{};
}

void KeyFile::Empty() {
  if (page_ == nullptr) return;
  explicit_bzero(page_, kPageBytes);
  munmap(page_, kPageBytes);
  page_ = nullptr;
  CLEAT_CHECK(ftruncate(fd_.get(), 0) == 0);
}

std::string KeyFile::path() const {
  return "/proc/self/fd/" + std::to_string(fd_.get());
}

}  // namespace cleat::modules
