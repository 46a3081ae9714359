// SPDX-License-Identifier: Apache-2.0
#include "control_plane.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench_host.h"
#include "pool/layout.h"
#include "ready_watch.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 30;
constexpr uint64_t kImageBytes = uint64_t{64} << 20;
constexpr char kCluster[] = "clusters/ceph";
constexpr char kPool[] = "pools/bench";
constexpr int kLookMs = 2;
constexpr uint64_t kStatusTimeoutNs = 120 * kNsPerSecond;
constexpr uint64_t kEraseTimeoutNs = 300 * kNsPerSecond;
constexpr int kEraseLookMs = 50;
constexpr uint32_t kCreateInFlight = 32;
constexpr std::chrono::seconds kCallTimeout{60};

Error Failed(const std::string& what, const grpc::Status& status) {
  return {ErrorCode::kInternal, fmt::format("{}: {}", what, status.error_message())};
}
Status Checked(const std::string& what, const grpc::Status& status) {
  if (!status.ok()) return Failed(what, status);
  return Ok{};
}

double Microseconds(uint64_t from_ns, uint64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kNsPerUs);
}
double Seconds(uint64_t from_ns, uint64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kNsPerSecond);
}

std::string DiskId(const HostShape& shape, uint32_t index) {
  return fmt::format("{}t{}", ControllerId(index / shape.targets), index % shape.targets);
}

v1::AttachDiskRequest AttachRequest(const HostShape& shape, uint32_t index) {
  v1::AttachDiskRequest request;
  request.set_parent("controllers/" + ControllerId(index / shape.targets));
  request.mutable_attachment()->mutable_spec()->set_disk("disks/" + DiskId(shape, index));
  if (shape.type == v1::CONTROLLER_TYPE_SCSI)
    request.mutable_attachment()->mutable_spec()->set_target(index % shape.targets);
  return request;
}

void SetInPool(v1::DiskSpec& spec) {
  spec.set_size_bytes(ControlPlane::kExtentBytes);
  spec.mutable_pool()->set_pool(kPool);
}

void LimitTime(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
}

}  // namespace

std::string ControllerId(uint32_t controller) {
  return fmt::format("c{}", controller);
}

std::string ExportNqn(uint32_t controller) {
  return "nqn.2024-01.com.example:" + ControllerId(controller);
}

ControlPlane::ControlPlane(const std::string& address, const std::atomic<bool>& stop) : stop_(stop) {
  grpc::ChannelArguments arguments;
  constexpr int kReconnectMs = 20;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // this client's own connection
  stub_ =
      v1::Cleat::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

Status ControlPlane::WaitForEngine(size_t engine) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  LimitTime(context);
  const auto stream = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse event;
  while (!stop_.load() && stream->Read(&event)) {
    if (!event.has_engine() || event.engine().name() != "engines/" + EngineId(engine)) continue;
    if (!event.engine().status().connected()) continue;
    context.TryCancel();
    stream->Finish();
    return Ok{};
  }
  context.TryCancel();
  return Failed("no engine connected to cleatd", stream->Finish());
}

// Threads that wait, not callbacks: gRPC 1.51 was seen to end a client with callbacks by an assertion of its own
// (ref_counted.h: prior > 0).
Status ControlPlane::MakeCalls(uint32_t count, uint32_t in_flight, const Call& call) {
  std::atomic<uint32_t> next = 0;
  std::mutex mutex;
  std::optional<Error> failure;
  const auto make_calls = [&] {
    for (uint32_t i = next++; i < count && !stop_.load(); i = next++) {
      grpc::ClientContext context;
      LimitTime(context);
      Status status = call(i, context);
      if (status) continue;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::move(status).error();
      next = count;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < std::min(in_flight, count); ++i) threads.emplace_back(make_calls);
  for (std::thread& thread : threads) thread.join();
  if (failure) return std::move(*failure);
  if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
  return Ok{};
}

Status ControlPlane::CreateControllers(const HostShape& shape,
                                       const std::function<std::string(const std::string&)>& socket_of) {
  return MakeCalls(shape.controllers, kCreateInFlight, [&](uint32_t index, grpc::ClientContext& context) {
    const std::string id = ControllerId(index);
    v1::CreateControllerRequest request;
    request.set_controller_id(id);
    v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
    spec.set_type(shape.type);
    spec.set_queues(1);
    if (shape.export_address.empty()) {
      spec.set_socket_path(socket_of(id));
    } else {
      spec.mutable_exported()->set_nqn(ExportNqn(index));
      spec.mutable_exported()->add_addresses(shape.export_address);
      spec.mutable_exported()->add_hosts()->set_nqn(kExportHost);
    }
    v1::Controller made;
    return Checked("controllers/" + id, stub_->CreateController(&context, request, &made));
  });
}

Status ControlPlane::CreatePool(const std::string& file, uint32_t extents) {
  const UniqueFd drive(open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  const uint64_t bytes = pool::kDataOffset + extents * kExtentBytes;
  if (!drive || ftruncate(drive.get(), static_cast<off_t>(bytes)) != 0)
    return ErrnoError(errno, fmt::format("{}, a sparse file of {} bytes", file, bytes));
  v1::CreatePoolRequest request;
  request.set_pool_id(std::string(kPool).substr(std::strlen("pools/")));
  request.mutable_pool()->mutable_spec()->set_device(file);
  request.mutable_pool()->mutable_spec()->set_extent_bytes(kExtentBytes);
  v1::Pool pool;
  grpc::ClientContext create;
  LimitTime(create);
  CLEAT_TRY(Checked(kPool, stub_->CreatePool(&create, request, &pool)));
  v1::GetPoolRequest get;
  get.set_name(kPool);
  const uint64_t end_ns = MonotonicClock().NowNs() + kEraseTimeoutNs;
  while (pool.status().state() != v1::POOL_STATE_READY || pool.status().to_erase_bytes() > 0) {
    if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (MonotonicClock().NowNs() > end_ns)
      return Error(ErrorCode::kDeadlineExceeded,
                   fmt::format("{}: not erased yet: {}", kPool, pool.ShortDebugString()));
    poll(nullptr, 0, kEraseLookMs);
    grpc::ClientContext look;
    LimitTime(look);
    CLEAT_TRY(Checked(kPool, stub_->GetPool(&look, get, &pool)));
  }
  return Ok{};
}

Result<double> ControlPlane::CreateTimed(const v1::CreateDiskRequest& request) {
  const MonotonicClock clock;
  grpc::ClientContext context;
  LimitTime(context);
  v1::Disk made;
  const uint64_t start_ns = clock.NowNs();
  CLEAT_TRY(Checked("disks/" + request.disk_id(), stub_->CreateDisk(&context, request, &made)));
  return Seconds(start_ns, clock.NowNs()) * 1000;
}

Result<double> ControlPlane::CreateInPool(const std::string& id) {
  v1::CreateDiskRequest request;
  request.set_disk_id(id);
  SetInPool(*request.mutable_disk()->mutable_spec());
  return CreateTimed(request);
}

Result<double> ControlPlane::CreateInFile(const std::string& id, const std::string& file) {
  v1::CreateDiskRequest request;
  request.set_disk_id(id);
  request.mutable_disk()->mutable_spec()->set_size_bytes(kExtentBytes);
  request.mutable_disk()->mutable_spec()->mutable_file()->set_path(file);
  request.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
  return CreateTimed(request);
}

Status ControlPlane::CreateDisks(const HostShape& shape) {
  return MakeCalls(shape.disks(), kCreateInFlight, [&](uint32_t index, grpc::ClientContext& context) {
    v1::CreateDiskRequest request;
    request.set_disk_id(DiskId(shape, index));
    v1::DiskSpec& spec = *request.mutable_disk()->mutable_spec();
    spec.set_size_bytes(shape.image.empty() && shape.device.empty() ? kDiskBytes : kImageBytes);
    if (shape.in_pool) {
      SetInPool(spec);
    } else if (!shape.image.empty()) {
      spec.mutable_rbd()->set_cluster(kCluster);
      spec.mutable_rbd()->set_pool("rbd");
      spec.mutable_rbd()->set_image(shape.image);
    } else if (!shape.device.empty()) {
      spec.mutable_file()->set_path(shape.device);
    } else if (index / shape.targets < shape.with_memory) {
      spec.mutable_memory();
    } else {
      spec.mutable_null()->set_skip_reads(true);
    }
    v1::Disk made;
    return Checked("disks/" + request.disk_id(), stub_->CreateDisk(&context, request, &made));
  });
}

Result<AttachTimes> ControlPlane::Attach(const HostShape& shape, uint32_t in_flight) {
  const MonotonicClock clock;
  ReadyWatch watch(*stub_);
  if (Status synced = watch.WaitSynced(stop_); !synced) return std::move(synced).error();
  AttachTimes times;
  times.calls_us.resize(shape.disks());
  const uint64_t start_ns = clock.NowNs();
  Status attached = MakeCalls(shape.disks(), in_flight, [&](uint32_t index, grpc::ClientContext& context) {
    const v1::AttachDiskRequest request = AttachRequest(shape, index);
    v1::Attachment made;
    const uint64_t call_start_ns = clock.NowNs();
    const grpc::Status status = stub_->AttachDisk(&context, request, &made);
    times.calls_us[index] = Microseconds(call_start_ns, clock.NowNs());
    return Checked("attaching " + request.attachment().spec().disk(), status);
  });
  if (!attached) return std::move(attached).error();
  times.all_acknowledged_s = Seconds(start_ns, clock.NowNs());
  auto last_ready_ns = watch.WaitReady(shape.disks(), stop_);
  if (!last_ready_ns) return std::move(last_ready_ns).error();
  times.all_ready_s = Seconds(start_ns, *last_ready_ns);
  return times;
}

Status ControlPlane::CreateCluster(const std::string& monitors, const std::string& user,
                                   const std::string& key) {
  v1::CreateClusterRequest request;
  request.set_cluster_id("ceph");
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.set_monitors(monitors);
  spec.set_user(user);
  spec.set_plain_key(key);
  grpc::ClientContext context;
  LimitTime(context);
  v1::Cluster made;
  return Checked("making the cluster known", stub_->CreateCluster(&context, request, &made));
}

Result<v1::EngineStatus> ControlPlane::StatusOf(size_t engine) {
  v1::GetEngineRequest request;
  request.set_name("engines/" + EngineId(engine));
  grpc::ClientContext context;
  LimitTime(context);
  v1::Engine found;
  const grpc::Status status = stub_->GetEngine(&context, request, &found);
  if (!status.ok()) return Failed(EngineId(engine), status);
  return found.status();
}

Status ControlPlane::WaitStatus(size_t engine, const std::string& what,
                                const std::function<bool(const v1::EngineStatus&)>& there) {
  const uint64_t end_ns = MonotonicClock().NowNs() + kStatusTimeoutNs;
  for (;;) {
    auto status = StatusOf(engine);
    if (!status) return std::move(status).error();
    if (there(*status)) return Ok{};
    if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (MonotonicClock().NowNs() > end_ns) {
      return Error(ErrorCode::kDeadlineExceeded, fmt::format("{}: {}: not yet, but {}", EngineId(engine),
                                                             what, status->ShortDebugString()));
    }
    poll(nullptr, 0, kLookMs);
  }
}

Result<double> ControlPlane::Upgrade(size_t from, size_t to) {
  const MonotonicClock clock;
  const uint64_t start_ns = clock.NowNs();
  v1::UpgradeEngineRequest request;
  request.set_name("engines/" + EngineId(from));
  request.set_to("engines/" + EngineId(to));
  grpc::ClientContext context;
  LimitTime(context);
  v1::UpgradeEngineResponse answer;
  const grpc::Status begun = stub_->UpgradeEngine(&context, request, &answer);
  if (!begun.ok()) return Failed("an upgrade", begun);
  v1::UpgradeStatus upgrade;
  Status over = WaitStatus(from, "the end of an upgrade", [&](const v1::EngineStatus& status) {
    upgrade = status.upgrade();
    return upgrade.state() != v1::UPGRADE_STATE_RUNNING && upgrade.state() != v1::UPGRADE_STATE_UNSPECIFIED;
  });
  if (!over) return std::move(over).error();
  if (upgrade.state() != v1::UPGRADE_STATE_DONE)
    return Error(ErrorCode::kInternal, "an upgrade: " + upgrade.ShortDebugString());
  return Seconds(start_ns, clock.NowNs());
}

Status ControlPlane::WaitStandingBy(size_t engine, uint32_t controllers) {
  return WaitStatus(engine, fmt::format("{} controllers stand by", controllers),
                    [&](const v1::EngineStatus& status) { return status.standing_by() == controllers; });
}

Status ControlPlane::WaitNotAnswering(size_t engine) {
  return WaitStatus(engine, "it does not answer", [](const v1::EngineStatus& status) {
    return status.state() == v1::ENGINE_STATE_NOT_ANSWERING;
  });
}

Status ControlPlane::WaitHas(size_t engine, uint32_t controllers) {
  return WaitStatus(engine, fmt::format("it has {} controllers", controllers),
                    [&](const v1::EngineStatus& status) { return status.controllers() == controllers; });
}

}  // namespace cleat::bench
