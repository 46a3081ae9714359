// SPDX-License-Identifier: Apache-2.0
#include "control/daemon.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/unique_fd.h"
#include "control/seqpacket.h"

namespace cleat::control {
namespace {

constexpr int kMessageBytesMax = 1024 * 1024;
constexpr int kStreamsPerConnectionMax = 128;
// A watcher takes a thread, so there is room for all of them and for calls besides.
constexpr int kThreadsMax = static_cast<int>(WatchHub::kWatchersMax) + 64;
constexpr size_t kGrpcBytesMax = size_t{256} * 1024 * 1024;
constexpr std::chrono::seconds kShutdownGrace{2};
constexpr mode_t kApiSocketMode = 0660;

// gRPC would take the socket away from another cleatd without a word.
bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() && connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  auto store = Store::Open(options.state_dir);
  if (!store.ok()) return std::move(store).error();
  daemon->store_ = std::move(*store);
  auto state = HostState::Load(*daemon->store_, daemon->memory_, options.watch_queue_max);
  if (!state.ok()) return std::move(state).error();
  daemon->state_ = std::move(*state);

  auto link = EngineLink::Listen(options.engine_socket, daemon->clock_);
  if (!link.ok()) return std::move(link).error();
  daemon->link_ = std::move(*link);
  daemon->conductor_ = std::make_unique<Conductor>(*daemon->state_, daemon->memory_, *daemon->link_,
                                                   daemon->clock_, options.conductor);
  daemon->state_->SetWake([link = daemon->link_.get()] { link->Wake(); });
  daemon->link_->Start(*daemon->conductor_);
  daemon->link_->Wake();  // for what was loaded

  if (auto status = daemon->StartApi(options.api_socket); !status.ok()) return std::move(status).error();
  return daemon;
}

Status Daemon::StartApi(const std::string& path) {
  if (path.size() > kSocketPathBytesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("API socket '{}': the path has more than {} bytes", path, kSocketPathBytesMax));
  }
  if (SomebodyListens(path)) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("API socket '{}': somebody listens there already: stop it, or choose another path with "
                    "--listen",
                    path));
  }
  grpc::ResourceQuota quota("cleatd");
  quota.SetMaxThreads(kThreadsMax);
  quota.Resize(kGrpcBytesMax);
  service_ = std::make_unique<Service>(*state_);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || chmod(path.c_str(), kApiSocketMode) != 0) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("the API can't listen on 'unix:{}': is its folder there, and "
                             "writable?",
                             path));
  }
  return Ok{};
}

Daemon::~Daemon() {
  if (state_) state_->StopWatchers();
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_.reset();
  if (link_) link_->Stop();
}

}  // namespace cleat::control
