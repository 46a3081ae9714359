// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_hostile/witness.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

namespace cleat::perf {
namespace {

constexpr uint64_t kLookNs = 50 * kNsPerMs;  // how often it looks whether it has to stop, where nothing comes

NvmeTcpOptions Alone(NvmeTcpOptions options) {
  options.queues = 1;
  options.depth = NvmeWitness::kLanes;
  return options;
}

}  // namespace

NvmeWitness::NvmeWitness(NvmeTcpOptions target, uint64_t seed)
    : target_(Alone(std::move(target))), random_(seed) {}

Status NvmeWitness::Begin() {
  CLEAT_TRY(Connect());
  CLEAT_ASSIGN(disk_, controller_->FindNamespace());
  const uint32_t stamp_bytes = std::max(kStampBytesMin, disk_.block_bytes);
  const uint64_t grain_bytes = uint64_t{kLanes} * kRequestBlocksMax * stamp_bytes;
  const uint64_t bytes =
      std::min(kBytesMax, disk_.blocks * disk_.block_bytes / 4) / grain_bytes * grain_bytes;
  if (bytes == 0 || disk_.write_protected) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format(
            "{}: namespace {} has {} blocks{}: one that may be written to is wanted, of {} bytes at least",
            target_.address, disk_.nsid, disk_.blocks, disk_.write_protected ? " and is write protected" : "",
            4 * grain_bytes));
  }
  // Another identifier in every run: what an earlier one has left is not mistaken for this one's.
  stamps_.emplace(bytes, stamp_bytes, Random(clock_.NowNs()).Next(), /*initially_zero=*/false);
  for (Lane& lane : lanes_) lane.data.resize(uint64_t{kRequestBlocksMax} * stamp_bytes);
  return Ok{};
}

Status NvmeWitness::Connect() {
  queue_.reset();
  controller_.reset();
  CLEAT_ASSIGN(controller_, NvmeTcpController::Open(target_));
  CLEAT_TRY(controller_->ReserveQueues(1));
  CLEAT_ASSIGN(queue_, controller_->OpenQueue(1));
  return controller_->StartKeepAlive();
}

void NvmeWitness::Run(const std::atomic<bool>& stop) {
  if (Status served = Serve(stop); !served) report_.ended = served.error().message;
}

Status NvmeWitness::Serve(const std::atomic<bool>& stop) {
  for (uint16_t lane = 0; lane < kLanes; ++lane) Send(lane, clock_.NowNs());
  for (size_t in_flight = kLanes; in_flight > 0;) {
    queue_->Flush();
    for (uint16_t lane = 0; queue_->Pop(&lane);) {
      const uint64_t now_ns = clock_.NowNs();
      Take(lane, now_ns);
      if (stop.load(std::memory_order_relaxed)) {
        --in_flight;
      } else {
        Send(lane, now_ns);
      }
    }
    if (queue_->broken()) return Error(ErrorCode::kUnavailable, queue_->broken_reason());
    if (in_flight == 0) break;
    queue_->Flush();
    const short events = queue_->HasUnsent() ? POLLIN | POLLOUT : POLLIN;
    Status ready = WaitForSocket(queue_->socket(), events, Deadline(kLookNs));
    if (!ready && ready.error().code != ErrorCode::kDeadlineExceeded) return ready;
    CLEAT_TRY(CheckPatience(clock_.NowNs()));
  }
  return Ok{};
}

Status NvmeWitness::CheckPatience(uint64_t now_ns) const {
  for (const Lane& lane : lanes_) {
    if (lane.in_flight && now_ns > lane.sent_ns && now_ns - lane.sent_ns > target_.timeout_ns) {
      return Error(ErrorCode::kDeadlineExceeded,
                   fmt::format("a {} at {} was not answered in {:.1f} s", lane.writes ? "write" : "read",
                               lane.offset_bytes, static_cast<double>(target_.timeout_ns) / kNsPerSecond));
    }
  }
  return Ok{};
}

// Another request of the lane, on blocks that no other lane has.
void NvmeWitness::Send(uint16_t number, uint64_t now_ns) {
  Lane& lane = lanes_[number];
  const uint32_t stamp_bytes = stamps_->block_bytes();
  const uint64_t lane_blocks = stamps_->disk_bytes() / stamp_bytes / kLanes;
  const uint64_t most = std::clamp<uint64_t>(facts().transfer_bytes_max / stamp_bytes, 1, kRequestBlocksMax);
  const uint64_t blocks = random_.Between(1, most);
  lane.offset_bytes = (number * lane_blocks + random_.Below(lane_blocks - blocks + 1)) * stamp_bytes;
  lane.length_bytes = blocks * stamp_bytes;
  lane.writes = random_.Chance(1, 2);
  for (uint64_t at = 0; at < lane.length_bytes; at += stamp_bytes)
    lane.writes = lane.writes || !stamps_->begun(lane.offset_bytes + at);
  const std::span<uint8_t> data = std::span(lane.data).first(lane.length_bytes);
  if (lane.writes) stamps_->BeginWrite(lane.offset_bytes, data);
  const uint64_t block = first_block() + lane.offset_bytes / disk_.block_bytes;
  lane.entry = {};
  lane.entry.opcode = lane.writes ? wire::kNvmeWrite : wire::kNvmeRead;
  lane.entry.nsid = disk_.nsid;
  lane.entry.cdw10 = static_cast<uint32_t>(block);
  lane.entry.cdw11 = static_cast<uint32_t>(block >> 32);
  lane.entry.cdw12 = static_cast<uint32_t>(lane.length_bytes / disk_.block_bytes - 1);
  const iovec piece{data.data(), data.size()};
  queue_->Prepare(
      number, {.entry = &lane.entry, .answer = &lane.answer, .data = {&piece, 1}, .to_host = !lane.writes});
  queue_->Post(number);
  lane.in_flight = true;
  lane.sent_ns = now_ns;
}

void NvmeWitness::Take(uint16_t number, uint64_t now_ns) {
  Lane& lane = lanes_[number];
  lane.in_flight = false;
  ++report_.requests;
  report_.latency.Record(now_ns - lane.sent_ns);
  if (last_answer_ns_ != 0)
    report_.longest_gap_ns = std::max(report_.longest_gap_ns, now_ns - last_answer_ns_);
  last_answer_ns_ = now_ns;
  if (!lane.answer.good()) {
    NoteError(lane.answer, lane.writes ? "write" : "read", lane.offset_bytes);
  } else if (lane.writes) {
    stamps_->Acknowledge(lane.offset_bytes, lane.length_bytes);
  } else {
    Check(lane.offset_bytes, std::span(lane.data).first(lane.length_bytes));
  }
}

void NvmeWitness::NoteError(const NvmeAnswer& answer, const char* what, uint64_t offset_bytes) {
  ++report_.errors;
  if (report_.first_error.empty())
    report_.first_error =
        fmt::format("a {} at {} failed with status {:#x}", what, offset_bytes, answer.code());
}

void NvmeWitness::Check(uint64_t offset_bytes, std::span<const uint8_t> data) {
  report_.verified_blocks += data.size() / stamps_->block_bytes();
  const BlockFinding finding = stamps_->Check(offset_bytes, data);
  if (finding.ok()) return;
  ++report_.faults;
  if (report_.first_fault.empty()) report_.first_fault = finding.ToString();
}

void NvmeWitness::Recheck() {
  if (Status read = ReadAll(); !read && report_.ended.empty())
    report_.ended = "a host that came afterwards: " + read.error().message;
}

Status NvmeWitness::ReadAll() {
  CLEAT_TRY(Connect());
  const uint32_t stamp_bytes = stamps_->block_bytes();
  std::vector<uint8_t> data(stamp_bytes);
  for (uint64_t at = 0; at < stamps_->disk_bytes(); at += stamp_bytes) {
    if (!stamps_->begun(at)) continue;
    const uint64_t block = first_block() + at / disk_.block_bytes;
    wire::NvmeCommand command{};
    command.opcode = wire::kNvmeRead;
    command.nsid = disk_.nsid;
    command.cdw10 = static_cast<uint32_t>(block);
    command.cdw11 = static_cast<uint32_t>(block >> 32);
    command.cdw12 = stamp_bytes / disk_.block_bytes - 1;
    CLEAT_ASSIGN(const NvmeAnswer answer,
                 queue_->Execute(command, data, /*to_host=*/true, Deadline(target_.timeout_ns)));
    if (answer.good()) {
      Check(at, data);
    } else {
      NoteError(answer, "read", at);
    }
  }
  return controller_->Stop();
}

}  // namespace cleat::perf
