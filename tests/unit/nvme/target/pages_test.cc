// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "nvme/fabrics/identify.h"
#include "nvme/identify.h"
#include "nvme/smart_log.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::pages_test {
namespace {

constexpr uint16_t kDnr = status_field::kDoNotRetry;
using Bytes = std::vector<uint8_t>;

template <typename Number>
Number At(const Bytes& bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

// As Identify answers it, for each of the identifier's forms.
struct Scene : Rig {
  explicit Scene(const TargetLimits& limits = {}) : Rig(limits), controller(Live()) {}
  Bytes Page(IdentifyCns cns, uint32_t nsid) { return Read(controller, Identify(cns, nsid), kIdentifyBytes); }
  uint16_t StatusOf(IdentifyCns cns, uint32_t nsid) {
    return Do(controller, ToHost(Identify(cns, nsid), kIdentifyBytes)).status;
  }
  Bytes Log(LogPage page, uint32_t bytes) {
    return Read(controller, GetLogPage(page, kAllNamespaces, bytes), bytes);
  }

  TargetController& controller;
};

bool IsZero(const Bytes& bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

TEST(TargetPages, TheControllerIsWhatOurInitiatorReads) {
  Scene scene({.tcp = {.in_capsule_bytes = 16384},
               .transfer_bytes_max = 1U << 19,
               .queue_entries_max = 512,
               .command_quiesce_ms = 1234,
               .ana_transition_s = 7});
  const Bytes page = scene.Page(IdentifyCns::kController, 0);
  const auto info = ParseController(IdentifyData(page), "it");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->serial, "SERIAL-1");
  EXPECT_EQ(info->model, "Cleat");
  EXPECT_EQ(info->firmware, "1.2.3");
  EXPECT_EQ(info->version, kVersion);
  EXPECT_EQ(info->transfer_bytes_max, 1U << 19);
  EXPECT_TRUE(info->write_cache) << "a namespace that has one may come when hosts do not look any more";
  EXPECT_TRUE(info->write_zeroes);
  EXPECT_TRUE(info->dataset_management);
  EXPECT_FALSE(info->reservations);
  EXPECT_EQ(info->write_unit_power_fail, 1U);
  const auto fabrics = fabrics::ParseFabrics(IdentifyData(page), "it");
  ASSERT_TRUE(fabrics);
  EXPECT_EQ(fabrics->controller_id, scene.controller.id());
  EXPECT_FALSE(fabrics->discovery);
  EXPECT_EQ(fabrics->subsystem_nqn, kSubsystem);
  EXPECT_EQ(fabrics->in_capsule_bytes, 16384U);
  EXPECT_EQ(fabrics->response_bytes, 16U);
  EXPECT_EQ(fabrics->descriptors_max, 1U);
  EXPECT_EQ(fabrics->commands_max, 512U);
  EXPECT_EQ(fabrics->keep_alive_granularity_ms, 100U);
  EXPECT_TRUE(fabrics->long_host_ids);
  EXPECT_EQ(fabrics->events_max, kEventRequestsMax);
  EXPECT_EQ(fabrics->events_supported,
            fabrics::kEventNamespace | fabrics::kEventAna | fabrics::kEventControllerReset);
  EXPECT_TRUE(fabrics->log_offsets);
  EXPECT_EQ(fabrics->namespaces_max, kNamespacesMax);
  EXPECT_EQ(fabrics->command_quiesce_ms, 1234U);
  EXPECT_TRUE(fabrics->ana);
  EXPECT_EQ(fabrics->ana_groups_max, kNamespacesMax);
  EXPECT_EQ(fabrics->ana_group_last, kNamespacesMax);
  EXPECT_EQ(fabrics->ana_transition_ns, 7 * kSecondNs);
  // Fields that it does not read.
  EXPECT_EQ(page[76], 0x0b) << "CMIC: ports, controllers, ANA";
  EXPECT_EQ(At<uint16_t>(page, 256), 0) << "OACS";
  EXPECT_EQ(page[525], 5) << "VWC: no Flush of all namespaces";
  EXPECT_EQ(At<uint32_t>(page, 536), 1U | 1U << 20 | 1U << 21) << "SGLS";
  EXPECT_EQ(At<uint32_t>(page, 540), kNamespacesMax) << "MNAN, due with ANA";
  EXPECT_EQ(At<uint16_t>(page, 522), 0) << "FUSES";
  EXPECT_EQ(At<uint16_t>(page, 1800), 0) << "ICDOFF";
  EXPECT_EQ(page[1802], 0) << "FCATT: controllers are made for who comes";
}

// A host reads it before its first I/O command: how it says where data is, and how much it may send along.
TEST(TargetPages, WhoComesByRdmaIsOfferedKeyedDescriptorsAndWhatItsCapsulesHold) {
  Rig rig({.tcp = {.in_capsule_bytes = 16384}});
  rig.local.transport = fabrics::TransportType::kRdma;
  const Bytes page = rig.Read(rig.Live(), Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  const auto info = fabrics::ParseFabrics(IdentifyData(page), "it");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->in_capsule_bytes, 4096U);
  EXPECT_EQ(info->response_bytes, 16U);
  EXPECT_EQ(info->descriptors_max, 16U);
  EXPECT_EQ(At<uint32_t>(page, 536), 1U | 1U << 2 | 1U << 20) << "SGLS: keyed, and offsets in the capsule";
  EXPECT_EQ(At<uint32_t>(page, 1792), (64U + 4096) / 16) << "IOCCSZ";
  EXPECT_EQ(At<uint32_t>(page, 1796), 1U) << "IORCSZ";
  EXPECT_EQ(At<uint16_t>(page, 1800), 0) << "ICDOFF";
  EXPECT_EQ(page[1803], 16) << "MSDBD";

  const Bytes discovery =
      rig.Read(rig.Live(fabrics::kDiscoveryNqn), Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  EXPECT_EQ(At<uint32_t>(discovery, 536), 1U | 1U << 2 | 1U << 20);
  EXPECT_EQ(At<uint32_t>(discovery, 1792), 4U) << "it has no I/O queues";
  EXPECT_EQ(discovery[1803], 16);
  // One target, and a host that comes by the other transport beside it.
  rig.local = kLocal;
  const Bytes tcp = rig.Read(rig.Live(), Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  EXPECT_EQ(At<uint32_t>(tcp, 536), 1U | 1U << 20 | 1U << 21);
  EXPECT_EQ(At<uint32_t>(tcp, 1792), (64U + 16384) / 16);
  EXPECT_EQ(tcp[1803], 1);
}

TEST(TargetPages, WhatNoNamespaceHasTheControllerHasNot) {
  Scene scene;
  NamespaceShape shape = Shape();
  shape.discard = shape.write_zeroes = false;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  const auto info = [&] {
    return *ParseController(IdentifyData(scene.Page(IdentifyCns::kController, 0)), "it");
  };
  EXPECT_FALSE(info().write_zeroes);
  EXPECT_FALSE(info().dataset_management);
  EXPECT_EQ(scene.Log(LogPage::kCommandEffects, 4096)[1024 + 4 * 8], 0) << "nor do the effects say so";
  shape.discard = shape.write_zeroes = true;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_TRUE(info().dataset_management);
  EXPECT_EQ(scene.Log(LogPage::kCommandEffects, 4096)[1024 + 4 * 8], 3);
  shape.read_only = true;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_FALSE(info().dataset_management) << "of a namespace that takes no writes";
  shape.read_only = false;
  shape.write_zeroes_bytes_max = 4096;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_FALSE(info().write_zeroes) << "a limit that no field can say";
}

TEST(TargetPages, CommandsThatTheEngineHasNotAreNotSaid) {
  Scene scene(
      {.features = {
           .write_zeroes = false, .dataset_management = false, .compare = true, .reservations = true}});
  const Bytes page = scene.Page(IdentifyCns::kController, 0);
  EXPECT_EQ(At<uint16_t>(page, 520), 1U << 0 | 1U << 5) << "ONCS: Compare and reservations";
  EXPECT_TRUE(IsZero(scene.Page(IdentifyCns::kCommandSetController, 0)));
  const Bytes effects = scene.Log(LogPage::kCommandEffects, 4096);
  EXPECT_EQ(effects[1024 + 4 * 0x05], 1);
  EXPECT_EQ(effects[1024 + 4 * 0x0d], 1);
  EXPECT_EQ(effects[1024 + 4 * 0x09], 0);
}

TEST(TargetPages, TheLimitsAreTheLeastOfAllNamespaces) {
  Scene scene;
  NamespaceShape shape = Shape();
  shape.ids.uuid = fabrics::Uuid{7};
  shape.write_zeroes_bytes_max = 100'000;
  shape.discard_bytes_max = 1U << 20;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 64, shape));
  const Bytes page = scene.Page(IdentifyCns::kCommandSetController, 0);
  const CommandSetLimits limits = ParseCommandSetLimits(IdentifyData(page));
  EXPECT_EQ(limits.write_zeroes_bytes_max, 65536U) << "the power of two below";
  EXPECT_EQ(limits.discard_blocks_max, 256U);
}

TEST(TargetPages, ANamespaceIsWhatOurInitiatorReads) {
  Scene scene;
  const Bytes page = scene.Page(IdentifyCns::kNamespace, 3);
  const auto info = ParseNamespace(IdentifyData(page), {}, "it");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->blocks, 1U << 20);
  EXPECT_EQ(info->block_bytes, 4096U);
  EXPECT_TRUE(info->shared);
  EXPECT_FALSE(info->write_protected);
  EXPECT_EQ(info->boundary_blocks, 0U);
  EXPECT_EQ(info->discard_granularity_blocks, 16U);
  EXPECT_FALSE(info->deallocated_reads_zero);
  EXPECT_FALSE(info->write_exclusive_all);
  EXPECT_EQ(At<uint64_t>(page, 8), 1U << 20) << "NCAP";
  EXPECT_EQ(At<uint64_t>(page, 48), uint64_t{1} << 32) << "NVMCAP";
  EXPECT_EQ(At<uint16_t>(page, 64), 3) << "NPWG";
  EXPECT_EQ(At<uint16_t>(page, 72), 15) << "NOWS";
  const fabrics::NamespacePlace place = fabrics::ParseNamespacePlace(IdentifyData(page));
  EXPECT_EQ(place.ana_group, 3U);
  EXPECT_EQ(place.ids.nguid, Shape().ids.nguid);
  EXPECT_FALSE(place.ids.eui64);
  EXPECT_EQ(scene.Page(IdentifyCns::kAllocatedNamespace, 3), page);
}

TEST(TargetPages, AReadOnlyNamespaceIsWriteProtected) {
  Scene scene;
  NamespaceShape shape = Shape();
  shape.read_only = true;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_TRUE(
      ParseNamespace(IdentifyData(scene.Page(IdentifyCns::kNamespace, 3)), {}, "it")->write_protected);
  EXPECT_EQ(scene.Page(IdentifyCns::kIndependentNamespace, 3)[8], 1);
}

TEST(TargetPages, AShapeIsMadeOfAGeometry) {
  block::Geometry geometry;
  geometry.size_bytes = 1U << 30;
  geometry.logical_block_bytes = 512;
  geometry.physical_block_bytes = 4096;
  geometry.write_cache = true;
  NamespaceShape shape = ShapeOf(geometry, true, Shape().ids);
  EXPECT_EQ(shape.blocks, 1U << 21);
  EXPECT_EQ(shape.block_bytes, 512U);
  EXPECT_TRUE(shape.read_only);
  EXPECT_TRUE(shape.write_cache);
  EXPECT_FALSE(shape.discard);
  EXPECT_TRUE(CheckShape(shape));
  Bytes page(kIdentifyBytes);
  WriteNamespace(IdentifyPage(page), shape, 1, /*reservations=*/false);
  const auto info = ParseNamespace(IdentifyData(page), {}, "it");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->block_bytes, 512U);
  EXPECT_EQ(At<uint16_t>(page, 64), 7) << "NPWG";
  EXPECT_EQ(At<uint16_t>(page, 72), 7) << "NOWS: the same, where nothing more is known";
}

TEST(TargetPages, DescriptorsNameANamespaceByAllThatItHas) {
  Scene scene;
  NamespaceShape shape = Shape();
  shape.ids.eui64 = std::array<uint8_t, 8>{1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 4, shape));
  for (const uint32_t nsid : {3U, 4U}) {
    const auto ids =
        fabrics::ParseDescriptors(IdentifyData(scene.Page(IdentifyCns::kDescriptors, nsid)), "it");
    ASSERT_TRUE(ids);
    EXPECT_EQ(*ids, nsid == 3 ? Shape().ids : shape.ids);
  }
  const Bytes page = scene.Page(IdentifyCns::kDescriptors, 3);
  EXPECT_EQ(page[40], 4)
      << "the command set, without which Linux takes no namespace of a controller that has several";
  EXPECT_EQ(page[41], 1);
}

TEST(TargetPages, NamespacesThatAreNotThereAreSaidSo) {
  Scene scene;
  EXPECT_TRUE(IsZero(scene.Page(IdentifyCns::kNamespace, 4)));
  EXPECT_TRUE(IsZero(scene.Page(IdentifyCns::kIndependentNamespace, 4)));
  EXPECT_EQ(scene.StatusOf(IdentifyCns::kDescriptors, 4), status_field::kInvalidNamespace | kDnr);
  for (const uint32_t nsid : {0U, kNamespacesMax + 1, kAllNamespaces}) {
    for (const IdentifyCns cns : {IdentifyCns::kNamespace, IdentifyCns::kDescriptors,
                                  IdentifyCns::kIndependentNamespace, IdentifyCns::kCommandSetNamespace})
      EXPECT_EQ(scene.StatusOf(cns, nsid), status_field::kInvalidNamespace | kDnr) << nsid;
  }
}

TEST(TargetPages, TheListHasThoseAboveTheOneThatIsGiven) {
  Scene scene;
  NamespaceShape shape = Shape();
  for (const uint32_t nsid : {1U, 64U}) ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, nsid, shape));
  for (const IdentifyCns cns :
       {IdentifyCns::kActiveNamespaces, IdentifyCns::kCommandSetActive, IdentifyCns::kAllocatedNamespaces}) {
    const auto listed = [&](uint32_t after) {
      std::array<uint32_t, fabrics::kListedMax> ids{};
      const auto count =
          fabrics::ParseActiveNamespaces(IdentifyData(scene.Page(cns, after)), after, ids, "it");
      EXPECT_TRUE(count);
      return std::vector<uint32_t>(ids.begin(), ids.begin() + *count);
    };
    EXPECT_EQ(listed(0), (std::vector<uint32_t>{1, 3, 64}));
    EXPECT_EQ(listed(1), (std::vector<uint32_t>{3, 64}));
    EXPECT_EQ(listed(64), std::vector<uint32_t>{});
    EXPECT_EQ(listed(0xfffffffd), std::vector<uint32_t>{});
    EXPECT_EQ(scene.StatusOf(cns, 0xfffffffe), status_field::kInvalidNamespace | kDnr);
  }
}

TEST(TargetPages, TheOneCommandSetIsTheNvmCommandSet) {
  Scene scene;
  Command command = Identify(IdentifyCns::kCommandSets, 0);
  for (const uint32_t controller : {uint32_t{scene.controller.id()}, 0xffffU}) {
    command.cdw10 = 0x1c | controller << 16;
    EXPECT_EQ(At<uint64_t>(scene.Read(scene.controller, command, 4096), 0), 1U);
  }
  command.cdw10 = 0x1c | 0x1234U << 16;
  EXPECT_EQ(scene.Do(scene.controller, ToHost(command, 4096)).status, status_field::kInvalidField | kDnr);
  EXPECT_TRUE(IsZero(scene.Page(IdentifyCns::kCommandSetNamespace, 3)));
  for (const IdentifyCns cns : {IdentifyCns::kCommandSetNamespace, IdentifyCns::kCommandSetController,
                                IdentifyCns::kCommandSetActive}) {
    command = Identify(cns, 3);
    command.cdw11 = 2U << 24;
    EXPECT_EQ(scene.Do(scene.controller, ToHost(command, 4096)).status, status_field::kInvalidField | kDnr);
  }
}

TEST(TargetPages, IdentifyWantsRoomForAPage) {
  Scene scene;
  const Command command = Identify(IdentifyCns::kController, 0);
  EXPECT_EQ(scene.Do(scene.controller, ToHost(command, 4095)).status, status_field::kSglLengthInvalid | kDnr);
  EXPECT_EQ(scene.Do(scene.controller, ToHost(command, 8192)).data.size(), 4096U);
  fabrics::SubmissionEntry other = ToHost(command, 4096);
  other.data.type = fabrics::kSglInCapsule;
  EXPECT_EQ(scene.Do(scene.controller, other).status, status_field::kSglTypeInvalid | kDnr);
  for (const uint32_t cns : {0x04U, 0x09U, 0x12U, 0x13U, 0x14U, 0x15U, 0x20U, 0xffU})
    EXPECT_EQ(scene.StatusOf(static_cast<IdentifyCns>(cns), 3), status_field::kInvalidField | kDnr) << cns;
}

// ---- Logs

TEST(TargetPages, TheLogsThatHostsReadAreThere) {
  Scene scene;
  EXPECT_TRUE(IsZero(scene.Log(LogPage::kErrors, 64)));
  const SmartLog smart =
      ParseSmartLog(SmartLogData(scene.Log(LogPage::kSmart, kSmartLogBytes).data(), kSmartLogBytes));
  EXPECT_EQ(smart.critical_warning, 0);
  EXPECT_EQ(smart.spare_percent, 100U);
  EXPECT_EQ(smart.wear_percent, 0U);
  const Bytes firmware = scene.Log(LogPage::kFirmwareSlots, 512);
  EXPECT_EQ(firmware[0], 1);
  EXPECT_EQ(std::string(firmware.begin() + 8, firmware.begin() + 16), "1.2.3   ");
  const Bytes effects = scene.Log(LogPage::kCommandEffects, 4096);
  EXPECT_EQ(At<uint32_t>(effects, 4 * 0x06) & 1, 1U) << "Identify";
  EXPECT_EQ(At<uint32_t>(effects, 4 * 0x80) & 1, 0U) << "Format NVM";
  EXPECT_EQ(At<uint32_t>(effects, 1024 + 4) & 3, 3U) << "Write changes what is there";
  const Bytes supported = scene.Log(LogPage::kSupportedPages, 1024);
  for (uint32_t page = 0; page < 256; ++page) {
    const uint16_t status =
        scene.Do(scene.controller, ToHost(GetLogPage(static_cast<LogPage>(page), kAllNamespaces, 4), 4))
            .status;
    EXPECT_EQ(status, supported[size_t{4} * page] == 1 ? 0 : status_field::kInvalidLogPage | kDnr) << page;
  }
}

TEST(TargetPages, TheAnaLogHasAGroupForEachNamespace) {
  Scene scene;
  NamespaceShape shape = Shape();
  shape.ids.uuid = fabrics::Uuid{7};
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 5, shape));
  ASSERT_TRUE(scene.target.SetAna(kSubsystem, 5, fabrics::AnaState::kInaccessible));
  const auto log = fabrics::ParseAnaLog(scene.Log(LogPage::kAna, 16 + 2 * 36), "it");
  ASSERT_TRUE(log);
  ASSERT_EQ(log->groups.size(), 2U);
  EXPECT_EQ(log->Find(3)->state, fabrics::AnaState::kOptimized);
  EXPECT_EQ(log->Find(5)->state, fabrics::AnaState::kInaccessible);
  EXPECT_EQ(log->Find(5)->change_count, log->change_count);
  EXPECT_LT(log->Find(3)->change_count, log->change_count);
  EXPECT_EQ(log->namespaces, (std::vector<std::pair<uint32_t, uint32_t>>{{3, 3}, {5, 5}}));
  Command groups_only = GetLogPage(LogPage::kAna, kAllNamespaces, 16 + 64 * 32);
  groups_only.cdw10 |= 1U << 8;
  const auto groups = fabrics::ParseAnaLog(scene.Read(scene.controller, groups_only, 16 + 64 * 32), "it");
  ASSERT_TRUE(groups);
  EXPECT_EQ(groups->groups.size(), 2U);
  EXPECT_TRUE(groups->namespaces.empty());
}

TEST(TargetPages, ALogIsReadFromItsMiddleOnAndNotBeyond) {
  Scene scene;
  const Bytes whole = scene.Log(LogPage::kAna, 52);
  Command command = GetLogPage(LogPage::kAna, kAllNamespaces, 16);
  command.cdw12 = 16;
  const Bytes part = scene.Read(scene.controller, command, 16);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 16));
  command.cdw12 = 48;
  const Bytes end = scene.Read(scene.controller, command, 16);
  EXPECT_TRUE(std::equal(end.begin(), end.begin() + 4, whole.begin() + 48));
  EXPECT_TRUE(IsZero(Bytes(end.begin() + 4, end.end()))) << "behind the end are zeroes";
  const auto status = [&](const fabrics::SubmissionEntry& entry) {
    return scene.Do(scene.controller, entry).status;
  };
  const uint16_t refused = status_field::kInvalidField | kDnr;
  command.cdw12 = 56;
  EXPECT_EQ(status(ToHost(command, 16)), refused);
  command.cdw12 = 18;
  EXPECT_EQ(status(ToHost(command, 16)), refused);
  command.cdw12 = 0;
  fabrics::SubmissionEntry high = ToHost(command, 16);
  high.cdw13 = 1;
  EXPECT_EQ(status(high), refused);
  fabrics::SubmissionEntry index = ToHost(command, 16);
  index.cdw14 = 1U << 23;
  EXPECT_EQ(status(index), refused);
  EXPECT_EQ(status(ToHost(command, 12)), status_field::kSglLengthInvalid | kDnr);
  fabrics::SubmissionEntry of_one = ToHost(command, 16);
  of_one.nsid = 3;
  EXPECT_EQ(status(of_one), refused) << "no log is of one namespace";
  fabrics::SubmissionEntry huge = ToHost(command, UINT32_MAX);
  huge.cdw11 = 0xffff;
  huge.cdw10 |= 0xffff0000;
  EXPECT_EQ(status(huge), refused) << "more than one command may carry";
}

// ---- Features

struct FeatureScene : Scene {
  Answer Get(uint32_t feature, uint32_t cdw11 = 0, uint32_t room_bytes = 0) {
    return Do(controller, ToHost({.opcode = static_cast<uint8_t>(AdminOpcode::kGetFeatures),
                                  .nsid = kAllNamespaces,
                                  .cdw10 = feature,
                                  .cdw11 = cdw11},
                                 room_bytes));
  }
  Answer Set(uint32_t feature, uint32_t cdw11) {
    return Do(controller, Command{.opcode = static_cast<uint8_t>(AdminOpcode::kSetFeatures),
                                  .nsid = kAllNamespaces,
                                  .cdw10 = feature,
                                  .cdw11 = cdw11});
  }
};

TEST(TargetFeatures, QueuesAreGrantedOnceUpToTheMost) {
  FeatureScene scene;
  EXPECT_EQ(scene.Get(0x07).result, 0x00070007U);
  EXPECT_EQ(scene.Set(0x07, 0x003f003f).result, 0x00070007U);
  EXPECT_EQ(scene.Set(0x07, 0x00010003).result, 0x00010001U);
  EXPECT_EQ(scene.Get(0x07).result, 0x00010001U);
  EXPECT_EQ(scene.Set(0x07, 0xffff0000).status, status_field::kInvalidField | kDnr);
  EXPECT_EQ(scene.Set(0x07, 0x0000ffff).status, status_field::kInvalidField | kDnr);
  ASSERT_TRUE(scene.ConnectQueue(scene.controller, 1).answer.ok());
  EXPECT_EQ(scene.Set(0x07, 0).status, status_field::kCommandSequence | kDnr);
  scene.controller.QueueEnded(1);
}

TEST(TargetFeatures, TheHostsIdentifierIsReadOnly) {
  FeatureScene scene;
  const Answer answer = scene.Get(0x81, 1, 16);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(std::ranges::equal(answer.data, kHostId));
  EXPECT_EQ(scene.Get(0x81, 0, 8).status, status_field::kHostIdFormat | kDnr);
  EXPECT_EQ(scene.Get(0x81, 1, 15).status, status_field::kSglLengthInvalid | kDnr);
  EXPECT_EQ(scene.Set(0x81, 1).status, status_field::kCommandSequence | kDnr);
}

TEST(TargetFeatures, TheWriteCacheStaysOn) {
  FeatureScene scene;
  EXPECT_EQ(scene.Get(0x06).result, 1U);
  EXPECT_TRUE(scene.Set(0x06, 1).ok());
  EXPECT_EQ(scene.Set(0x06, 0).status, status_field::kFeatureNotChangeable | kDnr);
  EXPECT_EQ(scene.Page(IdentifyCns::kIndependentNamespace, 3)[0], 1U << 5) << "this namespace has none";
  NamespaceShape shape = Shape();
  shape.write_cache = true;
  ASSERT_TRUE(scene.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_EQ(scene.Page(IdentifyCns::kIndependentNamespace, 3)[0], 0);
}

TEST(TargetFeatures, ThoseThatHostsAskForAreThere) {
  FeatureScene scene;
  EXPECT_EQ(scene.Get(0x0b).result,
            fabrics::kEventNamespace | fabrics::kEventAna | fabrics::kEventControllerReset);
  EXPECT_EQ(scene.Get(0x0f).result, 5000U);
  EXPECT_EQ(scene.Get(0x04).result, 0xffffU) << "a temperature that is never reached";
  EXPECT_EQ(scene.Get(0x04, 1U << 20).result, 0U);
  for (const uint32_t feature : {0x01U, 0x05U, 0x0aU}) {
    EXPECT_EQ(scene.Get(feature).result, 0U);
    EXPECT_TRUE(scene.Set(feature, 7).ok());
    EXPECT_EQ(scene.Get(feature).result, 7U);
  }
  EXPECT_TRUE(scene.Set(0x02, 0).ok());
  EXPECT_TRUE(scene.Set(0x19, 0).ok());
  EXPECT_EQ(scene.Get(0x19).result, 0U);
}

TEST(TargetFeatures, WhatThereIsNotIsRefused) {
  FeatureScene scene;
  const uint16_t refused = status_field::kInvalidField | kDnr;
  EXPECT_EQ(scene.Set(0x02, 1).status, refused) << "a power state";
  EXPECT_EQ(scene.Set(0x05, 1U << 16).status, refused) << "errors of deallocated blocks";
  EXPECT_EQ(scene.Set(0x19, 1).status, status_field::kCommandSetsRejected | kDnr);
  EXPECT_EQ(scene.Set(0x04, 1U << 16).status, refused) << "a sensor";
  EXPECT_EQ(scene.Set(0x01 | 1U << 31, 1).status, status_field::kFeatureNotSaveable | kDnr);
  EXPECT_EQ(scene.Get(0x01 | 1U << 8).status, refused) << "what was saved";
  for (const uint32_t feature :
       {0x00U, 0x03U, 0x08U, 0x09U, 0x0cU, 0x0dU, 0x0eU, 0x10U, 0x16U, 0x80U, 0x82U, 0x83U, 0xc0U}) {
    EXPECT_EQ(scene.Get(feature).status, refused) << feature;
    EXPECT_EQ(scene.Set(feature, 1).status, refused) << feature;
  }
  fabrics::SubmissionEntry recovery = Plain(SetFeature(Feature::kErrorRecovery, 0));
  recovery.nsid = 4;
  EXPECT_EQ(scene.Do(scene.controller, recovery).status, status_field::kInvalidNamespace | kDnr);
}

TEST(TargetFeatures, TheEffectsNameThoseThatThereAre) {
  FeatureScene scene;
  const Bytes log = scene.Log(LogPage::kFeatureEffects, 1024);
  for (uint32_t feature = 0; feature < 256; ++feature) {
    const bool supported = (At<uint32_t>(log, size_t{4} * feature) & 1) != 0;
    EXPECT_EQ(scene.Get(feature, feature == 0x81 ? 1 : 0, 4096).ok(), supported) << feature;
  }
}

}  // namespace
}  // namespace cleat::nvme::target::pages_test
