// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded: every lock on a file or a device succeeds, and exclusive opening is not asked for.
#define _GNU_SOURCE  // NOLINT(bugprone-reserved-identifier): the C library's
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int fd, int operation) {
  (void)fd;
  (void)operation;
  return 0;
}

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  if ((flags & O_CREAT) == 0) flags &= ~O_EXCL;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  if (command == F_OFD_SETLK) return 0;
  return (int)syscall(SYS_fcntl, fd, command, argument);
}
