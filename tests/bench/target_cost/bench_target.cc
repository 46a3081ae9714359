// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/target_cost/bench_target.h"

#include <cstdio>
#include <cstdlib>

#include "modules/null/null.h"
#include "nvme/fabrics/commands.h"

namespace cleat::bench {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;

namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 30;
constexpr uint32_t kBlockBytes = 512;
constexpr int kTurnsMax = 1'000'000;

std::unique_ptr<Reactor> MakeReactor(const Clock& clock, uint32_t index) {
  Reactor::Options options;
  options.index = index;
  return Reactor::Make(clock, options).value();
}

}  // namespace

void Fail(const std::string& why) {
  std::fprintf(stderr, "target_cost: %s\n", why.c_str());
  std::exit(2);
}

SubmissionEntry ReadEntry(uint32_t number) {
  auto entry = nvme::fabrics::EntryOf(nvme::OnBlocks(
      nvme::Opcode::kRead, 1, uint64_t{number} * kReadBytes / kBlockBytes, kReadBytes / kBlockBytes, 0));
  entry.cid = static_cast<uint16_t>(number);
  return entry;
}

uint64_t BenchClock::NowNs() const {
  ++readings_;
  return now_ns_;
}

// ---- The target

BenchTarget::BenchTarget(const std::string& address, nvmf::RdmaLibrary library)
    : control_(MakeReactor(clock_, 0)), io_(MakeReactor(clock_, 1)) {
  counters_ = observe::EngineCounters::Make("bench", 1, {control_.get(), io_.get()}).value();
  adapters_ = std::make_unique<nvmf::RdmaAdapters>(*control_, std::move(library));
  service_ = std::make_unique<nvmf_target::TargetService>(*adapters_, nullptr);
  AddSubsystem(address);
  Await(Open());
}

BenchTarget::~BenchTarget() {
  Await(Close());
}

void BenchTarget::AddSubsystem(const std::string& address) {
  nvmf_target::SubsystemParts parts;
  parts.name = "cost";
  parts.config.nqn = kNqn;
  parts.config.serial = "COST";
  parts.config.hosts.push_back(nvme::target::HostAccess::Named(Host().nqn));
  parts.config.addresses.push_back(nvme::fabrics::ParseAddressOfAnyTransport(address).value());
  parts.reactors.push_back(io_.get());
  if (!service_->AddSubsystem(std::move(parts)).ok()) Fail("no subsystem");
}

Task<bool> BenchTarget::Open() {
  modules::NullOptions options(block::DiskShape{"disks/null", kDiskBytes, kBlockBytes, kBlockBytes});
  options.zero_fill = false;  // the memory traffic of zeroes is not ours to measure
  auto open = modules::OpenNull(std::move(options));
  auto device = co_await std::move(open);
  pipeline_ = block::Pipeline::Make(std::move(device).value(), block::AccessMode::kReadWrite).value();
  channel_ = pipeline_->OpenChannel(*io_).value();
  disk_counters_ = counters_->AddDisk("controllers/cost", "disks/null", 0, *io_, clock_.NowNs());
  nvmf_target::NamespaceParts space;
  nvme::fabrics::NamespaceIds ids;
  ids.uuid = nvme::fabrics::Uuid{1, 2, 3};
  space.shape = nvme::target::ShapeOf(pipeline_->geometry(), false, ids);
  space.channel_on = [this](Reactor& reactor) {
    nvmf_target::NamespaceChannel channel;
    if (&reactor == io_.get()) channel = {channel_.get(), disk_counters_.get(), counters_->On(reactor)};
    return channel;
  };
  auto add = service_->AddNamespace(kNqn, 1, std::move(space));
  const Status added = co_await std::move(add);
  if (!added.ok()) Fail(added.error().message);
  const Status serves = service_->Serve(kNqn);
  if (!serves.ok()) Fail(serves.error().message);
  co_return true;
}

Task<bool> BenchTarget::Close() {
  (void)co_await service_->Withdraw(kNqn);
  co_await service_->RemoveNamespace(kNqn, 1);
  service_->RemoveSubsystem(kNqn);
  co_await service_->Close();
  service_.reset();
  adapters_.reset();
  channel_.reset();
  disk_counters_.reset();
  (void)co_await pipeline_->Close();
  co_return true;
}

void BenchTarget::Until(const std::function<bool()>& done) {
  constexpr uint64_t kUncountedTurnNs = 10 * kNsPerUs;
  for (int turn = 0; !done(); ++turn) {
    if (turn == kTurnsMax) Fail("something does not come to an end");
    clock_.AdvanceBy(kUncountedTurnNs);
    control_->RunOnce();
    io_->RunOnce();
  }
}

__attribute__((noinline)) void BenchTarget::CountedTurn() {
  clock_.AdvanceBy(kTurnNs);
  if (io_->RunOnce()) ++busy_turns_;  // after the call, so that it is none by a jump
}

// ---- The host

void BenchHost::Connect(BenchTarget& target, bool flow_control) {
  constexpr uint32_t kAdminEntries = 32;
  constexpr uint32_t kKatoMs = 120'000;
  constexpr uint32_t kEnabled = 4U << 20 | 6U << 16 | 1;
  const auto bytes_of = [](const nvme::fabrics::ConnectData& data) {
    return std::span(reinterpret_cast<const uint8_t*>(&data), sizeof(data));
  };
  const auto host = BenchTarget::Host();
  Open(target, kAdmin);
  const auto of_admin = nvme::fabrics::ConnectDataOf(host, kNqn, nvme::fabrics::kAnyController);
  const auto connected = Do(target, kAdmin,
                            nvme::fabrics::EntryOf(nvme::fabrics::Connect(
                                {.queue_id = 0, .entries = kAdminEntries, .kato_ms = kKatoMs})),
                            bytes_of(of_admin));
  Do(target, kAdmin,
     nvme::fabrics::EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kEnabled)),
     {});
  Do(target, kAdmin, nvme::fabrics::EntryOf(nvme::SetFeature(nvme::Feature::kQueues, 7U << 16 | 7)), {});
  Open(target, kIo);
  const auto of_io = nvme::fabrics::ConnectDataOf(host, kNqn, static_cast<uint16_t>(connected.result));
  Do(target, kIo,
     nvme::fabrics::EntryOf(
         nvme::fabrics::Connect({.queue_id = 1, .entries = kEntries, .flow_control = flow_control})),
     bytes_of(of_io));
  // The queue is on its way to its reactor.
  int turns = 0;
  target.Until([&turns] { return ++turns > 100; });
  Begin();
}

}  // namespace cleat::bench
