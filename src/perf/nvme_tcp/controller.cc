// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_tcp/controller.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace cleat::perf {
namespace {

constexpr uint16_t kAdminEntries = 32;
constexpr uint16_t kAdminSlots = 1;
constexpr int kReadyLookMs = 10;  // between two looks at whether the controller is ready
constexpr uint32_t kActiveMax = wire::kIdentifyBytes / sizeof(uint32_t);
constexpr const char* kHostNqnPrefix = "nqn.2014-08.org.nvmexpress:uuid:";

std::string StatusText(const NvmeAnswer& answer) {
  const char* text = "";
  switch (answer.code()) {
    case 0x001:
      text = ", invalid opcode";
      break;
    case 0x002:
      text = ", invalid field";
      break;
    case 0x00b:
      text = ", invalid namespace or format";
      break;
    case wire::kConnectBusy:
      text = ", the controller is busy";
      break;
    case wire::kConnectInvalid:
      text = ", an invalid parameter: is that the subsystem's NQN?";
      break;
    case wire::kConnectInvalidHost:
      text = ", this host may not connect: see --host-nqn";
      break;
    default:
      break;
  }
  return fmt::format("status {:#x}{}", answer.code(), text);
}

wire::NvmeCommand Fabrics(uint32_t type) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeFabrics;
  command.nsid = type;
  return command;
}

std::optional<uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

}  // namespace

std::optional<NvmeUuid> ParseUuid(std::string_view text) {
  constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != kForm.size()) return std::nullopt;
  NvmeUuid uuid{};
  size_t digits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (kForm[i] == '-') {
      if (text[i] != '-') return std::nullopt;
      continue;
    }
    const auto digit = HexDigit(text[i]);
    if (!digit) return std::nullopt;
    uint8_t& byte = uuid[digits++ / 2];
    byte = static_cast<uint8_t>(byte << 4 | *digit);
  }
  return uuid;
}

std::string UuidText(const NvmeUuid& uuid) {
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

Result<std::unique_ptr<NvmeTcpController>> NvmeTcpController::Open(const NvmeTcpOptions& options) {
  std::unique_ptr<NvmeTcpController> controller(new NvmeTcpController(options));
  if (Status status = controller->Begin(); !status) return status.error();
  return controller;
}

NvmeTcpController::~NvmeTcpController() {
  if (!keep_alive_.joinable()) return;
  [[maybe_unused]] const Status status = Stop();
}

Error NvmeTcpController::About(const Error& error) const {
  return {error.code, options_.address + ": " + error.message};
}

Status NvmeTcpController::Begin() {
  CLEAT_TRY(ResolveNames());
  CLEAT_ASSIGN(auto connection,
               NvmeTcpConnection::Open(options_.address, options_.digests, Deadline(options_.timeout_ns)));
  admin_ = std::make_unique<NvmeTcpQueue>(std::move(connection), kAdminSlots);
  CLEAT_ASSIGN(controller_id_, Connect(*admin_, 0, kAdminEntries));
  return Enable();
}

Status NvmeTcpController::ResolveNames() {
  if (options_.host_id.empty()) {
    if (getrandom(host_id_.data(), host_id_.size(), 0) != static_cast<ssize_t>(host_id_.size()))
      return ErrnoError(errno, "getrandom");
    host_id_[6] = static_cast<uint8_t>((host_id_[6] & 0x0f) | 0x40);  // RFC 4122, 4.4
    host_id_[8] = static_cast<uint8_t>((host_id_[8] & 0x3f) | 0x80);
  } else {
    const auto parsed = ParseUuid(options_.host_id);
    if (!parsed)
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("'{}' is no host identifier: a UUID is wanted", options_.host_id));
    host_id_ = *parsed;
  }
  if (options_.host_nqn.empty()) options_.host_nqn = kHostNqnPrefix + UuidText(host_id_);
  for (const std::string* name : {&options_.subsystem_nqn, &options_.host_nqn}) {
    if (name->empty() || name->size() > wire::kNqnBytesMax) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("'{}' is no NQN: it has from 1 to {} bytes", *name, wire::kNqnBytesMax));
    }
  }
  return Ok{};
}

// A command by itself; an answer that is no success is an error, named by `what`.
Result<NvmeAnswer> NvmeTcpController::Command(NvmeTcpQueue& queue, const wire::NvmeCommand& command,
                                              std::span<uint8_t> data, bool to_host, std::string_view what) {
  const MutexLock lock(commands_);
  Result<NvmeAnswer> answer = queue.Execute(command, data, to_host, Deadline(options_.timeout_ns));
  if (!answer) return About({answer.error().code, fmt::format("{}: {}", what, answer.error().message)});
  if (!answer->good())
    return About({ErrorCode::kFailedPrecondition,
                  fmt::format("the target refused {}: {}", what, StatusText(*answer))});
  return answer;
}

Result<uint16_t> NvmeTcpController::Connect(NvmeTcpQueue& queue, uint16_t number, uint16_t entries) {
  wire::NvmeCommand command = Fabrics(wire::kFabricsConnect);
  command.cdw10 = uint32_t{number} << 16;
  command.cdw11 = uint32_t{entries} - 1;
  command.cdw12 = number == 0 ? kKeepAliveMs : 0;
  wire::ConnectData data{};
  std::memcpy(data.host_id, host_id_.data(), host_id_.size());
  data.controller_id = controller_id_;
  std::memcpy(data.subsystem_nqn, options_.subsystem_nqn.data(), options_.subsystem_nqn.size());
  std::memcpy(data.host_nqn, options_.host_nqn.data(), options_.host_nqn.size());
  CLEAT_ASSIGN(auto answer, Command(queue, command, {reinterpret_cast<uint8_t*>(&data), sizeof data},
                                    /*to_host=*/false, number == 0 ? "Connect" : "Connect of an I/O queue"));
  if ((answer.result & wire::kConnectAuthentication) != 0) {
    return About(
        {ErrorCode::kUnimplemented, "the target wants authentication, which cleat-perf does not have"});
  }
  return static_cast<uint16_t>(answer.result);
}

Result<uint64_t> NvmeTcpController::GetProperty(uint32_t offset, bool eight_bytes) {
  wire::NvmeCommand command = Fabrics(wire::kFabricsPropertyGet);
  command.cdw10 = eight_bytes ? wire::kPropertyEightBytes : 0;
  command.cdw11 = offset;
  CLEAT_ASSIGN(auto answer, Command(*admin_, command, {}, /*to_host=*/false, "Property Get"));
  return answer.result;
}

Status NvmeTcpController::SetProperty(uint32_t offset, uint64_t value) {
  wire::NvmeCommand command = Fabrics(wire::kFabricsPropertySet);
  command.cdw11 = offset;
  command.cdw12 = static_cast<uint32_t>(value);
  CLEAT_TRY(Command(*admin_, command, {}, /*to_host=*/false, "Property Set"));
  return Ok{};
}

Status NvmeTcpController::Enable() {
  CLEAT_ASSIGN(const uint64_t capabilities, GetProperty(wire::kPropertyCap, true));
  CLEAT_TRY(SetProperty(wire::kPropertyConfiguration, wire::kConfigurationOn));
  const uint64_t ready_ms = std::max<uint64_t>(capabilities >> 24 & 0xff, 1) * wire::kCapTimeoutUnitMs;
  const Deadline deadline(ready_ms * kNsPerMs);
  for (;; poll(nullptr, 0, kReadyLookMs)) {
    const bool last = deadline.passed();
    CLEAT_ASSIGN(const uint64_t status, GetProperty(wire::kPropertyStatus, false));
    if ((status & wire::kStatusFatal) != 0)
      return About({ErrorCode::kIo, "the controller has a fatal error"});
    if ((status & wire::kStatusReady) != 0) break;
    if (last)
      return About(
          {ErrorCode::kDeadlineExceeded, fmt::format("the controller was not ready within {} ms", ready_ms)});
  }
  return IdentifySelf(capabilities);
}

Result<std::unique_ptr<NvmeTcpController::Identity>> NvmeTcpController::Identify(uint32_t what, uint32_t nsid,
                                                                                 std::string_view name) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeIdentify;
  command.nsid = nsid;
  command.cdw10 = what;
  auto data = std::make_unique<Identity>();
  CLEAT_TRY(Command(*admin_, command, *data, /*to_host=*/true, name));
  return data;
}

Status NvmeTcpController::IdentifySelf(uint64_t capabilities) {
  CLEAT_ASSIGN(auto data, Identify(wire::kIdentifyController, 0, "Identify Controller"));
  wire::IdentifyController self;
  std::memcpy(&self, data->data(), sizeof self);
  facts_.depth_max = static_cast<uint16_t>(
      capabilities);  // MQES is the last entry's number, and one entry of a queue stays free
  const uint32_t unit_shift =
      static_cast<uint32_t>(std::countr_zero(wire::kMdtsUnitBytes)) + (capabilities >> 48 & 0xf);
  if (self.mdts != 0 && self.mdts + unit_shift < 32)
    facts_.transfer_bytes_max = 1U << (self.mdts + unit_shift);
  const uint64_t capsule_bytes = uint64_t{self.capsule_units} * wire::kCapsuleUnitBytes;
  if (capsule_bytes < sizeof(wire::NvmeCommand)) {
    return About(
        {ErrorCode::kFailedPrecondition,
         fmt::format("the controller's I/O capsules have {} bytes, too few for a command", capsule_bytes)});
  }
  facts_.capsule_data_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(capsule_bytes - sizeof(wire::NvmeCommand), UINT32_MAX));
  facts_.deallocates = (self.oncs & wire::kOncsDatasetManagement) != 0;
  facts_.writes_zeroes = (self.oncs & wire::kOncsWriteZeroes) != 0;
  return Ok{};
}

Result<bool> NvmeTcpController::HasUuid(uint32_t nsid, const NvmeUuid& uuid) {
  CLEAT_ASSIGN(auto data,
               Identify(wire::kIdentifyDescriptors, nsid, "Identify of a namespace's descriptors"));
  for (size_t at = 0; at + wire::kDescriptorHeaderBytes + wire::kUuidBytes <= data->size();) {
    const uint8_t type = (*data)[at];
    const uint8_t length = (*data)[at + 1];
    if (length == 0) return false;
    const uint8_t* const name = data->data() + at + wire::kDescriptorHeaderBytes;
    if (type == wire::kDescriptorUuid && length == uuid.size())
      return std::equal(uuid.begin(), uuid.end(), name);
    at += wire::kDescriptorHeaderBytes + length;
  }
  return false;
}

Result<uint32_t> NvmeTcpController::FindNsid() {
  const std::string& name = options_.namespace_name;
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (!name.empty() && error == std::errc() && end == name.data() + name.size() && number != 0) return number;
  const auto uuid = ParseUuid(name);
  if (!name.empty() && !uuid) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no namespace: its number or its UUID is wanted", name));
  }
  CLEAT_ASSIGN(auto data, Identify(wire::kIdentifyActive, 0, "Identify of the namespaces"));
  std::array<uint32_t, kActiveMax> active{};
  std::memcpy(active.data(), data->data(), data->size());
  const auto count = static_cast<size_t>(std::find(active.begin(), active.end(), 0U) - active.begin());
  if (!uuid && count == 1) return active[0];
  if (!uuid) {
    return About({ErrorCode::kFailedPrecondition,
                  fmt::format("the subsystem has {} namespaces{}: give one of them with --namespace", count,
                              count == 0 ? "" : fmt::format(", from number {} on", active[0]))});
  }
  for (size_t i = 0; i < count; ++i) {
    CLEAT_ASSIGN(const bool found, HasUuid(active[i], *uuid));
    if (found) return active[i];
  }
  return About({ErrorCode::kNotFound,
                fmt::format("no namespace has the UUID {} among the {} that this host sees", name, count)});
}

Result<NvmeTcpController::Namespace> NvmeTcpController::FindNamespace() {
  CLEAT_ASSIGN(const uint32_t nsid, FindNsid());
  CLEAT_ASSIGN(auto data,
               Identify(wire::kIdentifyNamespace, nsid, fmt::format("Identify of namespace {}", nsid)));
  wire::IdentifyNamespace identity;
  std::memcpy(&identity, data->data(), sizeof identity);
  const wire::LbaFormat& format = identity.formats[(identity.format & 0xf) | (identity.format >> 1 & 0x30)];
  if (identity.blocks == 0)
    return About({ErrorCode::kNotFound, fmt::format("there is no namespace {} for this host", nsid)});
  if (format.block_shift < wire::kBlockShiftMin || format.block_shift > wire::kBlockShiftMax ||
      format.metadata_bytes != 0 || identity.blocks > (uint64_t{INT64_MAX} >> format.block_shift)) {
    return About({ErrorCode::kUnimplemented,
                  fmt::format("namespace {} has {} blocks of 2^{} bytes with {} bytes of metadata: blocks of "
                              "512 to 65536 bytes without any "
                              "are wanted",
                              nsid, identity.blocks, format.block_shift, format.metadata_bytes)});
  }
  return Namespace{.nsid = nsid,
                   .blocks = identity.blocks,
                   .block_bytes = 1U << format.block_shift,
                   .write_protected = (identity.attributes & wire::kNamespaceWriteProtected) != 0};
}

Status NvmeTcpController::ReserveQueues(uint16_t queues) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeSetFeatures;
  command.cdw10 = wire::kNvmeFeatureQueues;
  command.cdw11 = (uint32_t{queues} - 1) * 0x10001;  // of both kinds
  CLEAT_ASSIGN(auto answer,
               Command(*admin_, command, {}, /*to_host=*/false, "Set Features (number of queues)"));
  const uint64_t granted = std::min(answer.result & 0xffff, answer.result >> 16 & 0xffff) + 1;
  if (granted >= queues) return Ok{};
  return About({ErrorCode::kResourceExhausted,
                fmt::format("{} queues are wanted, the controller has {}", queues, granted)});
}

Result<std::unique_ptr<NvmeTcpQueue>> NvmeTcpController::OpenQueue(uint16_t number) {
  CLEAT_ASSIGN(auto connection,
               NvmeTcpConnection::Open(options_.address, options_.digests, Deadline(options_.timeout_ns)));
  auto queue = std::make_unique<NvmeTcpQueue>(std::move(connection), options_.depth);
  CLEAT_TRY(Connect(*queue, number, static_cast<uint16_t>(options_.depth + 1)));
  queue->set_capsule_data_bytes(facts_.capsule_data_bytes);
  return queue;
}

// ---- Afterwards.

Status NvmeTcpController::StartKeepAlive() {
  stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_) return ErrnoError(errno, "an eventfd for the keep alive");
  keep_alive_ = std::thread([this] { KeepAlive(); });
  return Ok{};
}

bool NvmeTcpController::IsAdminBroken() {
  const MutexLock lock(commands_);
  return admin_->broken();
}

// A controller that does not answer is left: its admin socket is shut down, which is what those who watch it see.
void NvmeTcpController::KeepAlive() {
  constexpr int kIntervalMs = kKeepAliveMs / 3;
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeKeepAlive;
  pollfd fd{.fd = stop_.get(), .events = POLLIN, .revents = 0};
  while (!IsAdminBroken() && poll(&fd, 1, kIntervalMs) <= 0) {
    if (const auto answer = Command(*admin_, command, {}, /*to_host=*/false, "Keep Alive"); !answer)
      shutdown(admin_socket(), SHUT_RDWR);
  }
}

Status NvmeTcpController::Stop() {
  if (keep_alive_.joinable()) {
    const uint64_t one = 1;
    CLEAT_CHECK(write(stop_.get(), &one, sizeof one) == sizeof one);
    keep_alive_.join();
  }
  // With that the target ends the association; what is still in the sockets is of no interest to anybody.
  return SetProperty(wire::kPropertyConfiguration, wire::kConfigurationOn | wire::kConfigurationShutdown);
}

}  // namespace cleat::perf
