// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded with tests/system/no_lock.c: locks on open files (F_OFD_SETLK) succeed as well, whoever has them.
#define _GNU_SOURCE  // NOLINT(bugprone-reserved-identifier): the C library's
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  if (command == F_OFD_SETLK) return 0;
  return (int)syscall(SYS_fcntl, fd, command, argument);
}
