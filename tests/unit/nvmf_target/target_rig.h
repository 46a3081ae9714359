// SPDX-License-Identifier: Apache-2.0
// The engine's target with a disk in memory, and Cleat's own initiator as its host: over NVMe/TCP and loopback in real time, or over NVMe/RDMA and
// adapters in memory in virtual time. A control reactor and two I/O reactors on the test's own thread, which Turn lets go on in turn.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "block/segments.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvmf/rdma/adapters.h"
#include "nvmf_target/target_service.h"
#include "reactor/sync.h"
#include "tests/support/rdma_fabric/rdma_fabric.h"
#include "tests/unit/modules/test_disk.h"
#include "tests/unit/nvmf_target/rig_threads.h"

namespace cleat::test {

// Keeps what is written; holds requests back while it is told to. Requests of several threads at once are one after the other, and nothing is held back then.
class Storage final : public block::Device {
 public:
  static constexpr uint64_t kPieceBytes = 256 * 1024;  // that it discards or zeroes at a time

  explicit Storage(uint64_t bytes) : Device("disks/storage", GeometryOf(bytes)), content(bytes, 0) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<StorageChannel>(*this));
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    content.resize(size_bytes);
    SetSize(size_bytes);
    co_return Ok{};
  }
  // What waits before the storage goes there.
  void Unqueue() {
    queues = false;
    for (block::Request* const request : std::exchange(queued, {})) Execute(*request);
  }
  void LetGo() {
    holds = false;
    Unqueue();
    std::vector<block::Request*> requests = std::move(held);
    held.clear();
    for (block::Request* const request : requests) Execute(*request);
  }

  std::vector<uint8_t> content;
  bool holds = false;
  std::vector<block::Request*> held;
  // Requests wait before the storage, for its limits or (`without_limits`) for something else.
  bool queues = false;
  bool without_limits = false;
  std::vector<block::Request*> queued;
  uint64_t flushes = 0;
  uint64_t fua_writes = 0;
  std::set<const block::MemoryRegion*> written_from;
  uint64_t longest_discard = 0;
  block::IoStatus fails = block::IoStatus::kOk;

 private:
  class StorageChannel final : public block::Channel, private block::ThrottleControl {
   public:
    explicit StorageChannel(Storage& s) : storage(s) {}
    void Submit(block::Request& request) override {
      if (storage.queues && (!bypasses || storage.without_limits)) {
        storage.queued.push_back(&request);
      } else if (storage.holds) {
        storage.held.push_back(&request);
      } else {
        storage.Execute(request);
      }
    }
    void AbortQueued(const block::Request* only) override {
      std::vector<block::Request*> aborted;
      std::erase_if(storage.queued, [&](block::Request* request) {
        const bool concerns = only == nullptr || only == request;
        if (concerns) aborted.push_back(request);
        return concerns;
      });
      for (block::Request* const request : aborted) request->Complete(block::IoStatus::kAborted);
    }
    block::ThrottleControl* throttle() override { return this; }
    void SetBypass(bool on) override {
      bypasses = on;
      if (!on || storage.without_limits) return;
      for (block::Request* const request : std::exchange(storage.queued, {})) storage.Execute(*request);
    }
    uint64_t DebtUntilNs() const override { return 0; }
    bool HasWaiting() const override { return !storage.queued.empty(); }
    Storage& storage;
    bool bypasses = false;
  };
  static block::Geometry GeometryOf(uint64_t bytes) {
    block::Geometry geometry;
    geometry.size_bytes = bytes;
    geometry.physical_block_bytes = 4096;
    geometry.discard = geometry.write_zeroes = geometry.write_cache = true;
    geometry.discard_granularity_bytes = 512;
    geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = kPieceBytes;
    return geometry;
  }
  void Execute(block::Request& request) { request.Complete(StatusOf(request)); }
  block::IoStatus StatusOf(const block::Request& request) {
    const MutexLock lock(executing_);
    uint8_t* const at = content.data() + request.offset_bytes;
    if (fails != block::IoStatus::kOk) return fails;
    switch (request.op) {
      case block::Op::kRead:
        block::Scatter(at, request.length_bytes, request.segments, 0);
        break;
      case block::Op::kWrite:
        block::Gather(request.segments, 0, at, request.length_bytes);
        written_from.insert(request.segments[0].region);
        fua_writes += request.fua ? 1 : 0;
        break;
      case block::Op::kFlush:
        ++flushes;
        break;
      case block::Op::kDiscard:
      case block::Op::kWriteZeroes:
        longest_discard = std::max(longest_discard, request.length_bytes);
        std::memset(at, 0, request.length_bytes);
        break;
      case block::Op::kCompareAndWrite:
        return block::IoStatus::kUnsupported;
    }
    return block::IoStatus::kOk;
  }

  Mutex executing_;
};

// In memory, for all engines of a test. Can't store, or load, while it is told so; keeps whoever stores waiting while it holds.
class KeptReservations final : public nvmf_target::ReservationStore {
 public:
  Task<Result<nvme::target::Reservation>> Load(nvme::fabrics::Uuid namespace_uuid) override {
    if (fails) co_return Error(ErrorCode::kDataLoss, "it is damaged");
    co_return kept[namespace_uuid];
  }
  Task<Status> Store(nvme::fabrics::Uuid namespace_uuid, nvme::target::Reservation reservation) override {
    ++storing;
    while (holds) (void)co_await turn.Wait();
    --storing;
    if (stores_nothing) co_return Error(ErrorCode::kResourceExhausted, "there is no space");
    kept[namespace_uuid] = std::move(reservation);
    if (says_nothing) co_return Error(ErrorCode::kUnavailable, "its folder is not durable");
    co_return Ok{};
  }
  explicit KeptReservations(Reactor& control) : turn(control) {}
  void LetGo() {
    holds = false;
    turn.Pulse();
  }
  std::map<nvme::fabrics::Uuid, nvme::target::Reservation> kept;
  bool fails = false;           // to load
  bool stores_nothing = false;  // with an error
  bool says_nothing = false;    // with an error, though it has stored
  bool holds = false;
  uint32_t storing = 0;
  Event turn;
};

// Adapters in memory, in the place of the machine's.
inline nvmf::RdmaLibrary LibraryOf(RdmaFabric& fabric) {
  nvmf::RdmaLibrary library;
  library.open_manager = [&fabric] { return fabric.OpenConnectionManager(); };
  library.device_name_at = [&fabric](const std::string& address) { return fabric.DeviceNameAt(address); };
  library.open_device = [&fabric](const std::string& address) { return fabric.OpenDevice(address); };
  return library;
}

class TargetRig {
 public:
  static constexpr uint64_t kBytes = uint64_t{8} << 20;
  static constexpr const char* kNqn = "nqn.2024-01.com.example:export";
  static constexpr nvme::fabrics::Uuid kUuid = {0x4c, 0x0f, 0x7d, 0x1e, 0x8a, 0x55, 0x4d, 0x0b,
                                                0x9a, 0x53, 0x0b, 0x6b, 0x0f, 0x4d, 0x2f, 0x11};

  explicit TargetRig(const nvmf_target::PortLimits& limits = {}, uint32_t listeners = 1,
                     const nvmf_target::StreamTuning& tuning = {}, RdmaFabric* fabric = nullptr,
                     uint8_t dscp = 0)
      : clock(fabric != nullptr ? static_cast<const Clock&>(virtual_time) : real_time) {
    for (auto& reactor : io) reactor = MakeReactor();
    adapters = std::make_unique<nvmf::RdmaAdapters>(
        *control, fabric != nullptr ? UseRdma(*fabric, listeners) : nvmf::RdmaLibrary());
    ports = std::make_unique<modules::RdmaPorts>(*adapters, /*pinning_threads=*/0);
    service = std::make_unique<nvmf_target::TargetService>(*adapters, nullptr, tuning, limits, &reservations);
    auto made = std::make_unique<Storage>(kBytes);
    storage = made.get();
    backing = block::Pipeline::Make(std::move(made), block::AccessMode::kReadWrite).value();
    for (size_t i = 0; i < io.size(); ++i) channels[i] = std::move(backing->OpenChannel(*io[i])).value();
    nvmf_target::SubsystemParts parts;
    parts.name = "controllers/e";
    parts.config.nqn = kNqn;
    parts.config.serial = "S1";
    parts.config.dscp = dscp;
    parts.config.hosts = {nvme::target::HostAccess::Named(HostNqn())};
    for (uint32_t i = 0; i < listeners; ++i) {
      const std::string address = fabric != nullptr ? RdmaAddress(i) : FreeAddress();
      parts.config.addresses.push_back(nvme::fabrics::ParseAddressOfAnyTransport(address).value());
    }
    addresses = parts.config.addresses;
    for (const auto& reactor : io) parts.reactors.push_back(reactor.get());
    CLEAT_CHECK(service->AddSubsystem(std::move(parts)).ok());
    CLEAT_CHECK(AddNamespace(1).ok());
    const Status served = service->Serve(kNqn);
    CLEAT_CHECK(served.ok());
  }
  ~TargetRig() {
    if (disk != nullptr) CloseHost();
    if (!threads.running()) storage->LetGo();
    Await<bool>([](TargetRig& rig) -> Task<bool> {
      (void)co_await rig.service->Withdraw(kNqn);
      co_await rig.service->RemoveNamespace(kNqn, 1);
      co_await rig.service->RemoveNamespace(kNqn, 2);
      rig.service->RemoveSubsystem(kNqn);
      co_await rig.service->Close();
      co_await rig.ports->Close();
      co_return true;
    });
    threads.Stop();
    service.reset();
    ports.reset();
    adapters.reset();
    for (auto& channel : channels) channel.reset();
    Await<bool>([](TargetRig& rig) -> Task<bool> {
      (void)co_await rig.backing->Close();
      co_return true;
    });
    for (int turn = 0; turn < 100; ++turn) Turn();
  }
  TargetRig(const TargetRig&) = delete;
  TargetRig& operator=(const TargetRig&) = delete;

  static nvme::fabrics::HostIdentity Host() { return nvme::fabrics::HostIdentityOfUuid({7, 7, 7}); }
  static std::string HostNqn() { return Host().nqn; }
  // Another host to reservations, which know hosts by their identifiers alone, and let in by the same name.
  static nvme::fabrics::HostIdentity OtherHost() {
    nvme::fabrics::HostIdentity other = Host();
    other.id = {8, 8, 8};
    return other;
  }

  void Turn() {
    if (!threads.running() || threads.HaveTurned()) {
      virtual_time.AdvanceBy(turn_ns);
    } else {
      std::this_thread::yield();
    }
    control->RunOnce();
    if (threads.running()) return;
    for (auto& reactor : io) reactor->RunOnce();
  }
  // With a fabric. From now on the I/O reactors run on threads of their own, until all is closed.
  void RunIoReactors() { threads.Run(io); }
  void Until(const std::function<bool()>& done) {
    while (!done()) Turn();
  }

  template <typename T>
  T Await(std::function<Task<T>(TargetRig&)> make) {
    std::optional<T> result;
    control->PostCall([&] { Spawn(Keep(make(*this), result)); });
    Until([&] { return result.has_value(); });
    return std::move(*result);
  }
  // Begins a task; `done` is set when it is over.
  void Begin(std::function<Task<void>(TargetRig&)> make, bool& done) {
    control->PostCall(
        [this, make = std::move(make), &done]() mutable { Spawn(Note(std::move(make), *this, done)); });
  }

  Status SetHosts(std::vector<nvme::target::HostAccess> hosts) {
    return Await<Status>(
        [&hosts](TargetRig& r) -> Task<Status> { co_return r.service->SetHosts(kNqn, std::move(hosts)); });
  }
  Status AddNamespace(uint32_t nsid) {
    return Await<Status>([nsid](TargetRig& rig) -> Task<Status> {
      nvmf_target::NamespaceParts parts;
      parts.shape = rig.ShapeOf(nsid);
      parts.channel_on = [&rig](Reactor& reactor) {
        return nvmf_target::NamespaceChannel{rig.channels[&reactor == rig.io[0].get() ? 0 : 1].get()};
      };
      co_return co_await rig.service->AddNamespace(kNqn, nsid, std::move(parts));
    });
  }
  nvme::target::NamespaceShape ShapeOf(uint32_t nsid) const {
    nvme::fabrics::NamespaceIds ids;
    ids.uuid = kUuid;
    (*ids.uuid)[15] = static_cast<uint8_t>(kUuid[15] + nsid - 1);
    return nvme::target::ShapeOf(backing->geometry(), false, ids);
  }

  // ---- The host
  Result<std::unique_ptr<block::Device>> TryOpen(bool header_digest = false, bool data_digest = false) {
    auto subsystem = std::make_shared<modules::NvmfSubsystem>();
    subsystem->name = "subsystems/s";
    subsystem->nqn = kNqn;
    for (const auto& address : addresses) subsystem->addresses.push_back({address});
    subsystem->host = Host();
    if (adjust_host) adjust_host(*subsystem);
    subsystem->header_digest = header_digest;
    subsystem->data_digest = data_digest;
    subsystem->chap = host_chap;
    subsystem->psk = psk;
    return Await<Result<std::unique_ptr<block::Device>>>(
        [this, subsystem](TargetRig&) -> Task<Result<std::unique_ptr<block::Device>>> {
          modules::NvmfOptions options(block::DiskShape("disks/n", kBytes, 512, 4096), subsystem, kUuid,
                                       block::AccessMode::kReadWrite);
          options.arithmetic = &host_logins;
          options.rdma = ports.get();
          options.reservation_family = reservation_family;
          options.events.broken = [this](const Error& why) { broken.push_back(why.message); };
          options.events.resized = [this](uint64_t size_bytes) { resized.push_back(size_bytes); };
          co_return co_await modules::OpenNvmf(std::move(options));
        });
  }
  void OpenHost(bool header_digest = false, bool data_digest = false) {
    auto opened = TryOpen(header_digest, data_digest);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device = static_cast<modules::NvmfDevice*>(opened->get());
    host = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
    disk = std::make_unique<TestDisk>(*host, *io[0], [this] { Turn(); });
  }
  void CloseHost() {
    disk.reset();
    Await<bool>([](TargetRig& rig) -> Task<bool> {
      (void)co_await rig.host->Close();
      co_return true;
    });
    host.reset();
  }

  // With a fabric: "target0", whose address is 10.0.0.1, and "host0" are the two adapters of the first path.
  static std::string RdmaAddress(uint32_t path) {
    return "rdma://10.0.0." + std::to_string(path + 1) + ":4420";
  }
  void AddAdapter(RdmaFabric& fabric, const std::string& end, uint32_t path) {
    fabric.AddAdapter(end + std::to_string(path),
                      {(end == "host" ? "10.0.1." : "10.0.0.") + std::to_string(path + 1)});
  }
  // A port that nobody listens on.
  static std::string FreeAddress();
  // A connection of a host that is none of ours; whatever it sends is its business.
  UniqueFd Connect(size_t address = 0) const;

  const MonotonicClock real_time;
  RigClock virtual_time;
  uint64_t turn_ns = 50 * kNsPerUs;  // how much of it passes in a turn
  const Clock& clock;                // one of the two
  std::unique_ptr<Reactor> control = MakeReactor();
  std::array<std::unique_ptr<Reactor>, 2> io;
  RigThreads threads;
  std::unique_ptr<nvmf::RdmaAdapters> adapters;  // of both ends
  std::unique_ptr<modules::RdmaPorts> ports;     // the host's
  KeptReservations reservations{*control};
  std::unique_ptr<nvmf_target::TargetService> service;
  std::vector<nvme::fabrics::TransportAddress> addresses;
  // What else the host's subsystem has, before it is opened.
  std::function<void(modules::NvmfSubsystem&)> adjust_host;
  Storage* storage = nullptr;  // the backing pipeline's
  std::unique_ptr<block::Pipeline> backing;
  std::array<std::unique_ptr<block::PipelineChannel>, 2> channels;
  nvmf::LoginLine host_logins{1};
  std::shared_ptr<const nvme::auth::ChapSecrets> host_chap;  // nullptr: it has none
  std::shared_ptr<const nvme::tls::Psk> psk;                 // the host's
  uint64_t reservation_family = 0;        // of disks that are opened; 0: they take part in none
  modules::NvmfDevice* device = nullptr;  // likewise
  std::unique_ptr<block::Pipeline> host;
  std::unique_ptr<TestDisk> disk;
  std::vector<std::string> broken;
  std::vector<uint64_t> resized;

 private:
  nvmf::RdmaLibrary UseRdma(RdmaFabric& fabric, uint32_t paths) {
    for (uint32_t path = 0; path < paths; ++path) {
      AddAdapter(fabric, "target", path);
      AddAdapter(fabric, "host", path);
    }
    nvmf::RdmaLibrary library = LibraryOf(fabric);
    library.local_address_to = [](const nvme::fabrics::TransportAddress& to) -> Result<std::string> {
      return "10.0.1." + std::to_string(to.address[3]);
    };
    return library;
  }
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }
  // What `make` has captured lives as long as the task.
  static Task<void> Note(std::function<Task<void>(TargetRig&)> make, TargetRig& rig, bool& done) {
    co_await make(rig);
    done = true;
  }
  std::unique_ptr<Reactor> MakeReactor() {
    Reactor::Options options;
    return std::move(Reactor::Make(clock, options)).value();
  }
};

}  // namespace cleat::test
