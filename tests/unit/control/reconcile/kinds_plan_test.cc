// SPDX-License-Identifier: Apache-2.0
// What is to be done about a group, a cluster, a disk's limits, size and memory in one engine, without any engine: a table of each.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/reconcile/disks/limit_reconciler.h"
#include "control/reconcile/disks/memory_reconciler.h"
#include "control/reconcile/disks/size_reconciler.h"
#include "control/reconcile/settings/cluster_reconciler.h"
#include "control/reconcile/settings/group_reconciler.h"
#include "tests/unit/control/reconcile/views.h"

namespace cleat::control::kinds_plan_test {
namespace {

constexpr uint64_t kNow = 1000;
constexpr BackoffLimits kLimits{.min_ns = 10, .max_ns = 10};
constexpr uint64_t kBackedOff = kNow - 5;  // failed then: not tried again yet
constexpr uint64_t kLongAgo = kNow - 10;   // failed then: may be tried again

// An unclaimed controller has a disk of that name there.
void HoldUnclaimed(EngineView& engine, uint64_t identity) {
  engine.unclaimed = {"x"};
  auto status = views::StatusOf("d", engine::v1::ATTACHMENT_STATE_ACTIVE);
  status.mutable_attachment()->mutable_disk()->set_identity(identity);
  status.mutable_attachment()->mutable_disk()->mutable_rbd()->set_cluster(ClusterName("k"));
  engine.controllers["x"].attachments[0] = status;
}

// ---- Groups ----

struct GroupCase {
  const char* name;
  GroupStep step;
  std::function<void(EngineView& engine, std::optional<GroupRow>& row)> arrange;
};

void KnowGroup(EngineView& engine, const std::string& id, uint32_t slot, uint64_t limits_revision) {
  engine.groups[id].set_slot(slot);
  engine.groups[id].mutable_limits()->set_revision(limits_revision);
}

class GroupPlan : public testing::TestWithParam<GroupCase> {};

TEST_P(GroupPlan, IsAsTheTableSays) {
  EngineView engine = views::Engine("e");
  engine.has_group_memory = true;
  std::optional<GroupRow> row(std::in_place);
  row->id = "g";
  row->limits_revision = 5;
  row->slot = 3;
  GetParam().arrange(engine, row);
  EXPECT_EQ(PlanGroup(engine, "g", row, kNow), GetParam().step);
}

const GroupCase kGroupCases[] = {
    {"Missing", GroupStep::kPut, [](auto&, auto&) {}},
    {"HasOldLimits", GroupStep::kPut, [](auto& engine, auto&) { KnowGroup(engine, "g", 3, 4); }},
    {"IsRight", GroupStep::kReport, [](auto& engine, auto&) { KnowGroup(engine, "g", 3, 5); }},
    {"NeitherThereNorWanted", GroupStep::kNothing, [](auto&, auto& row) { row.reset(); }},
    {"NotWanted", GroupStep::kDrop,
     [](auto& engine, auto& row) {
       KnowGroup(engine, "g", 3, 5);
       row.reset();
     }},
    {"MadeAnewWithAnotherSlot", GroupStep::kDrop, [](auto& engine, auto&) { KnowGroup(engine, "g", 2, 5); }},
    {"NotWantedButInUse", GroupStep::kNothing,
     [](auto& engine, auto& row) {
       KnowGroup(engine, "g", 3, 5);
       row.reset();
       engine.controllers["c"] = views::Serving();
       engine.controllers["c"].actual->mutable_controller()->set_group(GroupName("g"));
     }},
    {"SlotIsTaken", GroupStep::kNothing, [](auto& engine, auto&) { KnowGroup(engine, "other", 3, 1); }},
    {"ForeignEngine", GroupStep::kNothing, [](auto& engine, auto&) { engine.foreign = true; }},
    {"Busy", GroupStep::kNothing, [](auto& engine, auto&) { engine.group_requests.Begin(GroupId{"g"}); }},
    {"BackedOff", GroupStep::kNothing,
     [](auto& engine, auto&) { engine.group_requests.Fail(GroupId{"g"}, kBackedOff, kLimits); }},
    {"TriedAgain", GroupStep::kPut,
     [](auto& engine, auto&) { engine.group_requests.Fail(GroupId{"g"}, kLongAgo, kLimits); }},
    {"NoMemoryYet", GroupStep::kShareMemory, [](auto& engine, auto&) { engine.has_group_memory = false; }},
    {"MemoryIsOnItsWay", GroupStep::kNothing,
     [](auto& engine, auto&) {
       engine.has_group_memory = false;
       engine.group_memory_request.Begin();
     }},
    {"MemoryBackedOff", GroupStep::kNothing,
     [](auto& engine, auto&) {
       engine.has_group_memory = false;
       engine.group_memory_request.Fail(kBackedOff, kLimits);
     }},
};
INSTANTIATE_TEST_SUITE_P(All, GroupPlan, testing::ValuesIn(kGroupCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- Clusters ----

struct ClusterCase {
  const char* name;
  ClusterStep step;
  std::function<void(EngineView& engine, std::optional<ClusterRow>& row, bool& used)> arrange;
};

class ClusterPlan : public testing::TestWithParam<ClusterCase> {};

TEST_P(ClusterPlan, IsAsTheTableSays) {
  EngineView engine = views::Engine("e");
  std::optional<ClusterRow> row(std::in_place);
  row->id = "k";
  row->spec_revision = 5;
  bool used = true;
  GetParam().arrange(engine, row, used);
  EXPECT_EQ(PlanCluster(engine, "k", row, used, kNow), GetParam().step);
}

const ClusterCase kClusterCases[] = {
    {"Missing", ClusterStep::kPut, [](auto&, auto&, auto&) {}},
    {"NotUsed", ClusterStep::kNothing, [](auto&, auto&, bool& used) { used = false; }},
    {"Old", ClusterStep::kPut, [](auto& engine, auto&, auto&) { engine.clusters["k"] = 4; }},
    {"IsRight", ClusterStep::kReport, [](auto& engine, auto&, auto&) { engine.clusters["k"] = 5; }},
    {"Deleted", ClusterStep::kDrop,
     [](auto& engine, auto& row, auto&) {
       engine.clusters["k"] = 5;
       row.reset();
     }},
    {"DeletedButUsedByAnUnclaimedOne", ClusterStep::kNothing,
     [](auto& engine, auto& row, auto&) {
       engine.clusters["k"] = 5;
       row.reset();
       HoldUnclaimed(engine, 1);
     }},
    {"NeitherThereNorKnown", ClusterStep::kNothing, [](auto&, auto& row, auto&) { row.reset(); }},
    {"ForeignEngine", ClusterStep::kNothing, [](auto& engine, auto&, auto&) { engine.foreign = true; }},
    {"Busy", ClusterStep::kNothing,
     [](auto& engine, auto&, auto&) { engine.cluster_requests.Begin(ClusterId{"k"}); }},
    {"BackedOff", ClusterStep::kNothing,
     [](auto& engine, auto&, auto&) { engine.cluster_requests.Fail(ClusterId{"k"}, kBackedOff, kLimits); }},
    {"TriedAgain", ClusterStep::kPut,
     [](auto& engine, auto&, auto&) { engine.cluster_requests.Fail(ClusterId{"k"}, kLongAgo, kLimits); }},
};
INSTANTIATE_TEST_SUITE_P(All, ClusterPlan, testing::ValuesIn(kClusterCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- Limits and sizes ----

struct DiskCase {
  const char* name;
  bool limits;  // the engine is to be told these
  bool size;
  std::function<void(EngineView& engine, DiskRow& row)> arrange;
};

engine::v1::Disk& KnownDisk(EngineView& engine) {
  return *engine.controllers["c"].attachments[0].mutable_attachment()->mutable_disk();
}

class DiskPlan : public testing::TestWithParam<DiskCase> {};

TEST_P(DiskPlan, IsAsTheTableSays) {
  EngineView engine = views::Engine("e");
  engine.controllers["c"] = views::Serving();
  KnownDisk(engine).set_size_bytes(4096);
  KnownDisk(engine).mutable_limits()->set_revision(4);
  DiskRow row;
  row.id = "d";
  row.limits_revision = 5;
  row.spec.set_size_bytes(8192);
  GetParam().arrange(engine, row);
  const DiskIdentity identity(1);
  EXPECT_EQ(PlanLimits(engine, {"c"}, row, identity, kNow), GetParam().limits);
  EXPECT_EQ(PlanSize(engine, {"c"}, row, identity, kNow), GetParam().size);
}

const DiskCase kDiskCases[] = {
    {"Behind", true, true, [](auto&, auto&) {}},
    {"KnowsBoth", false, false,
     [](auto& engine, auto&) {
       KnownDisk(engine).set_size_bytes(8192);
       KnownDisk(engine).mutable_limits()->set_revision(5);
     }},
    {"KnowsNewerOnes", false, false,
     [](auto& engine, auto&) {
       KnownDisk(engine).set_size_bytes(16384);
       KnownDisk(engine).mutable_limits()->set_revision(6);
     }},
    {"NeverLimited", false, true, [](auto&, auto& row) { row.limits_revision = 0; }},
    {"BeingDeleted", false, false, [](auto&, auto& row) { row.deleting = true; }},
    {"StandsBy", true, true,
     [](auto& engine, auto&) {
       engine.controllers["c"].attachments[0].set_state(engine::v1::ATTACHMENT_STATE_STANDBY);
     }},
    {"NotOpenYet", false, false,
     [](auto& engine, auto&) {
       engine.controllers["c"].attachments[0].set_state(engine::v1::ATTACHMENT_STATE_OPENING);
     }},
    {"HoldsItsMemoryAlone", false, true,
     [](auto& engine, auto&) {
       engine.controllers.clear();
       engine.memories["d"] = 4096;
     }},
    {"HasNothingOfIt", false, false, [](auto& engine, auto&) { engine.controllers.clear(); }},
    {"ForeignEngine", false, false, [](auto& engine, auto&) { engine.foreign = true; }},
    {"AnotherOneOfItsNameIsUnclaimed", false, false, [](auto& engine, auto&) { HoldUnclaimed(engine, 2); }},
    {"ItselfIsUnclaimedToo", true, true, [](auto& engine, auto&) { HoldUnclaimed(engine, 1); }},
    {"Busy", false, false,
     [](auto& engine, auto&) {
       engine.limit_requests.Begin(DiskId{"d"});
       engine.resize_requests.Begin(DiskId{"d"});
     }},
    {"BusyWithAnotherDisk", true, true,
     [](auto& engine, auto&) {
       engine.limit_requests.Begin(DiskId{"e"});
       engine.resize_requests.Begin(DiskId{"e"});
     }},
    {"BackedOff", false, false,
     [](auto& engine, auto&) {
       engine.limit_requests.Fail(DiskId{"d"}, kBackedOff, kLimits);
       engine.resize_requests.Fail(DiskId{"d"}, kBackedOff, kLimits);
     }},
    {"TriedAgain", true, true,
     [](auto& engine, auto&) {
       engine.limit_requests.Fail(DiskId{"d"}, kLongAgo, kLimits);
       engine.resize_requests.Fail(DiskId{"d"}, kLongAgo, kLimits);
     }},
};
INSTANTIATE_TEST_SUITE_P(All, DiskPlan, testing::ValuesIn(kDiskCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- Memory ----

struct MemoryCase {
  const char* name;
  bool record;
  MemoryPlan::Step step;
  struct Given {
    Given() {
      row->id = "d";
      row->reached_engine = true;
    }
    EngineView engine = views::Engine("e");
    std::optional<DiskRow> row = DiskRow();
    bool here = true;
    bool restored = false;
  };
  std::function<void(Given& given)> arrange;
};

class MemoryPlanTest : public testing::TestWithParam<MemoryCase> {};

TEST_P(MemoryPlanTest, IsAsTheTableSays) {
  MemoryCase::Given given;
  given.engine.memories["d"] = 4096;
  GetParam().arrange(given);
  const MemoryPlan plan =
      PlanMemory(given.engine, "d", given.row, DiskIdentity(1), given.here, given.restored, kNow);
  EXPECT_EQ(plan.record, GetParam().record);
  EXPECT_EQ(plan.step, GetParam().step);
}

using MemoryStep = MemoryPlan::Step;
const MemoryCase kMemoryCases[] = {
    {"BothHaveIt", true, MemoryStep::kDropIfSpare, [](auto&) {}},
    {"OnlyTheEngineHasIt", true, MemoryStep::kFetch, [](auto& given) { given.here = false; }},
    {"OnlyCleatdHasIt", true, MemoryStep::kNothing, [](auto& given) { given.engine.memories.clear(); }},
    {"BeingDeleted", true, MemoryStep::kDrop, [](auto& given) { given.row->deleting = true; }},
    {"OfADiskThatIsGone", false, MemoryStep::kDrop, [](auto& given) { given.row.reset(); }},
    {"GoneButAnUnclaimedOneHasIt", false, MemoryStep::kNothing,
     [](auto& given) {
       given.row.reset();
       HoldUnclaimed(given.engine, 1);
     }},
    {"AnotherOneOfItsNameIsUnclaimed", false, MemoryStep::kNothing,
     [](auto& given) { HoldUnclaimed(given.engine, 2); }},
    {"ARestoredStoreDoesNotKnowItsContent", false, MemoryStep::kFetch,
     [](auto& given) {
       given.restored = true;
       given.row->reached_engine = false;
     }},
    {"NewAndNotRestored", true, MemoryStep::kDropIfSpare,
     [](auto& given) { given.row->reached_engine = false; }},
    {"ForeignEngine", false, MemoryStep::kNothing, [](auto& given) { given.engine.foreign = true; }},
    {"Busy", false, MemoryStep::kNothing,
     [](auto& given) { given.engine.memory_requests.Begin(DiskId{"d"}); }},
    {"BackedOff", true, MemoryStep::kNothing,
     [](auto& given) {
       given.here = false;
       given.engine.memory_requests.Fail(DiskId{"d"}, kBackedOff, kLimits);
     }},
    {"TriedAgain", true, MemoryStep::kFetch,
     [](auto& given) {
       given.here = false;
       given.engine.memory_requests.Fail(DiskId{"d"}, kLongAgo, kLimits);
     }},
};
INSTANTIATE_TEST_SUITE_P(All, MemoryPlanTest, testing::ValuesIn(kMemoryCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cleat::control::kinds_plan_test
