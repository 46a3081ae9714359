// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "modules/nvmf/disk/nvmf_disk.h"

namespace cleat::modules {
namespace {

namespace fabrics = nvme::fabrics;

class OpenedNvmf final : public NvmfDevice {
 public:
  OpenedNvmf(std::string name, const block::Geometry& geometry, std::string io_path,
             std::shared_ptr<NvmfDisk> disk)
      : NvmfDevice(std::move(name), geometry), io_path_(std::move(io_path)), disk_(std::move(disk)) {}

  std::string io_path() const override { return io_path_; }
  uint32_t frames() const override { return 1; }

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    return disk_->OpenChannel(reactor);
  }
  Task<Status> Acquire(block::AccessMode /*mode*/) override { return disk_->Acquire(); }
  Task<Status> Release() override { return disk_->Release(); }
  Task<Status> Resize(uint64_t size_bytes) override {
    CLEAT_CO_TRY(co_await disk_->WaitForSize(size_bytes));
    SetSize(size_bytes);
    co_return Ok{};
  }
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override { disk_->SetAcquireTimeout(wait_ns); }
  void SetParting(Parting parting) override { disk_->SetParting(parting); }
  void SetLeaving(uint64_t attachment) override { disk_->SetLeaving(attachment); }
  bool IsLeaving(uint64_t attachment) const override { return disk_->IsLeaving(attachment); }
  Task<Status> Close() override {
    co_await disk_->Close(/*shutdown=*/true);
    co_return Ok{};
  }
  Status ConfirmDead() override { return disk_->ConfirmDead(); }
  void SetInDoubt(const block::InDoubt& rule) override { disk_->SetInDoubt(rule); }
  std::optional<block::PathsReport> paths() const override { return disk_->paths(); }

 private:
  const std::string io_path_;
  const std::shared_ptr<NvmfDisk> disk_;
};

bool IsRdma(const fabrics::PathAddress& address) {
  return address.target.transport == fabrics::TransportType::kRdma;
}

bool HasWrongSource(const fabrics::PathAddress& address) {
  return address.source && (address.source->family != address.target.family || address.source->port != 0);
}

// kInvalidArgument.
Status CheckRdma(const NvmfOptions& options) {
  const NvmfSubsystem& subsystem = *options.subsystem;
  if (std::none_of(subsystem.addresses.begin(), subsystem.addresses.end(), &IsRdma)) return Ok{};
  if (options.rdma == nullptr)
    return Error(ErrorCode::kInvalidArgument, "it has addresses over RDMA, and there are no adapters");
  if (subsystem.psk == nullptr) return Ok{};
  return Error(ErrorCode::kInvalidArgument,
               "it has a pre-shared key and addresses over RDMA, which has no TLS: leave out one of the two");
}

Status CheckAddresses(const NvmfSubsystem& subsystem) {
  const auto refuse = [](const std::string& why) { return Error(ErrorCode::kInvalidArgument, why); };
  const auto& addresses = subsystem.addresses;
  if (addresses.empty() || addresses.size() > NvmfDisk::kPathsMax) {
    return refuse(fmt::format("{} has {} addresses: give 1 to {}", subsystem.name, addresses.size(),
                              NvmfDisk::kPathsMax));
  }
  for (auto it = addresses.begin(); it != addresses.end(); ++it) {
    if (it->target.port == 0) return refuse(subsystem.name + ": port 0 is nobody's");
    if (HasWrongSource(*it))
      return refuse(
          fmt::format("{} can't be reached by {}", subsystem.name, fabrics::TextOfPathAddress(*it)));
    if (std::find(addresses.begin(), it, *it) != it)
      return refuse(fmt::format("{} has {} twice", subsystem.name, fabrics::TextOfPathAddress(*it)));
  }
  return Ok{};
}

// kInvalidArgument.
Status CheckNvmfOptions(const NvmfOptions& options) {
  const std::string& disk = options.shape.name;
  const auto refuse = [&disk](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, disk + ": " + why);
  };
  if (options.subsystem == nullptr) return refuse("no subsystem is given");
  const NvmfSubsystem& subsystem = *options.subsystem;
  if (const Status addresses = CheckAddresses(subsystem); !addresses)
    return refuse(addresses.error().message);
  if (subsystem.dscp > fabrics::kDscpMax) {
    return refuse(
        fmt::format("{}: a DSCP of {}: give 0 to {}", subsystem.name, subsystem.dscp, fabrics::kDscpMax));
  }
  if (const Status nqn = fabrics::CheckNqn(subsystem.nqn, "its NQN"); !nqn)
    return refuse(subsystem.name + ": " + nqn.error().message);
  if (const Status host = fabrics::CheckHostIdentity(subsystem.host); !host)
    return refuse(subsystem.name + ": " + host.error().message);
  if (subsystem.kato_ms < fabrics::kKeepAliveMsMin || subsystem.kato_ms > fabrics::kKeepAliveMsMax) {
    return refuse(fmt::format("{}: a keep alive timeout of {} ms: give {} to {}", subsystem.name,
                              subsystem.kato_ms, fabrics::kKeepAliveMsMin, fabrics::kKeepAliveMsMax));
  }
  if (subsystem.chap != nullptr && options.arithmetic == nullptr)
    return refuse(subsystem.name + " has secrets, and there are no threads for authentication");
  if (const Status rdma = CheckRdma(options); !rdma)
    return refuse(subsystem.name + ": " + rdma.error().message);
  if (options.name_space == fabrics::Uuid{}) return refuse("the namespace's UUID is zero");
  return block::CheckGeometry(options.shape.ToGeometry(), disk);
}

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenNvmf(NvmfOptions options) {
  CLEAT_CO_TRY(CheckNvmfOptions(options));
  std::string name = options.shape.name;
  std::vector<std::string> addresses;
  for (const auto& address : options.subsystem->addresses)
    addresses.push_back(fabrics::TextOfPathAddress(address));
  const auto& paths = options.subsystem->addresses;
  const auto rdma = std::count_if(paths.begin(), paths.end(), &IsRdma);
  std::string io_path = fmt::format("{} {}",
                                    rdma == 0                                   ? "NVMe/TCP"
                                    : static_cast<size_t>(rdma) == paths.size() ? "NVMe/RDMA"
                                                                                : "NVMe/TCP and NVMe/RDMA",
                                    fmt::join(addresses, ", "));
  auto disk = std::make_shared<NvmfDisk>(std::move(options), *Reactor::Current());
  const Status opened = co_await disk->Open();
  if (!opened) {
    co_await disk->Close(/*shutdown=*/false);
    co_return opened.error();
  }
  co_return std::unique_ptr<block::Device>(
      std::make_unique<OpenedNvmf>(std::move(name), disk->geometry(), std::move(io_path), std::move(disk)));
}

}  // namespace cleat::modules
