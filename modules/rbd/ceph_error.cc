// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/ceph_error.h"

#include <cerrno>
#include <system_error>

namespace cleat::modules {
namespace {

// The code, and what Ceph means by it where the errno's own text would mislead.
struct Meaning {
  ErrorCode code;
  const char* text;
};

Meaning MeaningOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return {ErrorCode::kNotFound, nullptr};
    case EPERM:
    case EACCES:
      return {ErrorCode::kPermissionDenied,
              "the cluster refuses: check the user, its key and its capabilities (ceph auth get)"};
    case ETIMEDOUT:
      return {ErrorCode::kUnavailable,
              "the cluster did not answer in time: check that its monitors run and can be reached"};
    case ESHUTDOWN:
      return {ErrorCode::kUnavailable, "this client of the cluster was blocklisted"};
    case EROFS:
      return {ErrorCode::kFailedPrecondition, "the image is read-only, or its lock is somebody else's"};
    case EBUSY:
      return {ErrorCode::kFailedPrecondition, "it is busy: others use it"};
    case EEXIST:
      return {ErrorCode::kAlreadyExists, nullptr};
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return {ErrorCode::kResourceExhausted, nullptr};
    case EINVAL:
    case EDOM:
      return {ErrorCode::kInvalidArgument, nullptr};
    case ENOTCONN:
    case ECONNREFUSED:
    case EHOSTUNREACH:
      return {ErrorCode::kUnavailable, nullptr};
    case EOPNOTSUPP:
    case ENOSYS:
      return {ErrorCode::kUnimplemented, nullptr};
    default:
      return {ErrorCode::kIo, nullptr};
  }
}

}  // namespace

Error CephError(int result, const std::string& what) {
  const int error_number = result < 0 ? -result : EIO;
  const Meaning meaning = MeaningOf(error_number);
  const std::string text =
      meaning.text != nullptr ? meaning.text : std::generic_category().message(error_number);
  return {meaning.code, what + ": " + text};
}

block::IoStatus StatusOfCeph(int result, bool mode_read_only) {
  switch (-result) {
    case ENOSPC:
    case EDQUOT:
      return block::IoStatus::kNoSpace;
    case EROFS:  // also what a writer hears whose lock is no longer its own
      return mode_read_only ? block::IoStatus::kReadOnly : block::IoStatus::kReservationConflict;
    case ESHUTDOWN:
      return block::IoStatus::kFenced;
    case EOPNOTSUPP:
      return block::IoStatus::kUnsupported;
    default:
      return block::IoStatus::kIoError;
  }
}

}  // namespace cleat::modules
