// SPDX-License-Identifier: Apache-2.0
// Engines that will not come, and what waits for them: ForgetEngine.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "control/model/errors.h"
#include "control/state/moves/engine_process.h"
#include "moves_rig.h"

namespace cleat::control::forget_engine_test {
namespace {

class ForgetEngineTest : public MovesRig {
 protected:
  Result<v1::ForgetEngineResponse> Forget(const std::string& engine, bool force = false) {
    v1::ForgetEngineRequest request;
    request.set_name(EngineName(engine));
    request.set_force(force);
    return state_->engine_removal().Forget(request);
  }
  void ExpectRefused(const std::string& engine, bool force, v1::Reason reason, const std::string& words) {
    const auto refused = Forget(engine, force);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(ReasonOf(refused.error()), reason) << refused.error().message;
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  }
  bool IsListed(const std::string& engine) { return state_->engines().Get(GetEngine(engine)).ok(); }
  // A controller with a disk, by its spec on that engine, which may never have been there.
  void CreateOn(const std::string& engine, const std::string& id) {
    ASSERT_TRUE(state_->disks().Create(NullDisk("d" + id)).ok());
    auto request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_engine(EngineName(engine));
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("d" + id, id)).ok());
  }
  // Controller "a", whose spec names no engine: blue is the only one that is there.
  void ServeOnTheOnlyEngine() {
    ASSERT_TRUE(blue_.Connect());
    Await("it is there", [&] { return IsConnected("engine-0"); });
    ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
    AwaitServed("a", "engine-0");
  }
  void Remove(const std::string& id) {
    ASSERT_TRUE(state_->attachments().Detach(Detach(id, "d" + id)).ok());
    ASSERT_TRUE(state_->controllers().Delete(DeleteController(id)).ok());
  }
};

TEST_F(ForgetEngineTest, WhatWaitsForANameWithATypoIsDeleted) {
  CreateOn("bleu", "a");
  CreateOn("bleu", "b");
  Remove("a");
  EXPECT_EQ(state_->controllers().Get(GetController("a"))->status().state(), v1::CONTROLLER_STATE_DELETING)
      << "nothing but its engine can let it go";

  const auto first = Forget("bleu");
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(std::vector<std::string>(first->deleted().begin(), first->deleted().end()),
            std::vector<std::string>{"controllers/a"});
  EXPECT_EQ(std::vector<std::string>(first->waiting().begin(), first->waiting().end()),
            std::vector<std::string>{"controllers/b"});
  EXPECT_FALSE(state_->controllers().Get(GetController("a")).ok());
  EXPECT_TRUE(state_->disks().Delete(DeleteDisk("da")).ok()) << "it is attached to nothing";
  EXPECT_TRUE(IsListed("bleu")) << "a controller names it";

  Remove("b");
  ASSERT_TRUE(Forget("bleu").ok());
  EXPECT_FALSE(IsListed("bleu"));
  RestartCleatd();
  EXPECT_FALSE(IsListed("bleu"));
  EXPECT_FALSE(state_->controllers().Get(GetController("b")).ok());
  EXPECT_EQ(Forget("bleu").error().code, ErrorCode::kNotFound);
}

TEST_F(ForgetEngineTest, WhatADeadEngineServedGoesToAnother) {
  const auto io_path = [&] { return state_->disks().Get(GetDisk("d"))->status().io_path(); };
  ServeOnTheOnlyEngine();
  blue_.SetIoPath("controllers/a", 0, "NVMe commands (/dev/ng0n1, X)");
  Await("its way to the storage is told", [&] { return io_path() == "NVMe commands (/dev/ng0n1, X)"; });
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  blue_.Die();
  Await("its end is seen", [&] {
    return state_->engines().Get(GetEngine("engine-0"))->status().state() == v1::ENGINE_STATE_ENDED;
  });
  const auto done = Forget("engine-0");
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->placed_anew_size(), 1);
  AwaitServed("a", "engine-1");
  EXPECT_EQ(io_path(), "") << "the other one says nothing of it";
  EXPECT_FALSE(IsListed("engine-0"));
}

// Nobody has to forget an engine whose end was seen.
TEST_F(ForgetEngineTest, WhatWaitedForADeadEngineToLetItGoIsGone) {
  ASSERT_TRUE(blue_.Connect());
  Await("it is there", [&] { return IsConnected("engine-0"); });
  CreateSome({"a", "b"});
  blue_.Hold("Detach");
  Remove("a");
  ASSERT_TRUE(state_->attachments().Detach(Detach("b", "db")).ok());
  blue_.WaitForRequest("Detach controllers/a 0");
  blue_.Die();
  Await("they are gone", [&] {
    return !state_->controllers().Get(GetController("a")).ok() &&
           !state_->attachments().Get(GetAttachment("b", "db")).ok();
  });
  EXPECT_EQ(EngineOf("b"), "engines/engine-0") << "its controller waits for it";
}

TEST_F(ForgetEngineTest, AnEngineThatMayLiveTakesForce) {
  ServeOnTheOnlyEngine();
  ExpectRefused("engine-0", true, v1::REASON_ENGINE_THERE, "it is connected");
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  ExpectRefused("engine-0", false, v1::REASON_ENGINE_THERE, "it may serve");
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");

  host_.ReleaseAll("engine-0");  // it was certain to have ended
  ASSERT_TRUE(Forget("engine-0", true).ok());
  AwaitServed("a", "engine-1");
  // What comes under that name again serves nothing of it.
  blue_.Die();
  ASSERT_TRUE(blue_.Connect());
  AwaitEngines();
  AwaitServed("a", "engine-1");
  EXPECT_EQ(blue_.StateOf("controllers/a"), kAbsent);
}

TEST_F(ForgetEngineTest, NorOneOfBeforeCleatdsRestartThatHasNotComeBack) {
  ServeOnTheOnlyEngine();
  RestartCleatd();  // it serves on
  ExpectRefused("engine-0", false, v1::REASON_ENGINE_THERE, "has not connected since cleatd started");
  ASSERT_TRUE(green_.Connect());
  Await("green is there", [&] { return IsConnected("engine-1"); });
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");
  ASSERT_TRUE(blue_.Connect());
  AwaitEngines();
  blue_.Die();
  Await("its end is seen", [&] {
    return state_->engines().Get(GetEngine("engine-0"))->status().state() == v1::ENGINE_STATE_ENDED;
  });
  EXPECT_TRUE(Forget("engine-0").ok());
  AwaitServed("a", "engine-1");
}

TEST_F(ForgetEngineTest, ItsLaterEndDoesNotBringItBack) {
  ServeOnTheOnlyEngine();
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  host_.ReleaseAll("engine-0");
  ASSERT_TRUE(Forget("engine-0", true).ok());
  AwaitServed("a", "engine-1");
  EXPECT_FALSE(IsListed("engine-0"));
  blue_.Die();
  AwaitProbe();
  EXPECT_FALSE(IsListed("engine-0"));
}

TEST_F(ForgetEngineTest, NorOneWhoseProcessIsFound) {
  CreateOn("bleu", "a");
  process_ = 77;
  ExpectRefused("bleu", false, v1::REASON_ENGINE_THERE, "process 77");
  EXPECT_TRUE(IsListed("bleu"));
  EXPECT_TRUE(Forget("bleu", true).ok());
}

TEST_F(ForgetEngineTest, MemoryThatItHeldIsLost) {
  ASSERT_TRUE(blue_.Connect());
  Await("it is there", [&] { return IsConnected("engine-0"); });
  Create(MemoryDisk("m"), "a");
  AwaitServed("a", "engine-0");
  RestartCleatd();  // the engine has the only copy
  Await("it is waited for",
        [&] { return state_->disks().Get(GetDisk("m"))->status().state() == v1::DISK_STATE_PENDING; });
  ASSERT_TRUE(Forget("engine-0", true).ok());
  Await("it is lost",
        [&] { return state_->disks().Get(GetDisk("m"))->status().state() == v1::DISK_STATE_LOST; });
}

TEST(EngineProcessTest, IsFoundByItsCommandLine) {
  const std::string name = "probe-" + std::to_string(getpid());
  EXPECT_EQ(FindEngineProcess(name), std::nullopt);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[0], STDIN_FILENO);
    close(pipe_ends[1]);
    execl("/bin/sh", "/usr/sbin/cleat-engine", "-c", "read line; :", "--name", name.c_str(), nullptr);
    _exit(127);
  }
  std::optional<pid_t> found;
  for (int i = 0; i < 6000 && !found; ++i) {
    found = FindEngineProcess(name);
    usleep(10'000);
  }
  EXPECT_EQ(found, child);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(FindEngineProcess(name), std::nullopt);
}

}  // namespace
}  // namespace cleat::control::forget_engine_test
