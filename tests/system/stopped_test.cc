// SPDX-License-Identifier: Apache-2.0
// A daemon whose process is stopped under guests with load (SIGSTOP): it is shown as one that does not answer, and goes on where it stood; and
// where the operator has set a limit, its standby takes its place, and what the stopped one had under way counts for nothing.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <string>

#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "upgrade_rig.h"

namespace cleat::system_test::stopped_test {
namespace {

constexpr char kStandbyId[] = "green";

HostOptions WithLimit(const std::string& seconds) {
  return {.reactors = 2, .cleatd_arguments = {"--kill-silent-engine-seconds", seconds}};
}

// Blk and scsi, with a memory disk and a file.
Status AddGuests(CrashRig& rig) {
  CLEAT_TRY(rig.Add({.memory = true}));
  return rig.Add({.scsi = true, .delay_ns_max = 2 * kNsPerMs});
}

TEST(StoppedTest, AnEngineIsNotReadyAndGoesOnWhereItStood) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, 1);
  ASSERT_OK(AddGuests(rig));
  ASSERT_OK(rig.Start());
  EXPECT_TRUE(rig.DoUnnoticed("stop", [&] {
    const pid_t engine = host.engine().pid();
    kill(engine, SIGSTOP);
    std::string message;
    bool seen = true;
    for (const auto& guest : rig.guests())
      seen = seen && host.WaitController(guest->id(), v1::CONTROLLER_STATE_NOT_ANSWERING, &message);
    const bool told = message.find("kill -CONT " + std::to_string(engine)) != std::string::npos;
    kill(engine, SIGCONT);
    for (const auto& guest : rig.guests())
      seen = seen && host.WaitController(guest->id(), v1::CONTROLLER_STATE_READY);
    return seen && told ? std::string() : "not shown as it is: " + message;
  }));
  EXPECT_TRUE(rig.Stop()) << rig.FindingsText();
}

TEST(StoppedTest, TheStandbyTakesOverAfterTheLimit) {
  Host host(WithLimit("1"));
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, 2);
  ASSERT_OK(AddGuests(rig));
  host.AddEngine(kStandbyId, {"--standby-for", kEngineId});
  UpgradeRig upgrades(host, kEngineId, kStandbyId, 2);
  ASSERT_EQ(upgrades.WaitStandingBy(kStandbyId, rig.guests().size()), "");
  ASSERT_OK(rig.Start());
  EXPECT_TRUE(rig.Do("stop", [&] {
    kill(host.engine().pid(), SIGSTOP);
    return std::string();
  }));
  EXPECT_TRUE(host.WaitCleatdLog("engines/engine-0: killed"));
  EXPECT_TRUE(rig.Stop()) << rig.FindingsText();
  EXPECT_EQ(upgrades.StatusOf(kStandbyId).controllers(), rig.guests().size());
  host.KillEngine();  // it is dead; its exit status is to be had
  host.StartEngine();
  EXPECT_TRUE(host.WaitEngine());  // before it is told to end
}

TEST(StoppedTest, ACleatdThatDoesNotGoOnIsKnownToTheEngine) {
  Host host({.reactors = 1});
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, 3);
  ASSERT_OK(rig.Add({.memory = true}));
  ASSERT_OK(rig.Start());
  EXPECT_TRUE(rig.DoUnnoticed("stop", [&] {
    kill(host.cleatd().pid(), SIGSTOP);
    const bool seen = host.WaitEngineLog("cleatd: not answering");
    kill(host.cleatd().pid(), SIGCONT);
    const bool over = host.WaitEngineLog("cleatd: answers again");
    return seen && over ? std::string() : "the engine does not say so";
  }));
  EXPECT_TRUE(rig.Stop()) << rig.FindingsText();
  // The engine answered all the while: what cleatd did not hear was not its fault.
  EXPECT_EQ(host.cleatd_log().find("engines/engine-0: not answering"), std::string::npos);
}

}  // namespace
}  // namespace cleat::system_test::stopped_test
