// SPDX-License-Identifier: Apache-2.0
#include "control/daemon.h"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "base/log.h"
#include "control/backup/keys_needed.h"
#include "control/backup/store_backup.h"
#include "control/backup/store_restore.h"
#include "control/reconcile/reconciler.h"
#include "control/store/sqlite_row.h"
#include "keys/kek_file.h"

namespace cleat::control {
namespace {

constexpr int kStreamsPerConnectionMax = 128;
// A Watch or a Wait takes a thread, so there is room for all of them and for calls besides; also for many that come at
// once only to be refused. A call beyond is refused with RESOURCE_EXHAUSTED, before we see it.
constexpr int kThreadsMax = static_cast<int>(WatchHub::kWatchersMax) + 448;
constexpr size_t kGrpcBytesMax = size_t{256} * 1024 * 1024;
constexpr std::chrono::seconds kShutdownGrace{2};
constexpr uint64_t kSecondsPerDay = 86'400;

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  CLEAT_ASSIGN(daemon->store_, Store::Open(options.state_dir));
  RemoveUnfinishedBackups(options.state_dir);
  RemoveUnfinishedUploads(options.state_dir);
  CLEAT_TRY(daemon->ReadKeys(options));
  const KeepDeleted keep{.time_s = options.keep_deleted_days * kSecondsPerDay};
  CLEAT_ASSIGN(daemon->state_, HostState::Load(*daemon->store_, daemon->memory_, options.watch_queue_max,
                                               &daemon->keyring_, keep));
  CLEAT_ASSIGN(daemon->paths_, PathPolicy::Read(options.paths_file, options.state_dir, options.runtime_dir));
  daemon->state_->SetPaths(daemon->paths_.get());
  daemon->LogUnlisted();
  CLEAT_TRY(daemon->RewrapKeys());
  daemon->state_->StartPoolThreads();

  CLEAT_ASSIGN(daemon->link_, EngineLink::Listen(options.engine_socket, daemon->clock_));
  daemon->reconciler_ = std::make_unique<Reconciler>(*daemon->state_, daemon->memory_, *daemon->link_,
                                                     daemon->clock_, options.reconciler, &daemon->counters_);
  daemon->state_->SetWake([link = daemon->link_.get()] { link->Wake(); });
  daemon->link_->Start(*daemon->reconciler_, &daemon->counters_);
  daemon->slow_watch_.Start();
  daemon->purge_timer_ = std::make_unique<PurgeTimer>(daemon->state_->kept_disks(), daemon->clock_);
  daemon->purge_timer_->Start();
  daemon->link_->Wake();  // for what was loaded

  CLEAT_TRY(daemon->StartApi(options));
  if (!options.metrics_address.empty()) {
    auto engines = [state = daemon->state_.get()] {
      auto listed = state->engines().List({});  // a page, which is all that a host has
      return listed.ok() ? std::move(listed).value() : v1::ListEnginesResponse();
    };
    auto host = [state = daemon->state_.get(), audit = daemon->audit_.get()] {
      return Metrics::Host{.deleted_disks = state->kept_disks().Count(),
                           .unlisted_paths = state->Unlisted().size(),
                           .store_writable = state->store_writable(),
                           .audit_records_lost = audit->lost(),
                           .clusters = state->clusters().States(),
                           .pools = state->pools().All(),
                           .over_paths = state->attachments().OverPaths()};
    };
    daemon->metrics_ = std::make_unique<Metrics>(daemon->counters_, daemon->slow_watch_, std::move(engines),
                                                 std::move(host), options.metrics);
    auto server = MetricsServer::Start(options.metrics_address, *daemon->metrics_,
                                       [state = daemon->state_.get()] { return state->CheckStore(); });
    CLEAT_TRY(server);
    daemon->metrics_server_ = std::move(*server);
  }
  return daemon;
}

Status Daemon::ReadKeys(const DaemonOptions& options) {
  std::vector<std::string> files = options.kek_files;
  if (files.empty()) {
    if (const auto credential = keys::KekCredentialPath()) files.push_back(*credential);
  }
  if (files.empty()) {
    files.push_back(options.state_dir + "/kek");
    Status made = MakeFirstKek(files.front());
    if (!made.ok() && (store_->writable() || made.error().code == ErrorCode::kFailedPrecondition))
      return made;
    if (!made.ok()) {
      spdlog::warn(
          "key-encryption keys: none made: {}; until the store can be written, no encrypted disks are taken",
          made.error().message);
      keyring_.SetFilesLater(files);
      kek_to_make_ = files.front();
      return Ok{};
    }
  }
  CLEAT_TRY(keyring_.SetFiles(files));
  spdlog::info("key-encryption keys: loaded: {} (from {})", fmt::join(keyring_.ids(), ", "),
               fmt::join(files, ", "));
  return Ok{};
}

// If there is no key yet. Where there was one, a new one would open nothing that the store holds, and hide that the old one is gone.
Status Daemon::MakeFirstKek(const std::string& path) {
  const auto there = keys::LoadKekFile(path);
  if (!there.ok() && there.error().code == ErrorCode::kNotFound) {
    CLEAT_ASSIGN(const auto rows, store_->Load());
    const std::map<std::string, std::string> needed = KeysNeeded(rows);
    if (!needed.empty()) {
      return Error(
          ErrorCode::kFailedPrecondition,
          fmt::format(
              "there is no key-encryption key at '{}', and the store holds keys that only {} can open, that "
              "of {} for "
              "one: put the file back from its backup, or name it (--kek-file). If it is lost, so are the "
              "encrypted disks: to go on without them, make a new one there (openssl rand -hex 32)",
              path, needed.begin()->first, needed.begin()->second));
    }
  }
  const auto made = keys::LoadOrMakeKekFile(path);
  return made.ok() ? Status(Ok{}) : Status(made.error());
}

// A store that can't be written holds nobody up: the keys stay as they are until it can.
Status Daemon::RewrapKeys() {
  Status status = state_->RewrapKeys();
  rewrap_ = !status.ok() && IsUnwritable(status.error());
  if (!rewrap_) return status;
  spdlog::warn("key-encryption keys: not wrapped anew: {}; done once it can be written",
               status.error().message);
  return Ok{};
}

// What the start had to leave out while the store could not be written.
bool Daemon::FinishStart() {
  if (!kek_to_make_.empty()) {
    Status made = MakeFirstKek(kek_to_make_);
    if (made.ok()) made = keyring_.Reload();
    if (!made.ok()) return false;
    kek_to_make_.clear();
  }
  return !rewrap_ || (RewrapKeys().ok() && !rewrap_);
}

Status Daemon::StartApi(const DaemonOptions& options) {
  grants_ = options.grants;
  CLEAT_ASSIGN(audit_, AuditLog::Open(options.audit_log, options.audit_required));
  CLEAT_ASSIGN(listener_, UnixListener::Open(options.api_socket, options.api_socket_mode, options.api_group));
  guard_ = std::make_unique<CallGuard>(grants_, *listener_, *audit_);
  service_ = std::make_unique<Service>(*state_, counters_, slow_watch_, *guard_, options.on_restored);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ResourceQuota quota("cleatd");
  quota.SetMaxThreads(kThreadsMax);
  quota.Resize(kGrpcBytesMax);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.keep_alive.time.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(options.keep_alive.timeout.count()));
  builder.RegisterService(service_.get());
  if (!options.tls_address.empty()) {
    CLEAT_ASSIGN(certificates_, TlsCertificates::Load(options.tls));
    builder.AddListeningPort(options.tls_address, TlsCertificates::CredentialsOf(certificates_), &tls_port_);
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || (!options.tls_address.empty() && tls_port_ == 0)) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("the API can't listen on '{}': give a free HOST:PORT of this host", options.tls_address));
  }
  CheckHealth();
  listener_->Start(*server_, grants_, [this] { return CheckHealth(); });
  // A store that refuses a write may do so for a while: that is looked at until it takes one again.
  store_->SetOnFailure([listener = listener_.get()] { listener->Wake(); });
  return Ok{};
}

// On the listener's thread, once that runs.
bool Daemon::CheckHealth() {
  const bool writable = state_->CheckStore() && FinishStart();
  server_->GetHealthCheckService()->SetServingStatus(writable);
  server_->GetHealthCheckService()->SetServingStatus(v1::Cleat::service_full_name(), writable);
  return writable;
}

void Daemon::LogUnlisted() {
  for (const auto& [name, why] : state_->Unlisted()) spdlog::warn("{}: {}; it is served on", name, why);
}

bool Daemon::GoesOn() {
  const bool waits_for_store = state_->WaitsForStore(link_->thread());
  const uint64_t rounds = link_->rounds();
  const bool went_on = rounds != std::exchange(link_rounds_, rounds);
  link_->Wake();
  return went_on || waits_for_store;
}

void Daemon::Reload() {
  if (auto status = paths_->Reload(); status.ok()) {
    LogUnlisted();
    state_->engines().PathsChanged();
  } else {
    spdlog::error(
        "path lists: not read again: {}; the former ones stay in force: correct the file, then reload cleatd",
        status.error().message);
  }
  if (certificates_ != nullptr) {
    if (auto status = certificates_->Reload(); status.ok()) {
      spdlog::info("TLS certificates: read again; new connections use them");
    } else {
      spdlog::error(
          "TLS certificates: not read again: {}; the former ones stay in use: correct the files, then reload "
          "cleatd",
          status.error().message);
    }
  }
  Status keys = keyring_.Reload();
  if (keys.ok()) keys = state_->RewrapKeys();
  if (!keys.ok())
    spdlog::error("key-encryption keys: reload incomplete: {}; correct the cause, then reload cleatd",
                  keys.error().message);
  if (auto status = audit_->Reopen(); !status.ok()) {
    spdlog::error(
        "audit log: not opened again: {}; records go on to the former file: correct the cause, then reload "
        "cleatd",
        status.error().message);
  }
}

Daemon::Daemon() = default;

Daemon::~Daemon() {
  metrics_server_.reset();
  if (store_) store_->SetOnFailure({});
  if (state_) state_->StopWatchers();
  if (listener_) listener_->Stop();
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_.reset();
  slow_watch_.Stop();
  if (purge_timer_) purge_timer_->Stop();
  if (link_) link_->Stop();
  if (state_) state_->StopPoolThreads();
}

}  // namespace cleat::control
