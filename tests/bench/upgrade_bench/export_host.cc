// SPDX-License-Identifier: Apache-2.0
#include "export_host.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace cleat::bench {
namespace {

constexpr uint64_t kAnswersToSee = 64;
constexpr uint64_t kTimeoutNs = 60 * kNsPerSecond;
constexpr double kNsPerMsAsDouble = 1e6;

}  // namespace

Result<std::unique_ptr<ExportHost>> ExportHost::Start(const Options& options) {
  std::unique_ptr<ExportHost> host(new ExportHost(options));
  CLEAT_TRY(host->Open());
  host->thread_ = std::thread([self = host.get()] { self->Run(); });
  return host;
}

ExportHost::~ExportHost() {
  (void)Stop();
}

Status ExportHost::Open() {
  perf::NvmeTcpOptions options;
  options.address = options_.address;
  options.subsystem_nqn = options_.nqn;
  options.host_nqn = options_.host_nqn;
  options.depth = options_.depth;
  CLEAT_ASSIGN(controller_, perf::NvmeTcpController::Open(options));
  CLEAT_ASSIGN(namespace_, controller_->FindNamespace());
  CLEAT_TRY(controller_->ReserveQueues(1));
  CLEAT_ASSIGN(queue_, controller_->OpenQueue(1));
  slots_.resize(options_.depth);
  for (uint16_t slot = 0; slot < options_.depth; ++slot) {
    const uint32_t blocks = kBlockBytes / namespace_.block_bytes;
    slots_[slot].command.nsid = namespace_.nsid;
    slots_[slot].command.cdw10 = slot * blocks;
    slots_[slot].command.cdw12 = blocks - 1;
    Prepare(slot);
  }
  return controller_->StartKeepAlive();
}

void ExportHost::Prepare(uint16_t number) {
  Slot& slot = slots_[number];
  slot.command.opcode = slot.reads ? perf::wire::kNvmeRead : perf::wire::kNvmeWrite;
  if (!slot.reads) ++slot.number;
  std::ranges::fill(slot.block, slot.reads ? 0 : slot.number);
  const iovec data{slot.block.data(), kBlockBytes};
  queue_->Prepare(
      number, {.entry = &slot.command, .answer = &slot.answer, .data = {&data, 1}, .to_host = slot.reads});
}

void ExportHost::Fault(Error error) {
  const MutexLock lock(mutex_);
  if (fault_.ok()) fault_ = std::move(error);
}

Status ExportHost::Take(uint16_t number) {
  Slot& slot = slots_[number];
  if (!slot.answer.good())
    return Error(ErrorCode::kInternal,
                 fmt::format("{}: a request ended with status {:#x}", options_.nqn, slot.answer.status));
  const auto wrong = [&slot](uint64_t word) { return word != slot.number; };
  if (slot.reads && std::ranges::any_of(slot.block, wrong))
    return Error(ErrorCode::kDataLoss,
                 fmt::format("{}: block {} is not as it was written", options_.nqn, number));
  slot.reads = !slot.reads;
  return Ok{};
}

void ExportHost::Run() {
  for (uint16_t slot = 0; slot < options_.depth; ++slot) queue_->Post(slot);
  uint64_t last_ns = clock_.NowNs();
  while (!ending_.load()) {
    queue_->Flush();
    uint64_t answers = 0;
    for (uint16_t slot = 0; queue_->Pop(&slot); ++answers) {
      if (Status taken = Take(slot); !taken.ok()) return Fault(std::move(taken).error());
      Prepare(slot);
      queue_->Post(slot);
    }
    if (queue_->broken())
      return Fault(Error(ErrorCode::kUnavailable, fmt::format("{}: the connection has ended: {}",
                                                              options_.nqn, queue_->broken_reason())));
    const uint64_t now_ns = clock_.NowNs();
    longest_ns_.store(std::max(longest_ns_.load(), now_ns - last_ns));
    if (answers > 0) last_ns = now_ns;
    answered_ += answers;
    if (options_.pause_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(options_.pause_ns));
  }
}

Result<double> ExportHost::TakeGap(const std::atomic<bool>& stop) {
  const uint64_t goal = answered_.load() + kAnswersToSee;
  const uint64_t end_ns = clock_.NowNs() + kTimeoutNs;
  while (answered_.load() < goal) {
    {
      const MutexLock lock(mutex_);
      CLEAT_TRY(fault_);
    }
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (clock_.NowNs() > end_ns)
      return Error(ErrorCode::kDeadlineExceeded, options_.nqn + ": nothing is answered any more");
    poll(nullptr, 0, 1);
  }
  return static_cast<double>(longest_ns_.load()) / kNsPerMsAsDouble;
}

Status ExportHost::Stop() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  queue_.reset();
  Status stopped = controller_ == nullptr ? Status(Ok{}) : controller_->Stop();
  controller_.reset();
  const MutexLock lock(mutex_);
  return fault_.ok() ? stopped : fault_;
}

}  // namespace cleat::bench
