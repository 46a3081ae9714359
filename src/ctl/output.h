// SPDX-License-Identifier: Apache-2.0
// What cleatctl says: data to standard output, messages to standard error. Both as a pipe wants them: no colours, no
// progress; each piece is written out at once.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

namespace cleat::ctl {

enum class Format { kTable, kJson, kYaml };

// Documented for scripts, in docs/operations.md; numbers don't change.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // cleatd refused, or what was waited for failed
  kUsage = 2,        // the command line or a file that it names is wrong
  kUnreachable = 3,  // cleatd does not answer
  kTimedOut = 4,     // what was waited for has not come true in time; the request stands
};

// When the reader of a pipe has gone, ends the process as SIGPIPE does. When the data can't be written for another
// reason (disk full), says so and ends with kFailed.
void Print(std::string_view text);

// "cleatctl: MESSAGE" to standard error; returns the code.
ExitCode Fail(ExitCode code, std::string_view message);

// From now on the process ends as soon as the reader of standard output has, and not at the next line that would be
// printed: for commands that may have nothing to say for long. Starts a thread.
void EndWithReader();

// Field names as in the .proto; every field is there, also those with default values. A line each, or one line.
std::string ToJson(const google::protobuf::Message& message, bool pretty);
// The same as YAML.
std::string ToYaml(const google::protobuf::Message& message);

}  // namespace cleat::ctl
