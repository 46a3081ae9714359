// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded into cleatd: drives that say that they erase, and do not. What lies behind label and map of a pool's
// drive reads as zeroes, so that cleatd's samples find nothing.
#define _GNU_SOURCE  // NOLINT(bugprone-reserved-identifier): the C library's
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Where a pool's extents begin (src/pool/layout.h); no other file of cleatd's is as large.
#define DATA_OFFSET ((off_t)64 << 20)

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (request == BLKZEROOUT) return 0;
  return (int)syscall(SYS_ioctl, fd, request, argument);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  if ((mode & FALLOC_FL_PUNCH_HOLE) != 0) return 0;
  return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

ssize_t pread(int fd, void* buffer, size_t length, off_t offset) {
  const ssize_t got = syscall(SYS_pread64, fd, buffer, length, offset);
  if (got > 0 && offset >= DATA_OFFSET) memset(buffer, 0, (size_t)got);
  return got;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
  return fallocate(fd, mode, offset, length);
}

ssize_t pread64(int fd, void* buffer, size_t length, off64_t offset) {
  return pread(fd, buffer, length, offset);
}
