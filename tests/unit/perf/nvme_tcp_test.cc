// SPDX-License-Identifier: Apache-2.0
// The initiator of cleat-perf, with the load in front of it, against the target that the engine's own initiator is tested with; and a queue
// against PDUs that no target should send.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "perf/load/load.h"
#include "perf/load/load_devices.h"
#include "perf/nvme_tcp/crc32c.h"
#include "perf/nvme_tcp/queue.h"
#include "tests/unit/modules/nvmf_target.h"

namespace cleat::perf::nvme_tcp_test {
namespace {

using test::NvmfTarget;

const LoadMix kHalfWrites = {50, 50, 0, 0, 0};

struct NvmeTcpTest : ::testing::Test {
  void Serve(const NvmfTarget::Options& served) { target = std::make_unique<NvmfTarget>(served); }
  void SetUp() override {
    Serve({});
    options.nvme_tcp.subsystem_nqn = NvmfTarget::kSubsystem;
  }

  Status Open(const LoadOptions& load) {
    options.nvme_tcp.address = "127.0.0.1:" + std::to_string(target->port());
    auto opened = OpenLoadDevices(options, load);
    if (!opened) return opened.error();
    devices = std::move(*opened);
    return Ok{};
  }
  Result<LoadReport> Load(const LoadOptions& load) { return RunLoad({&devices[0].device(), 1}, load); }
  // All of it, and the association is ended in good order.
  LoadReport RunWell(const LoadOptions& load) {
    const Status opened = Open(load);
    EXPECT_TRUE(opened.ok()) << (opened ? "" : opened.error().message);
    if (!opened) return {};
    Result<LoadReport> report = Load(load);
    EXPECT_TRUE(report.ok()) << (report ? "" : report.error().message);
    EXPECT_TRUE(devices[0].Stop().ok());
    if (!report) return {};
    EXPECT_EQ(report->errors, 0U) << report->first_error;
    EXPECT_EQ(report->faults, 0U) << report->first_fault;
    return std::move(*report);
  }
  std::string WhyNotOpened(const LoadOptions& load) {
    const Status opened = Open(load);
    return opened ? "" : opened.error().message;
  }

  std::unique_ptr<NvmfTarget> target;
  LoadDeviceOptions options;
  std::vector<OpenLoadDevice> devices;
};

TEST_F(NvmeTcpTest, WhatIsWrittenIsReadBackOnSeveralQueues) {
  options.queues = 2;
  const LoadReport report =
      RunWell({.mix = {40, 40, 0, 0, 20}, .depth = 8, .requests = 2000, .verify = true});
  EXPECT_EQ(report.requests, 2000U);
  EXPECT_GT(report.verified_blocks, 500U);
  EXPECT_EQ(target->counts.io_queues, 2U);
}

TEST_F(NvmeTcpTest, VerificationFindsWhatTheTargetHasLost) {
  const LoadOptions load{.mix = kHalfWrites, .depth = 1, .requests = 200, .verify = true};
  ASSERT_TRUE(Open(load).ok());
  target->faults.lose_writes = true;
  Result<LoadReport> report = Load(load);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_GT(report->faults, 0U);
}

TEST_F(NvmeTcpTest, EveryOperationOfTheMixReachesTheTarget) {
  const LoadReport report =
      RunWell({.mix = {20, 20, 20, 20, 20}, .segments = 3, .depth = 4, .requests = 500});
  const auto count = [&](LoadOp op) { return report.operations[static_cast<size_t>(op)].requests; };
  EXPECT_EQ(target->counts.reads, count(LoadOp::kRead));
  EXPECT_EQ(target->counts.writes, count(LoadOp::kWrite));
  EXPECT_EQ(target->counts.flushes, count(LoadOp::kFlush));
  EXPECT_EQ(target->counts.discards, count(LoadOp::kDiscard));
  EXPECT_EQ(target->counts.zeroes, count(LoadOp::kWriteZeroes));
}

TEST_F(NvmeTcpTest, AnOpenLoopSendsWhatIsDue) {
  for (const LoadWait wait : {LoadWait::kPoll, LoadWait::kCall}) {
    const LoadReport report =
        RunWell({.mix = kHalfWrites, .depth = 16, .requests = 300, .rate = 5000, .wait = wait});
    EXPECT_EQ(report.requests, 300U);
  }
}

TEST_F(NvmeTcpTest, LargeWritesAreAskedForInParts) {
  const LoadReport report = RunWell({.mix = kHalfWrites,
                                     .block_bytes = 128 * 1024,
                                     .segments = 5,
                                     .depth = 4,
                                     .requests = 100,
                                     .verify = true});
  EXPECT_EQ(report.requests, 100U);
  EXPECT_GT(target->counts.r2t_writes, 0U);
  EXPECT_EQ(target->counts.longest_bytes, 128U * 1024);
}

TEST_F(NvmeTcpTest, DigestsAreRightInBothDirections) {
  options.nvme_tcp.digests = {.header = true, .data = true};
  for (const uint32_t block_bytes : {4096U, 64U * 1024}) {
    RunWell({.mix = kHalfWrites,
             .block_bytes = block_bytes,
             .segments = 3,
             .depth = 4,
             .requests = 200,
             .verify = true});
  }
  EXPECT_EQ(target->counts.digest_errors, 0U);
  EXPECT_GT(target->counts.r2t_writes, 0U);
}

TEST_F(NvmeTcpTest, AWrongDigestOfDataIsAnErrorOfItsRequest) {
  options.nvme_tcp.digests.data = true;
  const LoadOptions load{.depth = 2, .requests = 10};
  ASSERT_TRUE(Open(load).ok());
  target->faults.wrong_data_digest = true;
  Result<LoadReport> report = Load(load);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->errors, 10U);
  EXPECT_NE(report->first_error.find("digest"), std::string::npos) << report->first_error;
}

TEST_F(NvmeTcpTest, AWrongDigestOfAHeaderEndsTheLoad) {
  options.nvme_tcp.digests.header = true;
  const LoadOptions load{.depth = 2, .requests = 10};
  ASSERT_TRUE(Open(load).ok());
  target->faults.wrong_header_digest = true;
  Result<LoadReport> report = Load(load);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("digest of a header"), std::string::npos) << report.error().message;
}

TEST_F(NvmeTcpTest, AReadMayEndWithItsData) {
  Serve({.success_flag = true});
  RunWell({.mix = kHalfWrites, .block_bytes = 64 * 1024, .depth = 4, .requests = 200, .verify = true});
}

TEST_F(NvmeTcpTest, PdusThatComeByteByByteAreTheSame) {
  options.nvme_tcp.digests = {.header = true, .data = true};
  target->faults.bytewise = true;
  RunWell({.mix = kHalfWrites, .block_bytes = 512, .depth = 4, .requests = 20, .verify = true});
}

TEST_F(NvmeTcpTest, ATargetThatClosesTheConnectionEndsTheLoad) {
  const LoadOptions load{.depth = 4, .requests = 1000};
  ASSERT_TRUE(Open(load).ok());
  target->faults.cut_io = true;
  Result<LoadReport> report = Load(load);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("queue 0: the target closed the connection"), std::string::npos)
      << report.error().message;
}

TEST_F(NvmeTcpTest, RefusalsAreNamed) {
  const LoadOptions load{.requests = 1};
  options.nvme_tcp.subsystem_nqn = "nqn.2024-01.org.example:nobody";
  EXPECT_NE(WhyNotOpened(load).find("the target refused Connect: status 0x182"), std::string::npos)
      << WhyNotOpened(load);
  options.nvme_tcp.subsystem_nqn = NvmfTarget::kSubsystem;
  EXPECT_NE(WhyNotOpened({.block_bytes = 256 * 1024, .requests = 1}).find("takes 131072 a command"),
            std::string::npos);
  EXPECT_NE(WhyNotOpened({.depth = 128, .requests = 1}).find("takes 127"), std::string::npos);
  options.queues = 9;
  EXPECT_NE(WhyNotOpened(load).find("the controller has 8"), std::string::npos);
  options.queues = 1;
  options.nvme_tcp.host_id = "me";
  EXPECT_NE(WhyNotOpened(load).find("no host identifier"), std::string::npos);
  options.nvme_tcp.host_id.clear();
  Serve({.digests = false});
  options.nvme_tcp.digests.header = true;
  EXPECT_NE(WhyNotOpened(load).find("digests"), std::string::npos);
  target->Stop();
  EXPECT_NE(WhyNotOpened(load).find("connecting"), std::string::npos);
}

TEST_F(NvmeTcpTest, ANamespaceHasANumberOrAUuid) {
  const LoadOptions load{.requests = 1};
  for (const std::string& name :
       {std::string(), std::to_string(NvmfTarget::kNsid), UuidText(NvmfTarget::kUuid)}) {
    options.nvme_tcp.namespace_name = name;
    ASSERT_TRUE(Open(load).ok()) << name;
    ASSERT_EQ(devices[0].device().disks.size(), 1U);
    EXPECT_EQ(devices[0].device().disks[0].nsid, NvmfTarget::kNsid);
    EXPECT_EQ(devices[0].device().disks[0].bytes, NvmfTarget::Options().size_bytes);
    EXPECT_TRUE(devices[0].Stop().ok());
  }
  for (const std::string name : {"6", "00000000-0000-0000-0000-000000000001"}) {
    options.nvme_tcp.namespace_name = name;
    EXPECT_NE(WhyNotOpened(load).find(name), std::string::npos) << name;
  }
  options.nvme_tcp.namespace_name = "disk";
  EXPECT_NE(WhyNotOpened(load).find("is no namespace"), std::string::npos);
}

TEST(Crc32cTest, IsThatOfTheStandardInOneGoAndInPieces) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283U);  // RFC 3720's check value
  std::vector<uint8_t> data(10'000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7 + i / 256);
  uint32_t crc = kCrc32cBegin;
  for (const uint8_t& byte : data) crc = AddCrc32c(crc, &byte, 1);
  EXPECT_EQ(Crc32c(data.data(), data.size()), FinishCrc32c(crc));
}

// ---- A queue whose other side says what the test wants.

struct NvmeTcpQueueTest : ::testing::Test {
  static constexpr uint16_t kSlots = 2;
  static constexpr uint16_t kRead = 0, kWrite = 1;   // slots
  static constexpr uint32_t kDataBytes = 16 * 1024;  // more than a capsule of these has room for

  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    peer.Reset(fds[1]);
    NvmeTcpConnection connection;
    connection.socket.Reset(fds[0]);
    connection.data_to_target_max = wire::kMaxDataToTargetMin;
    queue = std::make_unique<NvmeTcpQueue>(std::move(connection), kSlots);
    const iovec piece{data.data(), data.size()};
    for (const uint16_t slot : {kRead, kWrite}) {
      queue->Prepare(
          slot,
          {.entry = &entries[slot], .answer = &answers[slot], .data = {&piece, 1}, .to_host = slot == kRead});
      queue->Post(slot);
    }
    queue->Flush();
  }

  void Send(const void* bytes, size_t size_bytes) {
    ASSERT_EQ(write(peer.get(), bytes, size_bytes), static_cast<ssize_t>(size_bytes));
  }
  void SendTransfer(uint8_t type, uint8_t flags, uint16_t cid, uint32_t offset_bytes, uint32_t length_bytes) {
    wire::PduTransfer pdu{};
    const bool data_follows = type == wire::kPduDataToHost;
    pdu.header = {.type = type,
                  .flags = flags,
                  .header_bytes = sizeof pdu,
                  .data_at = data_follows ? uint8_t{sizeof pdu} : uint8_t{0},
                  .pdu_bytes = static_cast<uint32_t>(sizeof pdu) + (data_follows ? length_bytes : 0)};
    pdu.cid = cid;
    pdu.offset_bytes = offset_bytes;
    pdu.length_bytes = length_bytes;
    Send(&pdu, sizeof pdu);
  }
  void SendResponse(uint16_t cid, uint16_t status) {
    wire::PduResponse pdu{};
    pdu.header = {.type = wire::kPduResponse,
                  .flags = 0,
                  .header_bytes = sizeof pdu,
                  .data_at = 0,
                  .pdu_bytes = sizeof pdu};
    pdu.completion.cid = cid;
    pdu.completion.status = static_cast<uint16_t>(status << 1);
    Send(&pdu, sizeof pdu);
  }
  // What the queue says when it has taken all that lies there.
  std::string Reason() {
    for (uint16_t slot = 0; queue->Pop(&slot);) {
    }
    return queue->broken_reason();
  }

  UniqueFd peer;
  std::vector<uint8_t> data = std::vector<uint8_t>(kDataBytes);
  wire::NvmeCommand entries[kSlots] = {};
  NvmeAnswer answers[kSlots];
  std::unique_ptr<NvmeTcpQueue> queue;
};

TEST_F(NvmeTcpQueueTest, AnErrorOfTheTargetEndsTheCommandAlone) {
  SendResponse(kWrite, 0x281);
  uint16_t slot = 0;
  ASSERT_TRUE(queue->Pop(&slot));
  EXPECT_EQ(slot, kWrite);
  EXPECT_EQ(answers[kWrite].code(), 0x281);
  EXPECT_EQ(answers[kRead].status, NvmeAnswer::kNone);
  EXPECT_EQ(Reason(), "");
}

TEST_F(NvmeTcpQueueTest, DataThatWasAskedForIsSentWithinThePdusLimit) {
  SendTransfer(wire::kPduReadyToTransfer, 0, kWrite, 0, kDataBytes);
  EXPECT_EQ(Reason(), "");
  EXPECT_TRUE(queue->HasUnsent());
  queue->Flush();
  std::vector<uint8_t> sent(64 * 1024);
  const ssize_t bytes = read(peer.get(), sent.data(), sent.size());
  constexpr size_t kPdus = kDataBytes / wire::kMaxDataToTargetMin;
  EXPECT_EQ(bytes, static_cast<ssize_t>(kSlots * sizeof(wire::PduCommand) +
                                        kPdus * sizeof(wire::PduTransfer) + kDataBytes));
  SendResponse(kWrite, 0);
  EXPECT_EQ(Reason(), "");
  EXPECT_TRUE(answers[kWrite].good());
}

TEST_F(NvmeTcpQueueTest, SuccessWithoutTheDataBreaksTheQueue) {
  SendResponse(kRead, 0);
  EXPECT_NE(Reason().find("command 0 ends with success, 0 of its 16384"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, AnAnswerThatNobodyWaitsForBreaksTheQueue) {
  SendResponse(kSlots, 0);
  EXPECT_NE(Reason().find("answer to command 2"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, ASecondAnswerBreaksTheQueue) {
  SendResponse(kWrite, 1);
  SendResponse(kWrite, 1);
  EXPECT_NE(Reason().find("answer to command 1"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, DataBeyondTheCommandsBreaksTheQueue) {
  SendTransfer(wire::kPduDataToHost, 0, kRead, 0, kDataBytes + 1);
  EXPECT_NE(Reason().find("16385 bytes of data at 0"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, DataAtAnotherOffsetBreaksTheQueue) {
  SendTransfer(wire::kPduDataToHost, 0, kRead, UINT32_MAX, 2);
  EXPECT_NE(Reason().find("2 bytes of data at 4294967295"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, DataForAWriteBreaksTheQueue) {
  SendTransfer(wire::kPduDataToHost, 0, kWrite, 0, 512);
  EXPECT_NE(Reason().find("data for command 1"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, SuccessBeforeTheLastDataBreaksTheQueue) {
  SendTransfer(wire::kPduDataToHost, wire::kPduLast | wire::kPduSuccess, kRead, 0, 512);
  EXPECT_NE(Reason().find("ends before the last of its data"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, BeingAskedForMoreThanThereIsBreaksTheQueue) {
  SendTransfer(wire::kPduReadyToTransfer, 0, kWrite, 1, UINT32_MAX);
  EXPECT_NE(Reason().find("asked for 4294967295 bytes at 1"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, BeingAskedTwiceAtOnceBreaksTheQueue) {
  SendTransfer(wire::kPduReadyToTransfer, 0, kWrite, 0, 512);
  SendTransfer(wire::kPduReadyToTransfer, 0, kWrite, 512, 512);
  EXPECT_NE(Reason().find("asked twice"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, AHeaderOfAnotherLengthBreaksTheQueue) {
  const wire::PduHeader header{
      .type = wire::kPduResponse, .flags = 0, .header_bytes = 255, .data_at = 0, .pdu_bytes = UINT32_MAX};
  Send(&header, sizeof header);
  EXPECT_NE(Reason().find("header of 255 bytes"), std::string::npos) << Reason();
}

TEST_F(NvmeTcpQueueTest, ATerminationSaysWhy) {
  wire::PduTermination pdu{};
  pdu.header = {.type = wire::kPduTargetTermination,
                .flags = 0,
                .header_bytes = sizeof pdu,
                .data_at = 0,
                .pdu_bytes = sizeof pdu};
  pdu.reason = 2;
  Send(&pdu, sizeof pdu);
  EXPECT_NE(Reason().find("out of sequence"), std::string::npos) << Reason();
}

}  // namespace
}  // namespace cleat::perf::nvme_tcp_test
