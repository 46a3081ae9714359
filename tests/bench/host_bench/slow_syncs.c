/* SPDX-License-Identifier: Apache-2.0
 * A disk that takes 20 ms to sync, for a cleatd that is started with this library (LD_PRELOAD): fdatasync of SQLite. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int fd) {
  struct timespec slow = {0, 20 * 1000 * 1000};
  nanosleep(&slow, 0);
  return (int)syscall(SYS_fdatasync, fd);
}
