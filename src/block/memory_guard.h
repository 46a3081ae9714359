// SPDX-License-Identifier: Apache-2.0
// What keeps a peer that truncates the file behind its guest's memory from taking the process with it.
//
// The peer owns that file. When it makes it shorter (or its file system has no page left), the next access to
// a page that is gone raises SIGBUS in whichever thread looks, and no check beforehand helps. Seals would
// (F_SEAL_SHRINK), but only memfds can have them, and who made the file decides. So: every mapping of a
// peer's file is registered here, and a SIGBUS inside one is answered by mapping zero pages in the place of
// the rest of that mapping, from the missing page on. The access goes on and reads zeros, as it might have
// read any other nonsense from a hostile guest; the mapping is marked broken, `event_fd()` tells whoever
// watches it, and the owner ends that guest's connection. Nobody else notices: the price is one signal and
// one mmap, and nothing at all as long as nothing breaks.
//
// A SIGBUS anywhere else is what it always was: the end of the process. Requests in the kernel (io_uring) see
// EFAULT without this.
//
// The table is fixed and read without a lock, because a signal handler reads it. A mapping is registered by
// its owner after mmap and taken out before munmap, from any thread; nobody touches it before or after.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace cleat::block {

class MemoryGuard {
 public:
  // 1,000 controllers with 8 regions and two logs each, and the new tables beside the old ones for a moment.
  static constexpr uint32_t kMappingsMax = 24'576;

  // Takes SIGBUS for the process; what was installed before is asked about faults that are not ours. Once,
  // before the first thread; again does nothing. Without it mappings are registered, and not protected.
  static Status Install();

  // Readable after a mapping broke, until it is read; -1 before Install. The process' for all time.
  static int event_fd();

  MemoryGuard() = default;
  MemoryGuard(MemoryGuard&& other) noexcept;
  MemoryGuard& operator=(MemoryGuard&&) = delete;
  ~MemoryGuard();

  // kResourceExhausted when the table is full. `base` and `bytes` as they were given to mmap, in whole pages
  // of the file.
  static Result<MemoryGuard> Watch(void* base, uint64_t bytes, uint64_t page_bytes);

  // Any thread.
  bool broken() const;

 private:
  explicit MemoryGuard(int32_t slot) : slot_(slot) {}
  int32_t slot_ = -1;
};

}  // namespace cleat::block
