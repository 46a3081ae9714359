// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded: an engine that waits for Ceph where it hands a read, a write or a flush
// over, on its reactor.
#define _GNU_SOURCE  // NOLINT(bugprone-reserved-identifier): the C library's
#include <dlfcn.h>
#include <rbd/librbd.h>
#include <semaphore.h>
#include <stdlib.h>

struct Wait {
  rbd_callback_t answered;
  void* arg;
  sem_t over;
};

// What is made is handed over by the same thread, before the next one is made.
static _Thread_local struct Wait* latest;

#define REAL(name, ...)            \
  static int (*real)(__VA_ARGS__); \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, name)

static void Answered(rbd_completion_t completion, void* arg) {
  struct Wait* wait = arg;
  wait->answered(completion, wait->arg);
  sem_post(&wait->over);
}

static int Await(int handed_over) {
  struct Wait* wait = latest;
  while (handed_over >= 0 && sem_wait(&wait->over) != 0) {
  }
  sem_destroy(&wait->over);
  free(wait);
  return handed_over;
}

int rbd_aio_create_completion(void* arg, rbd_callback_t answered, rbd_completion_t* completion) {
  REAL("rbd_aio_create_completion", void*, rbd_callback_t, rbd_completion_t*);
  latest = malloc(sizeof *latest);
  if (latest == NULL) abort();
  latest->answered = answered;
  latest->arg = arg;
  sem_init(&latest->over, 0, 0);
  return real(latest, Answered, completion);
}

int rbd_aio_read(rbd_image_t image, uint64_t offset, size_t length, char* data, rbd_completion_t completion) {
  REAL("rbd_aio_read", rbd_image_t, uint64_t, size_t, char*, rbd_completion_t);
  return Await(real(image, offset, length, data, completion));
}

int rbd_aio_write(rbd_image_t image, uint64_t offset, size_t length, const char* data,
                  rbd_completion_t completion) {
  REAL("rbd_aio_write", rbd_image_t, uint64_t, size_t, const char*, rbd_completion_t);
  return Await(real(image, offset, length, data, completion));
}

int rbd_aio_readv(rbd_image_t image, const struct iovec* pieces, int count, uint64_t offset,
                  rbd_completion_t completion) {
  REAL("rbd_aio_readv", rbd_image_t, const struct iovec*, int, uint64_t, rbd_completion_t);
  return Await(real(image, pieces, count, offset, completion));
}

int rbd_aio_writev(rbd_image_t image, const struct iovec* pieces, int count, uint64_t offset,
                   rbd_completion_t completion) {
  REAL("rbd_aio_writev", rbd_image_t, const struct iovec*, int, uint64_t, rbd_completion_t);
  return Await(real(image, pieces, count, offset, completion));
}

int rbd_aio_flush(rbd_image_t image, rbd_completion_t completion) {
  REAL("rbd_aio_flush", rbd_image_t, rbd_completion_t);
  return Await(real(image, completion));
}
