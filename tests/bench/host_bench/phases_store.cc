// SPDX-License-Identifier: Apache-2.0
// The API while the store's disk is slow: how long a Get takes while others create.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "cleat/v1/cleat.grpc.pb.h"
#include "phases.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 20;
constexpr uint64_t kMostDisks = 2000;

Status CreateDisk(v1::Cleat::Stub& stub, const std::string& id) {
  grpc::ClientContext context;
  v1::CreateDiskRequest request;
  v1::Disk disk;
  request.set_disk_id(id);
  request.mutable_disk()->mutable_spec()->set_size_bytes(kDiskBytes);
  request.mutable_disk()->mutable_spec()->mutable_null();
  const grpc::Status status = stub.CreateDisk(&context, request, &disk);
  if (!status.ok())
    return Error(ErrorCode::kInternal, "creating disks/" + id + ": " + status.error_message());
  return Ok{};
}

Status GetDisk(v1::Cleat::Stub& stub, const std::string& id) {
  grpc::ClientContext context;
  v1::GetDiskRequest request;
  v1::Disk disk;
  request.set_name("disks/" + id);
  const grpc::Status status = stub.GetDisk(&context, request, &disk);
  if (!status.ok()) return Error(ErrorCode::kInternal, "getting disks/" + id + ": " + status.error_message());
  return Ok{};
}

double Milliseconds(uint64_t from_ns, uint64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kNsPerMs);
}

// One caller that creates disks until it is stopped.
class Creator {
 public:
  Creator(const std::string& address, std::string prefix, const std::atomic<bool>& stop)
      : stub_(v1::Cleat::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        prefix_(std::move(prefix)),
        stop_(stop),
        thread_([this] { Run(); }) {}
  ~Creator() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  const Status& status() const { return status_; }
  const std::vector<double>& times_ms() const { return times_ms_; }

 private:
  void Run() {
    const MonotonicClock clock;
    for (uint64_t i = 0; !stop_ && status_.ok() && i < kMostDisks; ++i) {
      const uint64_t from_ns = clock.NowNs();
      status_ = CreateDisk(*stub_, fmt::format("{}-{}", prefix_, i));
      times_ms_.push_back(Milliseconds(from_ns, clock.NowNs()));
    }
  }

  const std::unique_ptr<v1::Cleat::Stub> stub_;
  const std::string prefix_;
  const std::atomic<bool>& stop_;
  Status status_;
  std::vector<double> times_ms_;
  std::thread thread_;
};

}  // namespace

Result<std::vector<double>> Phases::GetTimes(v1::Cleat::Stub& stub) const {
  const MonotonicClock clock;
  const uint64_t until_ns = clock.NowNs() + plan_.get_ms * kNsPerMs;
  std::vector<double> times_ms;
  while (!stop_ && clock.NowNs() < until_ns) {
    const uint64_t from_ns = clock.NowNs();
    CLEAT_TRY(GetDisk(stub, "there"));
    times_ms.push_back(Milliseconds(from_ns, clock.NowNs()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (stop_) return Error(ErrorCode::kCancelled, "interrupted");
  return times_ms;
}

Status Phases::SlowStore() {
  constexpr int kCreators = 4;
  Say(fmt::format("a store whose disk takes 20 ms to sync: {} callers create disks, one gets one",
                  kCreators));
  HostOptions options = plan_.host;
  options.cleatd_preload =
      std::filesystem::canonical(plan_.host.bin_dir).parent_path() / "tests/libcleat_slow_syncs.so";
  CLEAT_ASSIGN(auto host, BenchHost::Start(options));
  ControlPlane control(host->address(), stop_);
  CLEAT_TRY(control.WaitForEngine());
  const auto stub =
      v1::Cleat::NewStub(grpc::CreateChannel(host->address(), grpc::InsecureChannelCredentials()));
  CLEAT_TRY(CreateDisk(*stub, "there"));
  CLEAT_ASSIGN(const auto alone_ms, GetTimes(*stub));
  std::atomic<bool> enough = false;
  std::vector<std::unique_ptr<Creator>> creators;
  for (int i = 0; i < kCreators; ++i)
    creators.push_back(std::make_unique<Creator>(host->address(), fmt::format("d{}", i), enough));
  auto times_ms = GetTimes(*stub);
  enough = true;
  std::vector<double> creates_ms;
  for (const auto& creator : creators) {
    creator->Join();
    CLEAT_TRY(creator->status());
    creates_ms.insert(creates_ms.end(), creator->times_ms().begin(), creator->times_ms().end());
  }
  CLEAT_TRY(times_ms);
  figures_.Add("get_p99_ms_alone", "ms", {Percentile(alone_ms, 0.99)});
  figures_.Add("get_p50_ms_while_creating", "ms", {Percentile(*times_ms, 0.5)});
  figures_.Add("get_p99_ms_while_creating", "ms", {Percentile(*times_ms, 0.99)});
  figures_.Add("create_p50_ms_slow_store", "ms", {Percentile(creates_ms, 0.5)});
  return host->End();
}

}  // namespace cleat::bench
