// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvmf_target/rdma/rdma_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nvme/rdma/keyed_sgl.h"

namespace cleat::test {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using rdma::SendOp;
using rdma::SendWork;

namespace {

constexpr uint32_t kBlockBytes = 512;

uint64_t AddressIn(const std::vector<uint8_t>& memory, uint64_t offset) {
  return reinterpret_cast<uint64_t>(memory.data()) + offset;
}

template <typename T>
std::vector<uint8_t> BytesOf(const T& value) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&value);
  return {at, at + sizeof(value)};
}

}  // namespace

RdmaHostQueue::RdmaHostQueue(RdmaRig& rig, RdmaMachine& machine, const RdmaQueueOptions& options)
    : rig_(rig),
      machine_(machine),
      options_(options),
      memory_(size_t{options.entries} * kDataBytes),
      capsules_(size_t{options.entries + 8} * kCapsuleBytes),
      answers_memory_(size_t{options.entries + 8} * kAnswerBytes) {
  rdma::Device& device = *machine.device;
  completions_ = std::move(device.MakeCompletionQueue(options.entries * 8 + 64)).value();
  data_registration_ =
      std::move(
          device.Register(
              memory_, {.local_write = true, .peer_may_read = true, .peer_may_write = true, .windows = true}))
          .value();
  capsule_registration_ = std::move(device.Register(capsules_, {})).value();
  answer_registration_ = std::move(device.Register(answers_memory_, {.local_write = true})).value();
  receives_ = std::move(device.MakeReceiveQueue(options.entries + 8)).value();
  for (uint32_t i = 0; i < options.entries + 8; ++i) PostReceive(i);
  for (uint32_t i = 0; options.uses_windows && i < options.entries; ++i)
    windows_.push_back(std::move(device.MakeWindow()).value());
  rdma::ConnectOptions connect;
  connect.from = machine.address;
  connect.to = {options.to, RdmaRig::kPort};
  connect.parts = {&device,
                   completions_.get(),
                   receives_.get(),
                   {.works = options.entries * 4 + 16, .pieces = 2, .inline_bytes = 0, .read_credits = 0}};
  const std::vector<uint8_t> data =
      options.private_data.value_or(BytesOf(nvme::rdma::RequestOf(options.queue_id, options.entries, 0)));
  connect.private_data = data;
  connect.reads_served = options.reads_served;
  connect.timeout_ms = 10'000;
  connection_ = std::move(machine.manager->Connect(connect, *this)).value();
  machine.queues.push_back(this);
}

RdmaHostQueue::~RdmaHostQueue() {
  std::erase(machine_.queues, this);
}

// ---- The connection

void RdmaHostQueue::Established(rdma::Connection& /*connection*/, std::span<const uint8_t> private_data) {
  established_ = true;
  const auto reply = nvme::rdma::ParseReply(private_data);
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  commands_max_ = *reply;
}

void RdmaHostQueue::Ended(rdma::Connection& /*connection*/, const rdma::ConnectionEnd& end) {
  ended_ = end.kind;
  nvme::rdma::ConnectReject reject;
  if (end.private_data.size() < sizeof(reject)) return;
  std::memcpy(&reject, end.private_data.data(), sizeof(reject));
  reject_status_ = reject.status;
}

bool RdmaHostQueue::WaitUntilConnected() {
  EXPECT_TRUE(rig_.Until([&] { return established_ || ended(); }));
  return established_ && !ended();
}

bool RdmaHostQueue::WaitUntilBroken() {
  return rig_.Until([&] { return broken(); });
}

// ---- What comes

void RdmaHostQueue::PostReceive(uint32_t buffer) {
  const uint64_t address = AddressIn(answers_memory_, uint64_t{buffer} * kAnswerBytes);
  const rdma::ReceiveWork work{kReceiveId + buffer,
                               {address, kAnswerBytes, answer_registration_->local_key()}};
  ASSERT_EQ(receives_->Post({&work, 1}), 1U);
}

void RdmaHostQueue::Pump() {
  std::array<rdma::Completion, 16> completions;
  for (;;) {
    const uint32_t count = completions_->Poll(completions);
    for (uint32_t i = 0; i < count; ++i) Came(completions[i]);
    if (count < completions.size()) return;
  }
}

void RdmaHostQueue::Came(const rdma::Completion& completion) {
  if (completion.status != rdma::WorkStatus::kDone) {
    broken_ = true;
    return;
  }
  if (completion.id < kReceiveId || completion.id >= kBindId) return;  // of a capsule or a binding
  const auto buffer = static_cast<uint32_t>(completion.id - kReceiveId);
  CompletionEntry entry;
  ASSERT_EQ(completion.received_bytes, sizeof(entry));
  std::memcpy(&entry, answers_memory_.data() + size_t{buffer} * kAnswerBytes, sizeof(entry));
  if (!deaf_) PostReceive(buffer);
  const auto found = busy_.find(entry.cid);
  ASSERT_TRUE(found != busy_.end()) << "an answer to no command: " << entry.cid;
  EXPECT_EQ(completion.key_was_invalidated ? completion.invalidated_key : 0, found->second);
  busy_.erase(found);
  answers_[entry.cid] = entry;
}

// ---- Commands

void RdmaHostQueue::Post(const SendWork& work) {
  ASSERT_EQ(connection_->queue_pair()->Post({&work, 1}), 1U);
}

uint16_t RdmaHostQueue::next_cid() const {
  for (uint32_t i = 0; i < options_.entries; ++i) {
    const auto cid = static_cast<uint16_t>((last_cid_ + 1 + i) % options_.entries);
    if (!busy_.contains(cid)) return cid;
  }
  CLEAT_CHECK(false);
  return 0;
}

uint32_t RdmaHostQueue::ShowData(uint16_t cid, uint32_t bytes, bool to_host) {
  if (!options_.uses_windows) return data_registration_->remote_key();
  rdma::MemoryWindow& window = *windows_[cid];
  const rdma::WindowBinding binding{.window = &window,
                                    .key = window.NextKey(),
                                    .registration = data_registration_.get(),
                                    .address = AddressIn(memory_, uint64_t{cid} * kDataBytes),
                                    .length_bytes = bytes,
                                    .peer_may_read = !to_host,
                                    .peer_may_write = to_host};
  Post({.id = kBindId, .op = SendOp::kBindWindow, .signaled = false, .binding = &binding});
  return binding.key;
}

uint16_t RdmaHostQueue::Send(SubmissionEntry entry, RdmaData where, uint32_t bytes) {
  const uint16_t cid = next_cid();
  if (where != RdmaData::kInCapsule) {
    const bool is_keyed = where != RdmaData::kNone;
    const uint32_t key = is_keyed ? ShowData(cid, bytes, where == RdmaData::kToHost) : 0;
    return SendKeyed(entry, key, is_keyed ? bytes : 0, is_keyed && options_.uses_windows);
  }
  last_cid_ = cid;
  answers_.erase(cid);
  entry.cid = cid;
  entry.flags = nvme::fabrics::kFlagsSgl;
  entry.data = {.address = 0, .length_bytes = bytes, .reserved = {}, .type = nvme::fabrics::kSglInCapsule};
  std::vector<uint8_t> capsule = BytesOf(entry);
  const auto in_capsule = data(cid).first(bytes);
  capsule.insert(capsule.end(), in_capsule.begin(), in_capsule.end());
  busy_[cid] = 0;
  SendCapsule(capsule);
  return cid;
}

uint16_t RdmaHostQueue::SendKeyed(SubmissionEntry entry, uint32_t key, uint32_t bytes, bool closes) {
  const uint16_t cid = next_cid();
  last_cid_ = cid;
  answers_.erase(cid);
  entry.cid = cid;
  entry.flags = nvme::fabrics::kFlagsSgl;
  entry.data = nvme::rdma::EntryDescriptorOf(
      nvme::rdma::MakeKeyed(AddressIn(memory_, uint64_t{cid} * kDataBytes), bytes, key, closes));
  busy_[cid] = closes ? key : 0;
  SendCapsule(BytesOf(entry));
  return cid;
}

uint16_t RdmaHostQueue::SendStale(SubmissionEntry entry, uint32_t bytes) {
  return SendKeyed(entry, windows_[last_cid_]->key(), bytes, false);
}

void RdmaHostQueue::SendCapsule(std::span<const uint8_t> capsule) {
  const uint32_t place = next_capsule_++ % (options_.entries + 8);
  const size_t offset = size_t{place} * kCapsuleBytes;
  std::ranges::copy(capsule, capsules_.begin() + static_cast<ptrdiff_t>(offset));
  const rdma::LocalPiece piece{AddressIn(capsules_, offset), static_cast<uint32_t>(capsule.size()),
                               capsule_registration_->local_key()};
  Post({.id = 1, .pieces = {&piece, 1}});
}

std::optional<CompletionEntry> RdmaHostQueue::Answer(uint16_t cid) {
  EXPECT_TRUE(rig_.Until([&] { return answers_.contains(cid) || broken(); }));
  const auto found = answers_.find(cid);
  if (found == answers_.end()) return std::nullopt;
  return found->second;
}

uint16_t RdmaHostQueue::SendConnect(const nvme::fabrics::ConnectOptions& connect, uint16_t controller_id,
                                    const nvme::fabrics::HostIdentity& host) {
  const auto data_of = nvme::fabrics::ConnectDataOf(host, RdmaRig::kNqn, controller_id);
  std::ranges::copy(BytesOf(data_of), data(next_cid()).begin());
  return Send(nvme::fabrics::EntryOf(nvme::fabrics::Connect(connect)), RdmaData::kToTarget, sizeof(data_of));
}

uint16_t RdmaHostQueue::BecomeAdmin(uint32_t kato_ms, const nvme::fabrics::HostIdentity& host) {
  CLEAT_CHECK(WaitUntilConnected());
  const auto connected = Answer(SendConnect({.queue_id = 0, .entries = options_.entries, .kato_ms = kato_ms},
                                            nvme::fabrics::kAnyController, host));
  CLEAT_CHECK(connected && connected->status().ok());
  constexpr uint32_t kEnabled = 4U << 20 | 6U << 16 | 1;
  const auto enabled = Do(
      nvme::fabrics::EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kEnabled)));
  CLEAT_CHECK(enabled && enabled->status().ok());
  const auto queues = Do(nvme::fabrics::EntryOf(nvme::SetFeature(nvme::Feature::kQueues, 7U << 16 | 7)));
  CLEAT_CHECK(queues && queues->status().ok());
  return static_cast<uint16_t>(connected->result);
}

uint16_t RdmaHostQueue::SendWrite(uint64_t block, uint32_t blocks, uint8_t fill, RdmaData where) {
  const uint32_t bytes = blocks * kBlockBytes;
  std::ranges::fill(data(next_cid()).first(bytes), fill);
  return Send(nvme::fabrics::EntryOf(nvme::OnBlocks(nvme::Opcode::kWrite, 1, block, blocks, 0)), where,
              bytes);
}

bool RdmaHostQueue::Write(uint64_t block, uint32_t blocks, uint8_t fill, RdmaData where) {
  const auto answer = Answer(SendWrite(block, blocks, fill, where));
  return answer && answer->status().ok();
}

bool RdmaHostQueue::ReadIs(uint64_t block, uint32_t blocks, uint8_t fill) {
  const uint32_t bytes = blocks * kBlockBytes;
  std::ranges::fill(data(next_cid()).first(bytes), static_cast<uint8_t>(~fill));
  const uint16_t cid = Send(nvme::fabrics::EntryOf(nvme::OnBlocks(nvme::Opcode::kRead, 1, block, blocks, 0)),
                            RdmaData::kToHost, bytes);
  const auto answer = Answer(cid);
  return answer && answer->status().ok() &&
         std::ranges::all_of(data(cid).first(bytes), [fill](uint8_t byte) { return byte == fill; });
}

RdmaAssociation::RdmaAssociation(RdmaRig& rig, RdmaMachine& machine, RdmaQueueOptions options,
                                 uint32_t kato_ms, uint8_t host)
    : admin(rig, machine, {.queue_id = 0, .entries = 32, .to = options.to}) {
  controller = admin.BecomeAdmin(kato_ms, RdmaRig::Host(host));
  options.queue_id = 1;
  queue = std::make_unique<RdmaHostQueue>(rig, machine, options);
  CLEAT_CHECK(queue->WaitUntilConnected());
  const auto connected = queue->Answer(
      queue->SendConnect({.queue_id = 1, .entries = options.entries}, controller, RdmaRig::Host(host)));
  CLEAT_CHECK(connected && connected->status().ok());
}

}  // namespace cleat::test
