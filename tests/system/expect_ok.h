// SPDX-License-Identifier: Apache-2.0
// A Status or gRPC status that has to be good; a failure shows its message.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "base/result.h"

namespace cleat::system_test {

inline testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << ErrorCodeName(status.error().code) << ": " << status.error().message;
}

inline testing::AssertionResult IsOk(const grpc::Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "code " << status.error_code() << ": " << status.error_message();
}

template <typename T>
testing::AssertionResult IsOk(const Result<T>& result) {
  if (result.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << ErrorCodeName(result.error().code) << ": " << result.error().message;
}

template <typename T>
  requires requires(const T& reply) { reply.status.error_message(); }
testing::AssertionResult IsOk(const T& reply) {
  return IsOk(reply.status);
}

}  // namespace cleat::system_test

#define EXPECT_OK(expression) EXPECT_TRUE(::cleat::system_test::IsOk(expression))
#define ASSERT_OK(expression) ASSERT_TRUE(::cleat::system_test::IsOk(expression))
