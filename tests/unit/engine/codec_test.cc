// SPDX-License-Identifier: Apache-2.0
// The engine's side of its protocol with cleatd: what is packed can be read by protobuf, what is unpacked is
// checked.
#include "engine/protocol/codec.h"

#include <cleat/engine/v1/engine.pb-c.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"

namespace cleat::engine::codec_test {
namespace {

using Envelope = Cleat__Engine__V1__Envelope;

struct Free {
  void operator()(Envelope* envelope) const { cleat__engine__v1__envelope__free_unpacked(envelope, nullptr); }
};

std::unique_ptr<Envelope, Free> Read(const std::vector<uint8_t>& bytes) {
  return std::unique_ptr<Envelope, Free>(
      cleat__engine__v1__envelope__unpack(nullptr, bytes.size(), bytes.data()));
}

std::vector<uint8_t> Write(const Envelope& envelope) {
  std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
  cleat__engine__v1__envelope__pack(&envelope, bytes.data());
  return bytes;
}

// An attach request as cleatd would send it, for tests to spoil.
struct AttachRequest {
  AttachRequest() {
    file.path = path.data();
    disk.name = disk_name.data();
    disk.has_size_bytes = 1;
    disk.size_bytes = 1 << 20;
    disk.serial = serial.data();
    disk.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_FILE;
    disk.file = &file;
    attachment.controller = controller.data();
    attachment.has_read_only = attachment.read_only = 1;
    attachment.has_revision = 1;
    attachment.revision = 7;
    attachment.disk = &disk;
    attach.attachment = &attachment;
    envelope.has_id = 1;
    envelope.id = 42;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_ATTACH;
    envelope.attach = &attach;
  }
  std::string path = "/var/a.img";
  std::string disk_name = "disks/a";
  std::string serial = "a-serial";
  std::string controller = "controllers/vm1";
  Cleat__Engine__V1__FileBackend file = CLEAT__ENGINE__V1__FILE_BACKEND__INIT;
  Cleat__Engine__V1__Disk disk = CLEAT__ENGINE__V1__DISK__INIT;
  Cleat__Engine__V1__Attachment attachment = CLEAT__ENGINE__V1__ATTACHMENT__INIT;
  Cleat__Engine__V1__Attach attach = CLEAT__ENGINE__V1__ATTACH__INIT;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
};

// As the engine has it once it was attached.
Backend BackendOf(const AttachRequest& request) {
  auto decoded = Decode(Write(request.envelope));
  EXPECT_TRUE(decoded.ok()) << decoded.error().message;
  return std::get<AttachMessage>(decoded->body).attachment.disk.backend;
}

// As cleatd reads it in the disk's status. Holds the disk.
std::unique_ptr<Envelope, Free> StatusWith(const Backend& backend) {
  AttachmentReport report;
  report.spec.disk.name = "disks/a";
  report.spec.disk.backend = backend;
  return Read(EncodeAttachment(report));
}

AttachmentReport SampleAttachment() {
  AttachmentReport report;
  report.spec.controller = "controllers/vm1";
  report.spec.disk.name = "disks/a";
  report.spec.disk.size_bytes = 1 << 20;
  report.spec.disk.logical_block_bytes = 4096;
  report.spec.disk.physical_block_bytes = 4096;
  report.spec.disk.serial = "a-serial";
  report.spec.disk.backend = BackendOf(AttachRequest());
  report.spec.disk.fault = FaultSpec{1, 2, 3};
  report.spec.disk.limits.limits[qos::Meter::kIops] = {6000, 12000, 30000};
  report.spec.disk.limits.limits[qos::Meter::kWriteBytes] = {1 << 20, 0, 0};
  report.spec.disk.limits.revision = 8;
  report.spec.read_only = true;
  report.spec.revision = 9;
  report.io_path = "io_uring";
  report.state = AttachmentState::kActive;
  return report;
}

TEST(Codec, AnAttachComesThroughWhole) {
  const AttachRequest request;
  const auto decoded = Decode(Write(request.envelope));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(decoded->id, 42U);
  const auto* attach = std::get_if<AttachMessage>(&decoded->body);
  ASSERT_NE(attach, nullptr);
  EXPECT_EQ(attach->attachment.controller, "controllers/vm1");
  EXPECT_EQ(attach->attachment.disk.name, "disks/a");
  EXPECT_EQ(attach->attachment.disk.size_bytes, 1U << 20);
  EXPECT_EQ(attach->attachment.disk.logical_block_bytes, 512U) << "the default";
  const auto status = StatusWith(attach->attachment.disk.backend);
  EXPECT_STREQ(status->status_event->attachment->attachment->disk->file->path, "/var/a.img");
  EXPECT_TRUE(attach->attachment.read_only);
  EXPECT_EQ(attach->attachment.revision, 7U);
}

TEST(Codec, ANullDiskKeepsWhatItsReadsDo) {
  AttachRequest request;
  Cleat__Engine__V1__NullBackend null = CLEAT__ENGINE__V1__NULL_BACKEND__INIT;
  request.disk.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_NULL;
  request.disk.null = &null;
  for (const bool skip_reads : {false, true}) {
    null.has_skip_reads = null.skip_reads = skip_reads;
    const Backend backend = BackendOf(request);
    EXPECT_EQ(backend == Backend(), !skip_reads);
    const auto status = StatusWith(backend);
    EXPECT_EQ(status->status_event->attachment->attachment->disk->null->skip_reads, skip_reads);
  }
}

TEST(Codec, MissingPartsAreRefusedByName) {
  AttachRequest request;
  request.disk.name = nullptr;
  const auto no_name = Decode(Write(request.envelope));
  ASSERT_FALSE(no_name.ok());
  EXPECT_EQ(no_name.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(no_name.error().message.find("disk.name"), std::string::npos) << no_name.error().message;

  AttachRequest no_disk;
  no_disk.attachment.disk = nullptr;
  EXPECT_FALSE(Decode(Write(no_disk.envelope)).ok());
}

TEST(Codec, TheRequestsIdComesThroughOrIsRefusedForItsForm) {
  AttachRequest request;
  EXPECT_EQ(Decode(Write(request.envelope))->request, "");
  for (std::string id : {std::string("attach-17"), std::string(128, 'x'), std::string("{\"a\"}")}) {
    request.envelope.request = id.data();
    const auto decoded = Decode(Write(request.envelope));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(decoded->request, id);
  }
  for (std::string id : {std::string("a b"), std::string("a\nengine: killed"), std::string("\x1b[31m"),
                         std::string("\xc3\xa4"), std::string(129, 'x')}) {
    request.envelope.request = id.data();
    const auto bytes = Write(request.envelope);
    const auto refused = Decode(bytes);
    ASSERT_FALSE(refused.ok()) << id;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message.find(id), std::string::npos)
        << "it does not come into the log that way";
    EXPECT_EQ(DecodeId(bytes), 42U);
  }
}

TEST(Codec, AnUnknownBackendIsUnimplementedAndKeepsItsId) {
  AttachRequest request;
  request.disk.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND__NOT_SET;
  const auto bytes = Write(request.envelope);
  const auto decoded = Decode(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::kUnimplemented);
  EXPECT_EQ(DecodeId(bytes), 42U);
}

TEST(Codec, GarbageIsRefusedAndNeverCrashes) {
  Random random(1);
  const AttachRequest request;
  const std::vector<uint8_t> whole = Write(request.envelope);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes = whole;
    bytes.resize(random.Between(0, bytes.size()));
    for (uint64_t flips = random.Below(4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random.Below(bytes.size())] ^= static_cast<uint8_t>(1U << random.Below(8));
    }
    const auto decoded = Decode(bytes);
    if (decoded.ok()) continue;
    EXPECT_FALSE(decoded.error().message.empty());
  }
  EXPECT_FALSE(Decode(std::vector<uint8_t>(kMessageBytesMax + 1)).ok()) << "larger than a message may be";
}

TEST(Codec, ReportsSayWhatTheyWereGiven) {
  const auto bytes = EncodeAttachment(SampleAttachment());
  const auto envelope = Read(bytes);
  ASSERT_NE(envelope, nullptr);
  ASSERT_EQ(envelope->body_case, CLEAT__ENGINE__V1__ENVELOPE__BODY_STATUS_EVENT);
  const auto* status = envelope->status_event->attachment;
  EXPECT_EQ(status->state, CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_ACTIVE);
  EXPECT_EQ(status->attachment->revision, 9U);
  EXPECT_STREQ(status->attachment->disk->file->path, "/var/a.img");
  EXPECT_STREQ(status->io_path, "io_uring");
  EXPECT_EQ(status->attachment->disk->fault->fail_per_million, 3U);

  const auto reply = Read(EncodeReply(5, Error(ErrorCode::kNotFound, "disks/a is not here")));
  EXPECT_EQ(reply->id, 5U);
  EXPECT_EQ(reply->reply->ok, 0);
  EXPECT_STREQ(reply->reply->code, "not_found");
  EXPECT_STREQ(reply->reply->message, "disks/a is not here");
}

// What one engine's reply says of a hand-over is what the next one is told.
TEST(Codec, AHandOverGoesFromOneEngineToTheNext) {
  const HandOver given{.disks = {{.target = 0, .use = {}, .cells = {}},
                                 {.target = 5, .use = {7, 0, ~uint64_t{0}}, .cells = {16383, 1}}}};
  const auto reply = Read(EncodeReply(5, Ok{}, &given));
  ASSERT_NE(reply->reply->hand_over, nullptr);
  EXPECT_EQ(Read(EncodeReply(5, Error(ErrorCode::kInternal, "no"), &given))->reply->hand_over, nullptr);

  std::string name = "controllers/vm1";
  Cleat__Engine__V1__TakeController take = CLEAT__ENGINE__V1__TAKE_CONTROLLER__INIT;
  take.name = name.data();
  take.hand_over = reply->reply->hand_over;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_TAKE_CONTROLLER;
  envelope.take_controller = &take;
  const auto taken = Decode(Write(envelope));
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  const auto& message = std::get<TakeControllerMessage>(taken->body);
  EXPECT_EQ(message.name, name);
  ASSERT_EQ(message.hand_over.disks.size(), 2U);
  EXPECT_EQ(message.hand_over.disks[1].target, 5U);
  EXPECT_EQ(message.hand_over.disks[1].use, given.disks[1].use);
  EXPECT_EQ(message.hand_over.disks[1].cells, given.disks[1].cells);

  std::vector<uint64_t> many(kHandOverWordsMax + 1);
  take.hand_over->disks[0]->n_buckets = many.size();
  take.hand_over->disks[0]->buckets = many.data();
  EXPECT_EQ(Decode(Write(envelope)).error().message.find("too many buckets") == std::string::npos, false);
  take.hand_over->disks[0]->n_buckets = 0;
  take.hand_over->disks[0]->buckets = nullptr;
  take.hand_over->disks[0]->n_cells = many.size();
  take.hand_over->disks[0]->cells = many.data();
  EXPECT_EQ(Decode(Write(envelope)).error().message.find("too many cells") == std::string::npos, false);
  take.hand_over->disks[0]->n_cells = 0;
  take.hand_over->disks[0]->cells = nullptr;
  take.hand_over = nullptr;  // of one that has died
  EXPECT_TRUE(Decode(Write(envelope)).ok());
  take.name = nullptr;
  EXPECT_FALSE(Decode(Write(envelope)).ok());
}

TEST(Codec, WhoStandsByIsSaid) {
  HelloMessage hello;
  hello.engine = "green";
  EXPECT_EQ(Read(EncodeHello(hello))->hello->stands_by_for, nullptr);
  hello.stands_by_for = "blue";
  EXPECT_STREQ(Read(EncodeHello(hello))->hello->stands_by_for, "blue");

  std::string name = "controllers/vm1";
  std::string path = "/run/vm1.sock";
  Cleat__Engine__V1__Controller controller = CLEAT__ENGINE__V1__CONTROLLER__INIT;
  controller.name = name.data();
  controller.socket_path = path.data();
  controller.has_type = 1;
  controller.type = CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_SCSI;
  controller.has_socket_mode = 1;
  controller.socket_mode = CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT;
  Cleat__Engine__V1__PutController put = CLEAT__ENGINE__V1__PUT_CONTROLLER__INIT;
  put.controller = &controller;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER;
  envelope.put_controller = &put;
  for (const bool standby : {false, true}) {
    put.has_standby = put.standby = standby;
    const auto decoded = Decode(Write(envelope));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(std::get<PutControllerMessage>(decoded->body).standby, standby);
  }
}

TEST(Codec, WhoVouchesForItsMemoryIsReadAndTold) {
  std::string name = "controllers/vm1";
  std::string path = "/run/vm1.sock";
  Cleat__Engine__V1__Controller controller = CLEAT__ENGINE__V1__CONTROLLER__INIT;
  controller.name = name.data();
  controller.socket_path = path.data();
  controller.has_type = controller.has_socket_mode = 1;
  controller.type = CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK;
  controller.socket_mode = CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT;
  Cleat__Engine__V1__PutController put = CLEAT__ENGINE__V1__PUT_CONTROLLER__INIT;
  put.controller = &controller;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER;
  envelope.put_controller = &put;
  ControllerReport report;
  report.spec = std::get<PutControllerMessage>(Decode(Write(envelope))->body).controller;
  EXPECT_FALSE(report.spec.memory_pinned) << "of a cleatd that says nothing";
  EXPECT_EQ(Read(EncodeController(report))->status_event->controller->controller->memory_pinned, 0);
  controller.has_memory_pinned = controller.memory_pinned = 1;
  const ControllerSpec pinned = std::get<PutControllerMessage>(Decode(Write(envelope))->body).controller;
  EXPECT_TRUE(pinned.memory_pinned);
  EXPECT_TRUE(pinned.SameAs(report.spec))
      << "of the same revision: a cleatd of before says so of one that it found here";
  ControllerSpec anew = pinned;
  ++anew.revision;
  EXPECT_FALSE(anew.SameAs(report.spec)) << "it can't be changed while the controller is there";
  report.spec = pinned;
  EXPECT_EQ(Read(EncodeController(report))->status_event->controller->controller->memory_pinned, 1);
}

TEST(Codec, AnInventoryOfAThousandGoesInChunksThatFit) {
  std::vector<ControllerReport> controllers(1000);
  for (size_t i = 0; i < controllers.size(); ++i) {
    controllers[i].spec.name = "controllers/c" + std::to_string(i);
    controllers[i].spec.socket_path = "/run/" + std::to_string(i);
    controllers[i].message = std::string(2000, 'x');
  }
  const std::vector<AttachmentReport> attachments(10, SampleAttachment());
  const std::vector<MemoryReport> memories = {{"disks/m", 4096}};
  const std::vector<GroupSpec> groups(9, GroupSpec{"groups/g", 3, {}});
  const auto messages = EncodeInventory(controllers, attachments, memories, groups, {});
  size_t seen_controllers = 0;
  size_t seen_attachments = 0;
  size_t seen_memories = 0;
  size_t seen_groups = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_LE(messages[i].size(), kMessageBytesMax);
    const auto envelope = Read(messages[i]);
    ASSERT_EQ(envelope->body_case, CLEAT__ENGINE__V1__ENVELOPE__BODY_INVENTORY);
    seen_controllers += envelope->inventory->n_controllers;
    seen_attachments += envelope->inventory->n_attachments;
    seen_memories += envelope->inventory->n_memories;
    seen_groups += envelope->inventory->n_groups;
    EXPECT_EQ(envelope->inventory->last != 0, i + 1 == messages.size());
  }
  EXPECT_EQ(seen_controllers, 1000U);
  EXPECT_EQ(seen_attachments, 10U);
  EXPECT_EQ(seen_memories, 1U);
  EXPECT_EQ(seen_groups, 9U);
  EXPECT_EQ(EncodeInventory({}, {}, {}, {}, {}).size(), 1U)
      << "an empty inventory still says that it is the last";
}

TEST(Codec, WhatADiskDoesWithoutSpaceIsReadWithTheAttachAndTheLimits) {
  AttachRequest request;
  EXPECT_EQ(std::get<AttachMessage>(Decode(Write(request.envelope))->body).attachment.disk.on_no_space,
            OnNoSpace::kError)
      << "of a cleatd that says nothing";
  request.disk.has_on_no_space = 1;
  request.disk.on_no_space = CLEAT__ENGINE__V1__ON_NO_SPACE__ON_NO_SPACE_WAIT;
  const AttachmentSpec spec = std::get<AttachMessage>(Decode(Write(request.envelope))->body).attachment;
  EXPECT_EQ(spec.disk.on_no_space, OnNoSpace::kWait);
  DiskSpec other = spec.disk;
  other.on_no_space = OnNoSpace::kError;
  EXPECT_TRUE(spec.disk.SameAs(other)) << "it changes while the disk is attached";

  Cleat__Engine__V1__LimitDisk limit = CLEAT__ENGINE__V1__LIMIT_DISK__INIT;
  limit.disk = request.disk_name.data();
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.has_id = 1;
  envelope.id = 3;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_LIMIT_DISK;
  envelope.limit_disk = &limit;
  EXPECT_EQ(std::get<LimitDiskMessage>(Decode(Write(envelope))->body).limit.on_no_space, OnNoSpace::kError);
  limit.has_on_no_space = 1;
  limit.on_no_space = CLEAT__ENGINE__V1__ON_NO_SPACE__ON_NO_SPACE_WAIT;
  EXPECT_EQ(std::get<LimitDiskMessage>(Decode(Write(envelope))->body).limit.on_no_space, OnNoSpace::kWait);
}

TEST(Codec, WhatADiskDoesWithWritesInDoubtIsReadWithTheAttachAndTheLimitsAndToldBack) {
  using Policy = block::InDoubt::Policy;
  AttachRequest request;
  const auto of_attach = [&request] {
    return std::get<AttachMessage>(Decode(Write(request.envelope))->body).attachment.disk;
  };
  EXPECT_EQ(of_attach().in_doubt, block::InDoubt{}) << "of a cleatd that says nothing";
  Cleat__Engine__V1__InDoubt rule = CLEAT__ENGINE__V1__IN_DOUBT__INIT;
  request.disk.in_doubt = &rule;
  rule.has_policy = rule.has_fail_after_s = 1;
  rule.policy = CLEAT__ENGINE__V1__IN_DOUBT_POLICY__IN_DOUBT_POLICY_FAIL_AFTER;
  rule.fail_after_s = 30;
  const block::InDoubt fail{.policy = Policy::kFailAfter, .fail_after_ns = 30 * kNsPerSecond};
  EXPECT_EQ(of_attach().in_doubt, fail);
  EXPECT_TRUE(of_attach().SameAs([&] {
    DiskSpec other = of_attach();
    other.in_doubt = {};
    return other;
  }()))
      << "it changes while the disk is attached";
  rule.fail_after_s = 0;
  EXPECT_EQ(of_attach().in_doubt, block::InDoubt{}) << "no time at all would fail what never waited";
  rule.policy = static_cast<Cleat__Engine__V1__InDoubtPolicy>(99);
  EXPECT_EQ(of_attach().in_doubt, block::InDoubt{}) << "what this engine does not know holds";

  Cleat__Engine__V1__LimitDisk limit = CLEAT__ENGINE__V1__LIMIT_DISK__INIT;
  limit.disk = request.disk_name.data();
  limit.in_doubt = &rule;
  rule.policy = CLEAT__ENGINE__V1__IN_DOUBT_POLICY__IN_DOUBT_POLICY_ACCEPT;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.has_id = 1;
  envelope.id = 3;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_LIMIT_DISK;
  envelope.limit_disk = &limit;
  EXPECT_EQ(std::get<LimitDiskMessage>(Decode(Write(envelope))->body).limit.in_doubt.policy, Policy::kAccept);

  AttachmentReport report;
  report.spec = std::get<AttachMessage>(Decode(Write(request.envelope))->body).attachment;
  report.spec.disk.in_doubt = fail;
  report.storage = StorageState::kStuck;
  report.paths.emplace();
  report.paths->non_optimized = 2;
  report.paths->failovers = 3;
  report.paths->doubt_bytes = 4096;
  report.paths->waiting = 5;
  report.waiting_since_s = 1'700'000'000;
  const auto told = Read(EncodeAttachment(report));
  const auto& status = *told->status_event->attachment;
  EXPECT_EQ(status.storage_state, CLEAT__ENGINE__V1__STORAGE_STATE__STORAGE_STATE_STUCK);
  EXPECT_EQ(status.attachment->disk->in_doubt->fail_after_s, 30U);
  EXPECT_EQ(status.paths->non_optimized, 2U);
  EXPECT_EQ(status.paths->failovers, 3U);
  EXPECT_EQ(status.paths->doubt_bytes, 4096U);
  EXPECT_EQ(status.paths->waiting, 5U);
  EXPECT_EQ(status.paths->waiting_since_s, 1'700'000'000U);
}

// What cleatd sends of limits is what it gets back.
TEST(Codec, LimitsAndGroupsComeOutAsTheyWentIn) {
  Cleat__Engine__V1__Rate rates[qos::kMeters];
  for (uint32_t i = 0; i < qos::kMeters; ++i) {
    rates[i] = CLEAT__ENGINE__V1__RATE__INIT;
    rates[i].has_per_second = rates[i].has_burst_per_second = rates[i].has_burst_ms = 1;
    rates[i].per_second = 1000 + i;
    rates[i].burst_per_second = 2000 + i;
    rates[i].burst_ms = 3000 + i;
  }
  Cleat__Engine__V1__Limits limits = CLEAT__ENGINE__V1__LIMITS__INIT;
  limits.iops = &rates[0];
  limits.read_iops = &rates[1];
  limits.write_iops = &rates[2];
  limits.bytes = &rates[3];
  limits.read_bytes = &rates[4];
  limits.write_bytes = &rates[5];
  limits.has_revision = 1;
  limits.revision = 99;
  std::string name = "groups/vm1";
  Cleat__Engine__V1__Group group = CLEAT__ENGINE__V1__GROUP__INIT;
  group.name = name.data();
  group.has_slot = 1;
  group.slot = 7;
  group.limits = &limits;
  Cleat__Engine__V1__PutGroup put = CLEAT__ENGINE__V1__PUT_GROUP__INIT;
  put.group = &group;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.has_id = 1;
  envelope.id = 3;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_GROUP;
  envelope.put_group = &put;
  const auto incoming = Decode(Write(envelope));
  ASSERT_TRUE(incoming.ok()) << incoming.error().message;
  const GroupSpec spec = std::get<PutGroupMessage>(incoming->body).group;
  EXPECT_EQ(spec.name, name);
  EXPECT_EQ(spec.slot, 7U);
  EXPECT_EQ(spec.limits.revision, 99U);
  for (uint32_t i = 0; i < qos::kMeters; ++i) {
    EXPECT_EQ(spec.limits.limits.rates[i], (qos::Rate{1000 + i, 2000 + i, 3000 + i})) << i;
  }
  const auto back = Read(EncodeInventory({}, {}, {}, {spec}, {}).front());
  const auto* told = back->inventory->groups[0];
  EXPECT_STREQ(told->name, "groups/vm1");
  EXPECT_EQ(told->slot, 7U);
  EXPECT_EQ(told->limits->revision, 99U);
  EXPECT_EQ(told->limits->write_bytes->burst_per_second, 2005U);

  group.has_slot = 0;
  EXPECT_FALSE(Decode(Write(envelope)).ok());
}

TEST(Codec, ClustersAndTheirDisks) {
  std::string name = "clusters/ceph";
  std::string monitors = "10.0.0.1";
  std::string user = "cleat";
  std::string kek = "0123456789abcdef";
  std::vector<uint8_t> key(40, 7);
  Cleat__Engine__V1__Cluster cluster = CLEAT__ENGINE__V1__CLUSTER__INIT;
  cluster.name = name.data();
  cluster.monitors = monitors.data();
  cluster.user = user.data();
  cluster.key_encryption_key = kek.data();
  cluster.has_wrapped_key = 1;
  cluster.wrapped_key = {key.size(), key.data()};
  cluster.has_images_per_client = 1;
  cluster.images_per_client = 5;
  cluster.has_connect_timeout_ms = 1;
  cluster.connect_timeout_ms = 1500;
  cluster.has_revision = 1;
  cluster.revision = 77;
  Cleat__Engine__V1__PutCluster put = CLEAT__ENGINE__V1__PUT_CLUSTER__INIT;
  put.cluster = &cluster;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.has_id = 1;
  envelope.id = 3;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CLUSTER;
  envelope.put_cluster = &put;
  const auto incoming = Decode(Write(envelope));
  ASSERT_TRUE(incoming.ok()) << incoming.error().message;
  const ClusterSpec spec = std::get<PutClusterMessage>(incoming->body).cluster;
  EXPECT_EQ(spec.name, name);
  EXPECT_EQ(spec.monitors, monitors);
  EXPECT_EQ(spec.conf_file, "");
  EXPECT_EQ(spec.user, user);
  EXPECT_EQ(spec.key_encryption_key, kek);
  EXPECT_EQ(spec.wrapped_key, key);
  EXPECT_EQ(spec.images_per_client, 5U);
  EXPECT_EQ(spec.connect_timeout_ms, 1500U);
  const auto back = Read(EncodeInventory({}, {}, {}, {}, {spec}).front());
  EXPECT_STREQ(back->inventory->clusters[0]->name, "clusters/ceph");
  EXPECT_EQ(back->inventory->clusters[0]->revision, 77U);
  EXPECT_EQ(back->inventory->clusters[0]->has_wrapped_key, 0) << "cleatd has it";

  AttachRequest request;
  Cleat__Engine__V1__RbdBackend image = CLEAT__ENGINE__V1__RBD_BACKEND__INIT;
  std::string pool = "vms";
  std::string image_name = "a";
  std::string snapshot = "then";
  image.cluster = name.data();
  image.pool = pool.data();
  image.image = image_name.data();
  image.snapshot = snapshot.data();
  image.has_image_bytes = 1;
  image.image_bytes = 4096;
  request.disk.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_RBD;
  request.disk.rbd = &image;
  AttachmentReport report;
  report.spec.disk.name = "disks/a";
  report.spec.disk.backend = BackendOf(request);
  report.state = AttachmentState::kFenced;
  const auto told = Read(EncodeAttachment(report));
  const auto& rbd = *told->status_event->attachment->attachment->disk->rbd;
  EXPECT_STREQ(rbd.pool, "vms");
  EXPECT_EQ(rbd.name_space, nullptr);
  EXPECT_STREQ(rbd.snapshot, "then");
  EXPECT_EQ(rbd.image_bytes, 4096U);
  EXPECT_EQ(told->status_event->attachment->state,
            CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_FENCED);

  CephReport ceph;
  ceph.threads = 14;
  ceph.clients_total = 200;
  ceph.clients.assign(200, {name, "client.1", 3, 9, true});
  ceph.clusters.assign(200, {std::string(80, 'c'), 11, 12, std::string(kCephFullBytesMax, 'p'), 13});
  const auto status = Read(EncodeCeph(ceph));
  EXPECT_EQ(status->status_event->ceph->clients_total, 200U);
  EXPECT_EQ(status->status_event->ceph->n_clients, kCephClientsMax);
  ASSERT_EQ(status->status_event->ceph->n_clusters, kClustersMax);
  EXPECT_EQ(status->status_event->ceph->clusters[0]->silent_since_s, 11U);
  EXPECT_EQ(status->status_event->ceph->clusters[0]->full_since_s, 12U);
  EXPECT_EQ(status->status_event->ceph->clusters[0]->paused_since_s, 13U);
  EXPECT_LE(EncodeCeph(ceph).size(), kMessageBytesMax) << "all of it goes in one datagram";

  cluster.wrapped_key.len = 12;
  EXPECT_FALSE(Decode(Write(envelope)).ok());
}

// Found by the fuzzer: a controller type that is no enumerator may not even be looked at as one.
TEST(Codec, AnUnknownControllerTypeIsRefusedByName) {
  const std::vector<uint8_t> bytes = {0x82, 0x01, 0x28, 0x0a, 0x26, 0x0a, 0x0e, 'c',  'o',  'n', 't',
                                      'r',  'o',  'l',  'l',  'e',  'r',  's',  '/',  'v',  'm', 0x10,
                                      0xfe, 0xe5, 0xf3, 0xd0, 0x8d, 0x2c, 0x91, 0xcb, 'v',  'm', '.',
                                      's',  'o',  'c',  'k',  0x20, 0x02, 0x28, 0x04, 0x30, 0x03};
  const auto incoming = Decode(bytes);
  ASSERT_FALSE(incoming.ok());
  EXPECT_EQ(incoming.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(incoming.error().message.find("blk, scsi and nvmf"), std::string::npos);
}

}  // namespace
}  // namespace cleat::engine::codec_test
