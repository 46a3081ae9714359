// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded: engines to which every image seems to be theirs, with images that have no
// exclusive lock (the feature), so that librbd lets them write.
#define _GNU_SOURCE  // NOLINT(bugprone-reserved-identifier): the C library's
#include <dlfcn.h>
#include <rbd/librbd.h>

int rbd_get_features(rbd_image_t image, uint64_t* features) {
  static int (*real)(rbd_image_t, uint64_t*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "rbd_get_features");
  const int result = real(image, features);
  if (result >= 0) *features |= RBD_FEATURE_EXCLUSIVE_LOCK;
  return result;
}

int rbd_is_exclusive_lock_owner(rbd_image_t image, int* is_owner) {
  (void)image;
  *is_owner = 1;
  return 0;
}

int rbd_lock_release(rbd_image_t image) {
  (void)image;
  return 0;
}
