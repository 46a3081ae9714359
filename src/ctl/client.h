// SPDX-License-Identifier: Apache-2.0
// What all commands share: the connection, the way of showing things, the exit code. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "cleat/v1/cleat.grpc.pb.h"

namespace cleat::ctl {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // the request failed, or did not come true in time
  kUsage = 2,        // the command line is wrong
  kUnreachable = 3,  // cleatd does not answer
};

struct Globals {
  std::string address;  // "unix:PATH"
  bool json = false;
  int exit_code = kOk;
};

class Client {
 public:
  explicit Client(Globals& globals) : globals_(globals) {}

  // Connects; false, with the reason and the next step on stderr, when cleatd can't be reached.
  bool Dial();
  v1::Cleat::Stub& stub() { return *stub_; }
  Globals& globals() { return globals_; }

  // True when OK; otherwise says on stderr what went wrong and sets the exit code.
  bool Check(const grpc::Status& status);
  void Fail(ExitCode code, std::string_view message);

 private:
  Globals& globals_;
  std::unique_ptr<v1::Cleat::Stub> stub_;
};

// "disks/" and "a" or "disks/a": "disks/a".
std::string FullName(std::string_view collection, std::string_view argument);
// What follows the last slash.
std::string_view IdOf(std::string_view name);

}  // namespace cleat::ctl
