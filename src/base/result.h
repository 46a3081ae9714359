// SPDX-License-Identifier: Apache-2.0
// The one error type. A function that can fail in operation returns Result<T> (or Status for Result<void>);
// the message names the object, the cause and, where there is one, the next step for a person.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace cleat {

// What a caller can do about it. The names and meanings follow gRPC's canonical codes, so that an engine's
// error reaches the API without a translation that loses something.
enum class ErrorCode : uint8_t {
  kInvalidArgument,     // the request is wrong whatever the state: correct it
  kNotFound,            // the named object does not exist
  kAlreadyExists,       // the name is taken by something different
  kPermissionDenied,    // the operating system or the role says no
  kFailedPrecondition,  // the state forbids it: change the state first
  kAborted,             // busy with another operation on the same object: retry
  kResourceExhausted,   // a stated limit is reached
  kUnavailable,         // a peer is not there: retry with back-off
  kDeadlineExceeded,
  kCancelled,
  kDataLoss,
  kIo,  // the storage below failed
  kUnimplemented,
  kInternal,
};

// A stable lower-case name for logs and for the engine protocol ("not_found").
std::string_view ErrorCodeName(ErrorCode code);

// More about an error, for programs; defined by who gives it (control/model/reasons.h).
struct ErrorDetail;

struct [[nodiscard]] Error {
  Error(ErrorCode c, std::string m) : code(c), message(std::move(m)) {}
  ErrorCode code;
  std::string message;
  std::shared_ptr<const ErrorDetail> detail;  // usually none
};

// An Error for a failed system call: maps errno to the nearest code and appends its text to `what`.
Error ErrnoError(int error_number, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CLEAT_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CLEAT_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CLEAT_CHECK(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    CLEAT_CHECK(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    CLEAT_CHECK(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

struct Ok {};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Ok) {}                                                  // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    CLEAT_CHECK(!ok_);
    return error_;
  }
  Error&& error() && {
    CLEAT_CHECK(!ok_);
    return std::move(error_);
  }

 private:
  Error error_{ErrorCode::kInternal, {}};
  bool ok_ = true;
};

using Status = Result<void>;

}  // namespace cleat

// What a function does with a failure of what it calls, when it has nothing to add: it returns the error. The arguments are any
// expressions of Result<T> or Status; CLEAT_TRY also takes the name of a Result, which keeps its value or its error.
//
//     CLEAT_TRY(store.Apply(change));
//     CLEAT_ASSIGN(auto target, FreeTarget(controller));  // declares `target`, a uint32_t
//     CLEAT_ASSIGN(row.path, CompletePath(asked));        // or assigns to what is there
//
// CLEAT_ASSIGN declares, so it stands in a block of its own and never after an `if` without braces. Coroutines, whose return is
// co_return, use the twins with CO_: CLEAT_CO_TRY(co_await device.Open()).
#define CLEAT_TRY(...) CLEAT_INTERNAL_TRY(return, __VA_ARGS__)
#define CLEAT_CO_TRY(...) CLEAT_INTERNAL_TRY(co_return, __VA_ARGS__)
#define CLEAT_ASSIGN(target, ...) \
  CLEAT_INTERNAL_ASSIGN(CLEAT_INTERNAL_NAME(__LINE__), return, target, __VA_ARGS__)
#define CLEAT_CO_ASSIGN(target, ...) \
  CLEAT_INTERNAL_ASSIGN(CLEAT_INTERNAL_NAME(__LINE__), co_return, target, __VA_ARGS__)

// The parts of which those above are made.
#define CLEAT_INTERNAL_NAME(line) CLEAT_INTERNAL_JOIN(cleat_result_, line)
#define CLEAT_INTERNAL_JOIN(left, right) CLEAT_INTERNAL_JOIN_AGAIN(left, right)
#define CLEAT_INTERNAL_JOIN_AGAIN(left, right) left##right
#define CLEAT_INTERNAL_TRY(leave, ...)                                                        \
  do {                                                                                        \
    auto&& cleat_result = (__VA_ARGS__);                                                      \
    if (!cleat_result.ok()) leave std::forward<decltype(cleat_result)>(cleat_result).error(); \
  } while (false)
#define CLEAT_INTERNAL_ASSIGN(result, leave, target, ...) \
  auto result = (__VA_ARGS__);                            \
  if (!result.ok()) leave std::move(result).error();      \
  target = std::move(result).value()
