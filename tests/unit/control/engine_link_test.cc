// SPDX-License-Identifier: Apache-2.0
// What whoever asks an engine is given of its answer, over a real socket and on the link's thread.
#include "control/link/engine_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "fake_engine.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::engine_link_test {
namespace {

engine::v1::Discovery One(const std::string& nqn) {
  engine::v1::Discovery discovery;
  discovery.add_records()->set_nqn(nqn);
  return discovery;
}

// Asks each engine that connects for what a discovery service has.
class Asker final : public EngineLink::Events {
 public:
  explicit Asker(EngineLink& link) : link_(link) {}
  std::future<engine::v1::Reply> answer() { return answer_.get_future(); }

  void OnEngine(const EngineInfo& info, engine::v1::Inventory) override {
    engine::v1::Envelope envelope;
    envelope.mutable_discover()->set_address("10.0.0.1:8009");
    link_.Request(info.peer, std::move(envelope), {},
                  [this](const engine::v1::Reply& reply, const UniqueFd&) { answer_.set_value(reply); });
  }
  void OnStatus(PeerId, const engine::v1::StatusEvent&) override {}
  void OnGone(PeerId, const std::string&) override {}
  void OnDead(const std::string&, uint64_t) override {}
  void OnWake() override {}
  uint64_t OnTimer(uint64_t) override { return UINT64_MAX; }

 private:
  EngineLink& link_;
  std::promise<engine::v1::Reply> answer_;
};

TEST(EngineLinkTest, AnAnswerInPartsIsGivenOnceAsOneThatHasEnded) {
  const test::TempDir dir;
  const MonotonicClock clock;
  const std::string socket = dir / "engine.sock";
  auto link = std::move(EngineLink::Listen(socket, clock).value());
  Asker asker(*link);
  auto answer = asker.answer();
  link->SetOpenProcess(FakeEngine::OpenProcess);
  link->Start(asker);
  FakeEngine engine(socket);
  engine.SetDiscovery({One("a"), One("b"), One("c")});
  ASSERT_TRUE(engine.Connect());
  ASSERT_EQ(answer.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  const engine::v1::Reply reply = answer.get();
  EXPECT_EQ(reply.discovery().records_size(), 3);
  EXPECT_FALSE(reply.more()) << "that was so of its parts";
  engine.Disconnect();
  link->Stop();
}

}  // namespace
}  // namespace cleat::control::engine_link_test
