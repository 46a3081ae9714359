// SPDX-License-Identifier: Apache-2.0
// Runs whole command lines against a cleatd that answers as each test likes.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "ctl/app.h"
#include "fake_cleatd.h"

namespace cleat::ctl::run_fixture {

using fake_cleatd::FakeCleatd;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    std::string folder = std::filesystem::temp_directory_path() / "cleat-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    address_ = "unix:" + folder + "/api.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&cleatd_);
    server_ = builder.BuildAndStart();
  }
  ~RunTest() override {
    server_->Shutdown();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Outcome Ctl(std::vector<const char*> arguments) const {
    arguments.insert(arguments.begin(), {"cleatctl", "--address", address_.c_str()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = ctl::Run(static_cast<int>(arguments.size()), arguments.data());
    return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
  }

  std::string folder_;
  std::string address_;
  FakeCleatd cleatd_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cleat::ctl::run_fixture
