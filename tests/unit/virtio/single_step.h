// SPDX-License-Identifier: Apache-2.0
// Runs a function in a process of its own and stops it between any two machine instructions.
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <functional>

namespace cleat::virtio {

// `serve` ends with true when it did what it was meant to; `judge` looks at shared memory after each instruction of
// it, and once more at its end.
inline void StepThrough(const std::function<bool()>& serve,
                        const std::function<::testing::AssertionResult()>& judge) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    _exit(serve() ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "ptrace is not allowed here";
  uint64_t instructions = 0;
  ::testing::AssertionResult sound = ::testing::AssertionSuccess();
  while (WIFSTOPPED(status) && sound) {
    sound = judge();
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ++instructions;
  }
  EXPECT_TRUE(sound) << "after instruction " << instructions;
  if (!sound) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(judge());
  EXPECT_GT(instructions, 200U);
}

}  // namespace cleat::virtio
