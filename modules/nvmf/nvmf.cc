// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf.h"

#include <optional>
#include <utility>

#include "modules/nvmf/nvmf_disk.h"

namespace cleat::modules {
namespace {

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
  Task<Status> Release() override {
    disk_->Release();
    co_return Ok{};
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    CLEAT_CO_TRY(co_await disk_->WaitForSize(size_bytes));
    SetSize(size_bytes);
    co_return Ok{};
  }
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

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenNvmf(NvmfOptions options) {
  CLEAT_CO_TRY(CheckNvmfOptions(options));
  std::string name = options.shape.name;
  std::string io_path = "NVMe/TCP";
  for (const auto& address : options.subsystem->addresses)
    io_path += (io_path.back() == 'P' ? " " : ", ") + nvme::fabrics::TextOfAddress(address);
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
