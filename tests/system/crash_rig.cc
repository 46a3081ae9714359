// SPDX-License-Identifier: Apache-2.0
#include "crash_rig.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "perf/vhost_user/deadline.h"

namespace cleat::system_test {
namespace {

constexpr uint8_t kTarget = 0;
// Between two events some guest gets up to so many answers, and some time passes: kills meet full queues, queues that
// were just filled, and the middle of a reconnect.
constexpr uint64_t kRequestsBetweenMax = 400;
constexpr uint64_t kPauseMsMax = 20;
constexpr uint64_t kProgressTimeoutNs = 120 * kNsPerSecond;
// A successor lives so long at most when it is killed as well: EAL alone takes most of that to start.
constexpr uint64_t kSuccessorMsMax = 400;

double Ms(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerMs);
}

nlohmann::json GapsJson(const perf::LatencyHistogram& gaps) {
  return {{"events", gaps.total()},
          {"p50", Ms(gaps.PercentileNs(0.5))},
          {"p99", Ms(gaps.PercentileNs(0.99))},
          {"max", Ms(gaps.max_ns())}};
}

// Blocks that are there already: no metadata is in the way of writes.
void WriteZeroes(const std::string& path) {
  std::ofstream(path) << std::string(CrashRig::kDiskBytes, '\0');
}

}  // namespace

const char* CrashEventName(CrashEvent event) {
  switch (event) {
    case CrashEvent::kEngine:
      return "engine";
    case CrashEvent::kEngineAgain:
      return "engine_and_its_successor";
    case CrashEvent::kCleatd:
      return "cleatd";
    case CrashEvent::kCleatdAndEngine:
      return "everything_cleatd_back_first";
    case CrashEvent::kEngineAndCleatd:
      return "everything_engine_back_first";
  }
  return "?";
}

std::string CrashCase::Id() const {
  const char* name = memory             ? "malloc"
                     : !device.empty()  ? "device"
                     : !storage.empty() ? storage.c_str()
                     : spec             ? "other"
                     : sparse           ? "sparse"
                                        : "file";
  return fmt::format("{}-{}-q{}-{}{}{}", scsi ? "scsi" : "blk", packed ? "packed" : "split", queues, name,
                     block_bytes == 512 ? "-512" : "", delay_ns_max > 0 ? "-late" : "");
}

v1::DiskSpec WithEncryption(v1::DiskSpec spec) {
  std::string key;
  for (int i = 0; i < 64; ++i) key += static_cast<char>(3 * i + 1);
  v1::Encryption& encryption = *spec.mutable_encryption();
  encryption.set_cipher(v1::CIPHER_AES_256_XTS);
  encryption.set_data_unit_bytes(512);
  encryption.set_plain_key(key);
  return spec;
}

// ---- A guest

// What nobody wrote to an encrypted disk decrypts to anything.
CrashGuest::CrashGuest(const CrashCase& what, uint64_t disk_id)
    : id_(what.Id()),
      memory_pinned_(what.memory_pinned),
      blocks_(CrashRig::kDiskBytes, what.block_bytes, disk_id, !what.spec || !what.spec->has_encryption()) {}

Result<std::unique_ptr<CrashGuest>> CrashGuest::Make(Host& host, const CrashCase& what,
                                                     const CrashGuestOptions& options) {
  std::unique_ptr<CrashGuest> guest(new CrashGuest(what, options.load.seed));
  const std::string path = what.device.empty() ? host.Path(what.Id() + ".img") : what.device;
  if (what.sparse) {
    host.MakeFile(what.Id() + ".img", CrashRig::kDiskBytes);
  } else if (!what.memory && what.device.empty() && !what.spec) {
    WriteZeroes(path);
  }
  v1::DiskSpec disk =
      what.memory ? MemoryDisk(CrashRig::kDiskBytes) : FileDisk(CrashRig::kDiskBytes, path, false);
  if (what.spec) disk = *what.spec;
  disk.set_logical_block_bytes(what.block_bytes);
  if (what.delay_ns_max > 0) {
    disk.mutable_fault()->set_seed(options.load.seed);
    disk.mutable_fault()->set_delay_ns_max(what.delay_ns_max);
  }
  const std::string socket = host.SocketPath(what.Id());
  v1::ControllerSpec controller =
      what.scsi ? ScsiController(socket, what.queues) : BlkController(socket, what.queues);
  if (!what.group.empty()) controller.set_group("groups/" + what.group);
  controller.set_memory_pinned(what.memory_pinned);
  for (const grpc::Status& status :
       {host.api().CreateDisk(what.Id(), disk).status,
        host.api().CreateController(what.Id(), controller).status,
        host.api()
            .Attach(what.Id(), what.Id(), false, what.scsi ? std::optional<uint32_t>(kTarget) : std::nullopt)
            .status}) {
    if (!status.ok()) return Error(ErrorCode::kInternal, what.Id() + ": " + status.error_message());
  }
  if (!host.api().WaitUntil([&](const Model& model) {
        return model.AttachmentStateOf(what.Id(), what.Id()) == v1::ATTACHMENT_STATE_READY;
      })) {
    return Error(ErrorCode::kDeadlineExceeded, what.Id() + " does not become READY");
  }
  Status booted = what.scsi ? guest->BootScsi(host, what, options) : guest->BootBlk(host, what, options);
  if (!booted) return Error(booted.error().code, what.Id() + ": " + booted.error().message);
  guest->load_ = std::make_unique<perf::CrashLoad>(*guest->port_, guest->blocks_, options.load);
  return guest;
}

template <typename PeerType>
static Result<std::unique_ptr<PeerType>> Boot(Host& host, const CrashCase& what, CrashControl control) {
  perf::FrontendOptions frontend;
  frontend.accept_timeout_ns = CrashRig::kRecoverTimeoutNs;
  if (control == CrashControl::kNoInflight) frontend.protocol_features &= ~perf::wire::kProtocolInflightShmfd;
  auto peer = PeerType::Listen(host.SocketPath(what.Id()), frontend);
  if (!peer) return peer;
  typename PeerType::Options options;
  options.num_queues = what.queues;
  options.packed = what.packed;
  options.auto_reconnect = true;
  options.layout = perf::LayoutPolicy::kAnyLayout;
  if (control == CrashControl::kFreshInflight) options.inflight = perf::InflightUse::kMakeAnew;
  if (Status booted = (*peer)->Boot(options); !booted) return std::move(booted).error();
  return peer;
}

Status CrashGuest::BootBlk(Host& host, const CrashCase& what, const CrashGuestOptions& options) {
  auto peer = Boot<Peer>(host, what, options.control);
  if (!peer) return std::move(peer).error();
  blk_ = std::move(*peer);
  port_ = std::make_unique<perf::BlkPort>(blk_->driver());
  return Ok{};
}

Status CrashGuest::BootScsi(Host& host, const CrashCase& what, const CrashGuestOptions& options) {
  auto peer = Boot<ScsiPeer>(host, what, options.control);
  if (!peer) return std::move(peer).error();
  scsi_ = std::move(*peer);
  auto attentions = scsi_->driver().ClearUnitAttentions(perf::scsi::LunOf(kTarget));
  if (!attentions) return std::move(attentions).error();
  port_ = std::make_unique<perf::ScsiPort>(scsi_->driver(), kTarget, what.block_bytes);
  return Ok{};
}

// ---- All of them

CrashRig::~CrashRig() {
  Stop();
}

Status CrashRig::Add(const CrashCase& what, CrashGuestOptions options) {
  options.load.seed = random_.Next();
  if (options.load.pause_ns == 0) options.load.pause_ns = kPauseNs;
  auto guest = CrashGuest::Make(host_, what, options);
  if (!guest) return std::move(guest).error();
  guests_.push_back(std::move(*guest));
  marks_.push_back(0);
  return Ok{};
}

Status CrashRig::Start() {
  for (const auto& guest : guests_) {
    if (Status started = guest->load().Start(); !started) return started;
  }
  return Ok{};
}

bool CrashRig::Work() {
  CrashGuest& any = *guests_[random_.Below(guests_.size())];
  if (!any.load().WaitProgress(random_.Below(kRequestsBetweenMax), kProgressTimeoutNs)) {
    if (any.load().counts().findings == 0) failures_.push_back(any.id() + " does not go on");
    return false;
  }
  poll(nullptr, 0, static_cast<int>(random_.Below(kPauseMsMax)));  // any moment is as good as any other
  for (const auto& guest : guests_) guest->load().gaps().TakeLongestNs();
  return true;
}

void CrashRig::KillEngine() {
  before_kill_();
  host_.KillEngine();
  ++engine_kills_;
  Mark();
  after_kill_();
}

void CrashRig::Mark() {
  for (size_t i = 0; i < guests_.size(); ++i) marks_[i] = guests_[i]->load().Mark();
}

// At any moment from its start until it has taken over: also in the middle of a handshake.
void CrashRig::KillSuccessor() {
  host_.StartEngine();
  poll(nullptr, 0, static_cast<int>(random_.Below(kSuccessorMsMax)));
  KillEngine();
}

bool CrashRig::WaitRecovered() {
  bool all = true;
  for (size_t i = 0; i < guests_.size(); ++i) {
    CrashGuest& guest = *guests_[i];
    if (!guest.load().WaitRecovered(marks_[i], kRecoverTimeoutNs)) {
      all = false;
      if (guest.load().counts().findings == 0) failures_.push_back(guest.id() + " did not recover in time");
    }
    guest.gaps().Record(guest.load().gaps().TakeLongestNs());
  }
  return all;
}

bool CrashRig::Do(CrashEvent event) {
  if (!Work()) return false;
  ++events_[CrashEventName(event)];
  switch (event) {
    case CrashEvent::kEngine:
      KillEngine();
      host_.StartEngine();
      break;
    case CrashEvent::kEngineAgain:
      KillEngine();
      KillSuccessor();
      host_.StartEngine();
      break;
    case CrashEvent::kCleatd:
      host_.KillCleatd();
      host_.StartCleatd();
      if (host_.WaitEngine()) return findings() == 0;
      failures_.emplace_back("the engine did not find the new cleatd");
      return false;
    case CrashEvent::kCleatdAndEngine:
      host_.KillCleatd();
      KillEngine();
      host_.StartCleatd();
      host_.StartEngine();
      break;
    case CrashEvent::kEngineAndCleatd:
      KillEngine();
      host_.KillCleatd();
      host_.StartEngine();
      host_.StartCleatd();
      break;
  }
  return WaitRecovered() && findings() == 0;
}

bool CrashRig::Do(const std::string& name, const std::function<std::string()>& event) {
  if (!Work()) return false;
  ++events_[name];
  Mark();
  const std::string failure = event();
  if (!failure.empty()) failures_.push_back(name + ": " + failure);
  return WaitRecovered() && findings() == 0;
}

bool CrashRig::DoUnnoticed(const std::string& name, const std::function<std::string()>& event) {
  if (!Work()) return false;
  ++events_[name];
  Mark();
  const std::string failure = event();
  if (!failure.empty()) failures_.push_back(name + ": " + failure);
  return WaitUnnoticed() && findings() == 0;
}

bool CrashRig::WaitUnnoticed() {
  for (size_t i = 0; i < guests_.size(); ++i) {
    CrashGuest& guest = *guests_[i];
    if (!guest.load().WaitProgress(kRequestsBetweenMax, kProgressTimeoutNs)) {
      if (guest.load().counts().findings == 0) failures_.push_back(guest.id() + " does not go on");
      return false;
    }
    if (guest.load().Mark() != marks_[i]) failures_.push_back(guest.id() + " had to connect anew");
  }
  return true;
}

// Counters tell nobody that they stand still: they are looked at a few times. Requests that do end do so in a fraction of
// kLookMs; should one take longer, the others stand still all the same.
bool CrashRig::WaitAllInFlight(CrashGuest& guest, uint64_t requests) {
  constexpr int kLookMs = 50;
  constexpr int kLooks = 3;
  const perf::Deadline deadline(kRecoverTimeoutNs);
  uint64_t answered = 0;
  for (int looks = 0; looks < kLooks; poll(nullptr, 0, kLookMs)) {
    if (deadline.passed()) return false;
    grpc::ClientContext context;
    v1::GetStatsRequest request;
    request.set_name("disks/" + guest.id());
    v1::GetStatsResponse stats;
    if (!host_.api().stub().GetStats(&context, request, &stats).ok()) return false;
    const uint64_t now = guest.load().counts().requests;
    const bool still = stats.disks_size() == 1 && stats.disks(0).in_flight() == requests && now == answered;
    answered = now;
    looks = still ? looks + 1 : 0;
  }
  return true;
}

bool CrashRig::Stop() {
  for (const auto& guest : guests_) guest->load().Stop();
  return findings() == 0;
}

uint64_t CrashRig::kills() const {
  return engine_kills_;
}

uint64_t CrashRig::findings() const {
  uint64_t count = failures_.size();
  for (const auto& guest : guests_) count += guest->load().counts().findings;
  return count;
}

std::string CrashRig::FindingsText() const {
  std::string text;
  for (const std::string& failure : failures_) text += failure + "\n";
  for (const auto& guest : guests_) {
    for (const perf::CrashFinding& finding : guest->load().findings()) {
      text += fmt::format("{}: {}: {}\n", guest->id(), perf::CrashFaultName(finding.fault), finding.text);
    }
  }
  return text;
}

std::string CrashRig::Json() const {
  perf::LatencyHistogram all;
  nlohmann::json devices = nlohmann::json::array();
  for (const auto& guest : guests_) {
    const perf::CrashLoad::Counts counts = guest->load().counts();
    all.Merge(guest->gaps());
    devices.push_back({{"name", guest->id()},
                       {"requests", counts.requests},
                       {"writes_acknowledged", counts.writes},
                       {"blocks_compared", counts.blocks_compared},
                       {"reconnects", counts.reconnects},
                       {"in_flight_at_reconnects", counts.in_flight},
                       {"findings", counts.findings},
                       {"gap_ms", GapsJson(guest->gaps())}});
  }
  nlohmann::json events = nlohmann::json::object();
  for (const auto& [event, count] : events_) events[event] = count;
  nlohmann::json found = nlohmann::json::array();
  for (const std::string& failure : failures_) found.push_back({{"fault", "host"}, {"text", failure}});
  for (const auto& guest : guests_) {
    for (const perf::CrashFinding& finding : guest->load().findings()) {
      found.push_back(
          {{"device", guest->id()}, {"fault", perf::CrashFaultName(finding.fault)}, {"text", finding.text}});
    }
  }
  const nlohmann::json json = {{"engine_kills", engine_kills_}, {"events", events},
                               {"gap_ms", GapsJson(all)},       {"devices", devices},
                               {"finding_count", findings()},   {"findings", found}};
  return json.dump(2);
}

std::string CrashRig::Summary() const {
  perf::LatencyHistogram all;
  uint64_t requests = 0;
  uint64_t in_flight = 0;
  for (const auto& guest : guests_) {
    all.Merge(guest->gaps());
    requests += guest->load().counts().requests;
    in_flight += guest->load().counts().in_flight;
  }
  return fmt::format(
      "{} kills of the engine under {} guests, {} requests, {} of them in flight at a reconnect; longest "
      "silence of a "
      "device: p50 {:.0f} ms, p99 {:.0f} ms, max {:.0f} ms; {} findings",
      engine_kills_, guests_.size(), requests, in_flight, Ms(all.PercentileNs(0.5)),
      Ms(all.PercentileNs(0.99)), Ms(all.max_ns()), findings());
}

}  // namespace cleat::system_test
