// SPDX-License-Identifier: Apache-2.0
// An export's engines are exchanged under a host over NVMe/TCP, whose connections go from one to the other.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/unique_fd.h"
#include "export_host.h"
#include "phases.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kPauseNs = 200 * kNsPerUs;  // the generator's core is cleatd's as well
constexpr int kQuietMsMax = 1000;
constexpr double kMsPerSecond = 1000;

// A port of loopback that nobody has now.
std::string FreeAddress() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), bytes) != 0) return {};
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return {};
  return fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
}

}  // namespace

Result<UpgradePhases::ExportStage> UpgradePhases::SetUpExport() {
  ExportStage made;
  CLEAT_ASSIGN(made.host, BenchHost::Start(plan_.host));
  made.control = std::make_unique<ControlPlane>(made.host->address(), stop_);
  ControlPlane& control = *made.control;
  const HostShape shape{.controllers = 1,
                        .targets = 1,
                        .type = v1::CONTROLLER_TYPE_NVMF,
                        .with_memory = 1,
                        .export_address = FreeAddress()};
  CLEAT_TRY(control.WaitForEngine());
  CLEAT_TRY(control.CreateControllers(shape, {}));
  CLEAT_TRY(control.CreateDisks(shape));
  CLEAT_TRY(control.Attach(shape, 1));
  CLEAT_TRY(made.host->AddEngine());  // only now: the export is placed on the one engine that there is
  CLEAT_TRY(control.WaitForEngine(1));
  CLEAT_ASSIGN(made.guest, ExportHost::Start({.address = shape.export_address,
                                              .nqn = ExportNqn(0),
                                              .host_nqn = kExportHost,
                                              .pause_ns = kPauseNs}));
  return made;
}

Status UpgradePhases::UpgradeExport(ExportStage& stage, Gaps* gaps) {
  const size_t to = 1 - stage.at;
  stage.guest->Mark();
  auto took_s = stage.control->Upgrade(stage.at, to);
  if (!took_s) return Error(took_s.error().code, took_s.error().message + "\n" + stage.host->LogTails());
  stage.at = to;
  auto gap_ms = stage.guest->TakeGap(stop_);
  if (!gap_ms) return Error(gap_ms.error().code, gap_ms.error().message + "\n" + stage.host->LogTails());
  gaps->moved_ms.push_back(*gap_ms);
  gaps->total_s.push_back(*took_s);
  stage.guest->Mark();
  poll(nullptr, 0, std::clamp(static_cast<int>(*took_s * kMsPerSecond), 1, kQuietMsMax));
  CLEAT_ASSIGN(const double quiet_ms, stage.guest->TakeGap(stop_));
  gaps->quiet_ms.push_back(quiet_ms);
  return Ok{};
}

Status UpgradePhases::Export() {
  fmt::print("export: a host over NVMe/TCP, {} upgrades\n", plan_.rounds * plan_.export_upgrades);
  CLEAT_ASSIGN(ExportStage stage, SetUpExport());
  Gaps warm_up;
  for (int i = 0; i < 2; ++i)
    CLEAT_TRY(UpgradeExport(stage, &warm_up));  // both engines' first touch of everything
  std::vector<Gaps> rounds(plan_.rounds);
  for (Gaps& round : rounds) {
    for (uint32_t i = 0; i < plan_.export_upgrades; ++i) CLEAT_TRY(UpgradeExport(stage, &round));
  }
  Add("tcp_upgrade", rounds);
  CLEAT_TRY(stage.guest->Stop());
  stage.guest.reset();
  return stage.host->End();
}

}  // namespace cleat::bench
