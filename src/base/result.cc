// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <cerrno>
#include <system_error>

namespace cleat {
namespace {

ErrorCode CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
      return ErrorCode::kPermissionDenied;
    case EEXIST:
    case EADDRINUSE:
      return ErrorCode::kAlreadyExists;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case ENOTDIR:
    case EISDIR:
      return ErrorCode::kInvalidArgument;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMLINK:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return ErrorCode::kResourceExhausted;
    // Not a matter of who asks: the file system has to be mounted otherwise first.
    case EROFS:
    case EBUSY:
    case ETXTBSY:
      return ErrorCode::kFailedPrecondition;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
      return ErrorCode::kUnavailable;
    case EOPNOTSUPP:
    case ENOSYS:
      return ErrorCode::kUnimplemented;
    default:
      return ErrorCode::kIo;
  }
}

// What a shortage of descriptors is of, and what helps: nobody but this process and its host is to blame.
const char* ShortageStep(int error_number) {
  switch (error_number) {
    case EMFILE:
      return " (this process has as many open as it may: raise LimitNOFILE= of its service, or "
             "RLIMIT_NOFILE)";
    case ENFILE:
      return " (this host has as many open as it may: raise the sysctl fs.file-max)";
    default:
      return nullptr;
  }
}

}  // namespace

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kFailedPrecondition:
      return "failed_precondition";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDataLoss:
      return "data_loss";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kUnimplemented:
      return "unimplemented";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

Error ErrnoError(int error_number, std::string_view what) {
  std::string message(what);
  message += ": ";
  message += std::generic_category().message(error_number);
  if (const char* step = ShortageStep(error_number)) message += step;
  return {CodeOfErrno(error_number), std::move(message)};
}

}  // namespace cleat
