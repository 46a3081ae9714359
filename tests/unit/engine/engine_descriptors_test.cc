// SPDX-License-Identifier: Apache-2.0
// An engine reserves the descriptors of what it is to serve before it has it: also of what it stands by for, so that a move never
// fails for want of them once it has begun. Costs nothing to speak of.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <vector>

#include "base/descriptor_budget.h"
#include "engine/descriptor_capacity.h"
#include "engine/engine.h"
#include "tests/unit/reactor/virtual_reactors.h"
#include "vhost/descriptors_needed.h"

namespace cleat::engine::engine_descriptors_test {
namespace {

struct NoDisks final : DiskFactory {
  Task<Result<OpenDisk>> Open(const DiskSpec& /*disk*/, block::AccessMode /*mode*/,
                              std::shared_ptr<qos::Group> /*group*/, DiskEvents /*events*/) override {
    co_return Error(ErrorCode::kUnimplemented, "none");
  }
};

struct NoEndpoints final : vhost::EndpointFactory {
  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& /*options*/,
                                                virtio::DeviceModel& /*model*/,
                                                vhost::StatusFn /*on_status*/) override {
    return Error(ErrorCode::kUnimplemented, "none");
  }
};

constexpr uint64_t kOwn = 50;
constexpr uint32_t kQueues = 2;
constexpr uint64_t kOneController = vhost::DescriptorsNeeded(kQueues, vhost::SocketMode::kClient);

class EngineDescriptors : public testing::Test {
 protected:
  ~EngineDescriptors() override { EXPECT_TRUE(reactors_.Await(ShutDown()).ok()); }
  Task<Status> ShutDown() {
    co_await engine_.Shutdown();
    co_return Ok{};
  }
  Status Put(const std::string& name, Controller::Role role) {
    ControllerSpec spec;
    spec.name = name;
    spec.socket_path = "/run/vm/" + name;
    spec.queues = kQueues;
    return engine_.PutController(spec, role);
  }

  test::VirtualReactors reactors_{2};
  std::vector<Reactor*> ios_{&reactors_[1]};
  // For one controller, and one descriptor more.
  DescriptorBudget budget_{kOwn + kOneController + 1, kOwn};
  NoDisks disks_;
  NoEndpoints endpoints_;
  MemoryStore memories_;
  GroupStore groups_{reactors_[0]};
  ClusterStore clusters_;
  Engine engine_{Engine::Parts{reactors_[0], ios_, disks_, endpoints_, memories_, groups_, clusters_, nullptr,
                               nullptr, &budget_}};
};

TEST_F(EngineDescriptors, WhatStandsByHasReservedAllThatItWillNeed) {
  EXPECT_TRUE(Put("controllers/a", Controller::Role::kStandBy).ok());
  EXPECT_TRUE(Put("controllers/a", Controller::Role::kStandBy).ok()) << "again: once is enough";
  EXPECT_EQ(budget_.reserved(), kOneController);
  for (const auto role : {Controller::Role::kStandBy, Controller::Role::kServe}) {
    const Status refused = Put("controllers/b", role);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(refused.error().message.find("controllers/b: up to"), std::string::npos)
        << refused.error().message;
    EXPECT_NE(refused.error().message.find("raise LimitNOFILE="), std::string::npos)
        << refused.error().message;
  }
  EXPECT_TRUE(reactors_.Await(engine_.DeleteController("controllers/a")).ok());
  EXPECT_EQ(budget_.reserved(), 0U);
  EXPECT_TRUE(Put("controllers/b", Controller::Role::kServe).ok());
}

// What the log says at the start of an engine that may open few files is what it will serve then.
TEST_F(EngineDescriptors, AreEnoughForAsManyDisksOnFilesAsTheEngineSays) {
  DescriptorBudget budget(1024, 400);
  const uint64_t disks = DisksWithin(budget.left());
  EXPECT_GT(disks, 1U);
  std::vector<DescriptorBudget::Reservation> reserved;
  for (uint64_t i = 0; i < disks; ++i) {
    for (const uint64_t count :
         {uint64_t{vhost::DescriptorsNeeded(1, vhost::SocketMode::kClient)}, uint64_t{FilesOfFileDisk()}}) {
      auto more = budget.Reserve(count, "one more");
      ASSERT_TRUE(more.ok()) << "disk " << i << " of " << disks << ": " << more.error().message;
      reserved.push_back(std::move(more).value());
    }
  }
  EXPECT_EQ(DisksWithin(budget.left()), 0U);
}

TEST_F(EngineDescriptors, ADiskReservesItsOwnAndGivesThemBackWhenItCanNotBeOpened) {
  ASSERT_TRUE(Put("controllers/a", Controller::Role::kServe).ok());
  AttachmentSpec attachment;
  attachment.controller = "controllers/a";
  attachment.disk.name = "disks/d";
  EXPECT_EQ(reactors_.Await(engine_.Attach(attachment)).error().code, ErrorCode::kUnimplemented);
  EXPECT_EQ(budget_.reserved(), kOneController);
}

TEST_F(EngineDescriptors, MemoryThatIsKeptCountsOnce) {
  const auto memory = [] { return UniqueFd(memfd_create("test", MFD_CLOEXEC)); };
  ASSERT_TRUE(Put("controllers/a", Controller::Role::kServe).ok());
  const MemoryReport kept{.disk = "disks/m", .size_bytes = 0};
  EXPECT_TRUE(engine_.KeepMemory(kept, memory()).ok());
  EXPECT_TRUE(engine_.KeepMemory(kept, memory()).ok());
  EXPECT_EQ(budget_.left(), 0U);
  EXPECT_EQ(engine_.KeepMemory({.disk = "disks/n", .size_bytes = 0}, memory()).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_TRUE(engine_.DropMemory("disks/m").ok());
  EXPECT_EQ(budget_.left(), 1U);
}

}  // namespace
}  // namespace cleat::engine::engine_descriptors_test
