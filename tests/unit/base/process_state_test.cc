// SPDX-License-Identifier: Apache-2.0
#include "base/process_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace cleat::process_state_test {
namespace {

// Waits for a signal, until it goes.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ != 0) return;
    for (;;) pause();
  }
  ~Child() { End(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void Stop() {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void End() {
    if (ended_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    ended_ = true;
  }

 private:
  const pid_t pid_;
  bool ended_ = false;
};

TEST(ProcessState, SaysThatAProcessIsStoppedAndWhatHelps) {
  Child child;
  EXPECT_FALSE(WhyProcessStandsStill(child.pid()).has_value());
  child.Stop();
  const std::string pid = std::to_string(child.pid());
  EXPECT_EQ(WhyProcessStandsStill(child.pid()).value_or(""),
            "process " + pid + " is stopped (SIGSTOP, or a shell's job control): `kill -CONT " + pid +
                "` lets it go on");
}

// Another user's, under ProtectProc=invisible: the folder is not there.
TEST(ProcessState, SaysThatAProcessCantBeLookedAt) {
  Child child;
  EXPECT_FALSE(WhyProcessIsHidden(child.pid()).has_value());
  const std::string pid = std::to_string(child.pid());
  EXPECT_EQ(WhyProcessIsHidden(child.pid(), "/nonexistent").value_or(""),
            "process " + pid +
                " may be stopped, which is hidden from this one (ProtectProc=, hidepid=): `ps -o stat= -p " +
                pid + "` says T then");
  child.End();
  EXPECT_FALSE(WhyProcessIsHidden(child.pid()).has_value());
  EXPECT_FALSE(WhyProcessIsHidden(child.pid(), "/nonexistent").has_value()) << "it has ended";
}

}  // namespace
}  // namespace cleat::process_state_test
