// SPDX-License-Identifier: Apache-2.0
#include "engine/codec.h"

#include <cleat/engine/v1/engine.pb-c.h>

#include <cstring>
#include <deque>
#include <memory>
#include <utility>

// protobuf-c's optional scalars come in pairs.
#define SET(message, field, value) ((message).has_##field = 1, (message).field = (value))

namespace cleat::engine {
namespace {

using PbEnvelope = Cleat__Engine__V1__Envelope;
using PbDisk = Cleat__Engine__V1__Disk;
using PbController = Cleat__Engine__V1__Controller;
using PbAttachment = Cleat__Engine__V1__Attachment;
using PbMemory = Cleat__Engine__V1__Memory;
using PbControllerStatus = Cleat__Engine__V1__ControllerStatus;
using PbAttachmentStatus = Cleat__Engine__V1__AttachmentStatus;

char* Text(const std::string& text) {
  return const_cast<char*>(text.c_str());
}  // protobuf-c does not write to it

// ---- Packing. A Packer holds what the protobuf-c structs of one message point to; deques keep addresses.
class Packer {
 public:
  PbController* Add(const ControllerSpec& spec) {
    PbController& out = controllers_.emplace_back();
    cleat__engine__v1__controller__init(&out);
    out.name = Text(spec.name);
    SET(out, type,
        spec.type == ControllerType::kScsi ? CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_SCSI
                                           : CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK);
    out.socket_path = Text(spec.socket_path);
    SET(out, socket_mode,
        spec.socket_mode == SocketMode::kClient ? CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT
                                                : CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_SERVER);
    SET(out, queues, spec.queues);
    SET(out, revision, spec.revision);
    return &out;
  }

  PbControllerStatus* Add(const ControllerReport& report) {
    PbControllerStatus& out = controller_statuses_.emplace_back();
    cleat__engine__v1__controller_status__init(&out);
    out.controller = Add(report.spec);
    SET(out, state, StateOf(report.state));
    out.message = Text(report.message);
    SET(out, rings_up, report.rings_up);
    SET(out, connections, report.connections);
    return &out;
  }

  PbDisk* Add(const DiskSpec& spec) {
    PbDisk& out = disks_.emplace_back();
    cleat__engine__v1__disk__init(&out);
    out.name = Text(spec.name);
    SET(out, size_bytes, spec.size_bytes);
    SET(out, logical_block_bytes, spec.logical_block_bytes);
    SET(out, physical_block_bytes, spec.physical_block_bytes);
    out.serial = Text(spec.serial);
    SET(out, wwn, spec.wwn);
    if (const auto* file = std::get_if<FileBackend>(&spec.backend)) {
      cleat__engine__v1__file_backend__init(&files_.emplace_back());
      files_.back().path = Text(file->path);
      out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_FILE;
      out.file = &files_.back();
    } else if (std::holds_alternative<MemoryBackend>(spec.backend)) {
      out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_MEMORY;
      out.memory = &memory_backend_;
    } else {
      auto& null = nulls_.emplace_back();
      cleat__engine__v1__null_backend__init(&null);
      SET(null, skip_reads, std::get<NullBackend>(spec.backend).skip_reads);
      out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_NULL;
      out.null = &null;
    }
    if (spec.fault) {
      auto& fault = faults_.emplace_back();
      cleat__engine__v1__fault_plan__init(&fault);
      SET(fault, seed, spec.fault->seed);
      SET(fault, delay_ns_max, spec.fault->delay_ns_max);
      SET(fault, fail_per_million, spec.fault->fail_per_million);
      out.fault = &fault;
    }
    return &out;
  }

  PbAttachmentStatus* Add(const AttachmentReport& report) {
    PbAttachment& attachment = attachments_.emplace_back();
    cleat__engine__v1__attachment__init(&attachment);
    attachment.controller = Text(report.spec.controller);
    SET(attachment, target, report.spec.target);
    attachment.disk = Add(report.spec.disk);
    SET(attachment, read_only, report.spec.read_only);
    SET(attachment, revision, report.spec.revision);
    PbAttachmentStatus& out = attachment_statuses_.emplace_back();
    cleat__engine__v1__attachment_status__init(&out);
    out.attachment = &attachment;
    SET(out, state, StateOf(report.state));
    out.message = Text(report.message);
    return &out;
  }

  PbMemory* Add(const MemoryReport& report) {
    PbMemory& out = memories_.emplace_back();
    cleat__engine__v1__memory__init(&out);
    out.disk = Text(report.disk);
    SET(out, size_bytes, report.size_bytes);
    return &out;
  }

 private:
  static Cleat__Engine__V1__ControllerState StateOf(ControllerState state) {
    return static_cast<Cleat__Engine__V1__ControllerState>(static_cast<int>(state) + 1);
  }
  static Cleat__Engine__V1__AttachmentState StateOf(AttachmentState state) {
    return static_cast<Cleat__Engine__V1__AttachmentState>(static_cast<int>(state) + 1);
  }

  std::deque<PbController> controllers_;
  std::deque<PbControllerStatus> controller_statuses_;
  std::deque<PbDisk> disks_;
  std::deque<Cleat__Engine__V1__FileBackend> files_;
  std::deque<Cleat__Engine__V1__NullBackend> nulls_;
  std::deque<Cleat__Engine__V1__FaultPlan> faults_;
  std::deque<PbAttachment> attachments_;
  std::deque<PbAttachmentStatus> attachment_statuses_;
  std::deque<PbMemory> memories_;
  Cleat__Engine__V1__MemoryBackend memory_backend_ = CLEAT__ENGINE__V1__MEMORY_BACKEND__INIT;
};

// The reports' enums follow the protocol's order, one lower: see Packer::StateOf.
static_assert(static_cast<int>(ControllerState::kIdle) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_STATE__CONTROLLER_STATE_IDLE);
static_assert(static_cast<int>(ControllerState::kClosing) + 1 ==
              CLEAT__ENGINE__V1__CONTROLLER_STATE__CONTROLLER_STATE_CLOSING);
static_assert(static_cast<int>(AttachmentState::kOpening) + 1 ==
              CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_OPENING);
static_assert(static_cast<int>(AttachmentState::kClosing) + 1 ==
              CLEAT__ENGINE__V1__ATTACHMENT_STATE__ATTACHMENT_STATE_CLOSING);

std::vector<uint8_t> Pack(const PbEnvelope& envelope) {
  std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
  cleat__engine__v1__envelope__pack(&envelope, bytes.data());
  CLEAT_CHECK(bytes.size() <= kMessageBytesMax);
  return bytes;
}

PbEnvelope EmptyEnvelope() {
  PbEnvelope envelope;
  cleat__engine__v1__envelope__init(&envelope);
  return envelope;
}

// ---- Unpacking
Error Malformed(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "engine protocol: " + what};
}

constexpr size_t kTextBytesMax = 4096;

Result<std::string> TextOf(const char* text, const char* field) {
  if (text == nullptr) return Malformed(std::string(field) + " is missing");
  std::string copy(text);
  if (copy.size() > kTextBytesMax) return Malformed(std::string(field) + " is too long");
  return copy;
}

// On the wire an enumeration is any number, and protobuf-c stores it as it comes; C++ may not even look at one that is no
// enumerator as such.
template <typename Enumeration>
uint32_t NumberOf(const Enumeration& value) {
  static_assert(sizeof(Enumeration) == sizeof(uint32_t));
  uint32_t number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

Result<ControllerSpec> ControllerOf(const PbController* in) {
  if (in == nullptr) return Malformed("a controller is missing");
  ControllerSpec spec;
  auto name = TextOf(in->name, "controller.name");
  if (!name) return std::move(name).error();
  spec.name = std::move(name).value();
  switch (NumberOf(in->type)) {
    case CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK:
      spec.type = ControllerType::kBlk;
      break;
    case CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_SCSI:
      spec.type = ControllerType::kScsi;
      break;
    default:
      return Error(ErrorCode::kUnimplemented,
                   spec.name + ": this engine knows controllers of the types blk and scsi only");
  }
  auto path = TextOf(in->socket_path, "controller.socket_path");
  if (!path) return std::move(path).error();
  spec.socket_path = std::move(path).value();
  switch (NumberOf(in->socket_mode)) {
    case CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_CLIENT:
      spec.socket_mode = SocketMode::kClient;
      break;
    case CLEAT__ENGINE__V1__SOCKET_MODE__SOCKET_MODE_SERVER:
      spec.socket_mode = SocketMode::kServer;
      break;
    default:
      return Malformed(spec.name + ": unknown socket mode");
  }
  spec.queues = in->queues;
  spec.revision = in->revision;
  return spec;
}

Result<DiskSpec> DiskOf(const PbDisk* in) {
  if (in == nullptr) return Malformed("a disk is missing");
  DiskSpec spec;
  auto name = TextOf(in->name, "disk.name");
  if (!name) return std::move(name).error();
  spec.name = std::move(name).value();
  spec.size_bytes = in->size_bytes;
  if (in->has_logical_block_bytes) spec.logical_block_bytes = in->logical_block_bytes;
  spec.physical_block_bytes =
      in->has_physical_block_bytes ? in->physical_block_bytes : spec.logical_block_bytes;
  if (in->serial != nullptr) spec.serial = in->serial;
  spec.wwn = in->wwn;
  switch (in->backend_case) {
    case CLEAT__ENGINE__V1__DISK__BACKEND_NULL:
      spec.backend = NullBackend{.skip_reads = in->null->skip_reads != 0};
      break;
    case CLEAT__ENGINE__V1__DISK__BACKEND_MEMORY:
      spec.backend = MemoryBackend{};
      break;
    case CLEAT__ENGINE__V1__DISK__BACKEND_FILE: {
      auto path = TextOf(in->file->path, "disk.file.path");
      if (!path) return std::move(path).error();
      spec.backend = FileBackend{std::move(path).value()};
      break;
    }
    default:
      return Error(ErrorCode::kUnimplemented, spec.name + ": this engine does not know its kind of back end");
  }
  if (in->fault != nullptr) {
    spec.fault = FaultSpec{in->fault->seed, in->fault->delay_ns_max, in->fault->fail_per_million};
  }
  return spec;
}

Result<AttachmentSpec> AttachmentOf(const PbAttachment* in) {
  if (in == nullptr) return Malformed("an attachment is missing");
  AttachmentSpec spec;
  auto controller = TextOf(in->controller, "attachment.controller");
  if (!controller) return std::move(controller).error();
  spec.controller = std::move(controller).value();
  auto disk = DiskOf(in->disk);
  if (!disk) return std::move(disk).error();
  spec.disk = std::move(disk).value();
  spec.target = in->target;
  spec.read_only = in->read_only != 0;
  spec.revision = in->revision;
  return spec;
}

// A message that is one text field.
template <typename Message>
Result<Incoming> OneText(uint64_t id, const char* text, const char* field) {
  auto value = TextOf(text, field);
  if (!value) return std::move(value).error();
  Incoming incoming;
  incoming.id = id;
  incoming.body = Message{std::move(value).value()};
  return incoming;
}

template <typename Message, typename Value>
Result<Incoming> OneValue(uint64_t id, Result<Value> value) {
  if (!value) return std::move(value).error();
  Incoming incoming;
  incoming.id = id;
  incoming.body = Message{std::move(value).value()};
  return incoming;
}

Result<Incoming> FromEnvelope(const PbEnvelope& in) {
  switch (in.body_case) {
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_HELLO_REPLY: {
      HelloReplyMessage reply;
      reply.protocol = in.hello_reply->protocol;
      if (in.hello_reply->refusal != nullptr) reply.refusal = in.hello_reply->refusal;
      return Incoming{in.id, reply};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER:
      return OneValue<PutControllerMessage>(in.id, ControllerOf(in.put_controller->controller));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DELETE_CONTROLLER:
      return OneText<DeleteControllerMessage>(in.id, in.delete_controller->name, "delete_controller.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_ATTACH:
      return OneValue<AttachMessage>(in.id, AttachmentOf(in.attach->attachment));
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DETACH: {
      auto controller = TextOf(in.detach->controller, "detach.controller");
      if (!controller) return std::move(controller).error();
      return Incoming{in.id, DetachMessage{std::move(controller).value(), in.detach->target}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_KEEP_MEMORY: {
      if (in.keep_memory->memory == nullptr) return Malformed("keep_memory.memory is missing");
      auto disk = TextOf(in.keep_memory->memory->disk, "keep_memory.memory.disk");
      if (!disk) return std::move(disk).error();
      return Incoming{in.id,
                      KeepMemoryMessage{{std::move(disk).value(), in.keep_memory->memory->size_bytes}}};
    }
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_DROP_MEMORY:
      return OneText<DropMemoryMessage>(in.id, in.drop_memory->disk, "drop_memory.disk");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_FETCH_MEMORY:
      return OneText<FetchMemoryMessage>(in.id, in.fetch_memory->disk, "fetch_memory.disk");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_SERVE_CONTROLLER:
      return OneText<ServeControllerMessage>(in.id, in.serve_controller->name, "serve_controller.name");
    case CLEAT__ENGINE__V1__ENVELOPE__BODY_RESIZE_DISK: {
      auto disk = TextOf(in.resize_disk->disk, "resize_disk.disk");
      if (!disk) return std::move(disk).error();
      return Incoming{in.id, ResizeDiskMessage{{std::move(disk).value(), in.resize_disk->size_bytes}}};
    }
    default:
      return Error(ErrorCode::kUnimplemented, "engine protocol: this engine does not know such a message");
  }
}

struct FreeEnvelope {
  void operator()(PbEnvelope* envelope) const {
    cleat__engine__v1__envelope__free_unpacked(envelope, nullptr);
  }
};
using EnvelopePtr = std::unique_ptr<PbEnvelope, FreeEnvelope>;

EnvelopePtr Unpack(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMessageBytesMax) return nullptr;
  return EnvelopePtr(cleat__engine__v1__envelope__unpack(nullptr, bytes.size(), bytes.data()));
}

std::vector<uint8_t> PackEvent(Cleat__Engine__V1__StatusEvent& event) {
  PbEnvelope envelope = EmptyEnvelope();
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_STATUS_EVENT;
  envelope.status_event = &event;
  return Pack(envelope);
}

Cleat__Engine__V1__StatusEvent EmptyEvent() {
  Cleat__Engine__V1__StatusEvent event;
  cleat__engine__v1__status_event__init(&event);
  return event;
}

// Messages for people can be long (they carry paths); a report must fit a datagram with room to spare.
constexpr size_t kReportMessageBytesMax = 2048;

}  // namespace

Result<Incoming> Decode(std::span<const uint8_t> bytes) {
  const EnvelopePtr envelope = Unpack(bytes);
  if (envelope == nullptr) {
    return Malformed("a message of " + std::to_string(bytes.size()) + " bytes can't be read");
  }
  return FromEnvelope(*envelope);
}

uint64_t DecodeId(std::span<const uint8_t> bytes) {
  const EnvelopePtr envelope = Unpack(bytes);
  return envelope == nullptr ? 0 : envelope->id;
}

std::vector<uint8_t> EncodeHello(const HelloMessage& hello) {
  Cleat__Engine__V1__Hello out = CLEAT__ENGINE__V1__HELLO__INIT;
  SET(out, protocol_min, kProtocolMin);
  SET(out, protocol_max, kProtocolMax);
  out.engine = Text(hello.engine);
  out.version = Text(hello.version);
  SET(out, incarnation, hello.incarnation);
  SET(out, reactors, hello.reactors);
  SET(out, controllers_max, kControllersMax);
  PbEnvelope envelope = EmptyEnvelope();
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_HELLO;
  envelope.hello = &out;
  return Pack(envelope);
}

std::vector<uint8_t> EncodeReply(uint64_t id, const Status& status) {
  Cleat__Engine__V1__Reply out = CLEAT__ENGINE__V1__REPLY__INIT;
  SET(out, ok, status.ok());
  std::string code;
  std::string message;
  if (!status.ok()) {
    code = ErrorCodeName(status.error().code);
    message = status.error().message.substr(0, kReportMessageBytesMax);
    out.code = Text(code);
    out.message = Text(message);
  }
  PbEnvelope envelope = EmptyEnvelope();
  SET(envelope, id, id);
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_REPLY;
  envelope.reply = &out;
  return Pack(envelope);
}

std::vector<std::vector<uint8_t>> EncodeInventory(const std::vector<ControllerReport>& controllers,
                                                  const std::vector<AttachmentReport>& attachments,
                                                  const std::vector<MemoryReport>& memories) {
  // A report is at most ~10 KiB (two paths of 4 KiB at the very worst), so that four always fit.
  constexpr size_t kReportsAChunk = 4;
  std::vector<std::vector<uint8_t>> messages;
  size_t c = 0;
  size_t a = 0;
  size_t m = 0;
  bool last = false;
  while (!last) {
    Packer packer;
    std::vector<PbControllerStatus*> some_controllers;
    std::vector<PbAttachmentStatus*> some_attachments;
    std::vector<PbMemory*> some_memories;
    size_t room = kReportsAChunk;
    for (; room > 0 && c < controllers.size(); --room)
      some_controllers.push_back(packer.Add(controllers[c++]));
    for (; room > 0 && a < attachments.size(); --room)
      some_attachments.push_back(packer.Add(attachments[a++]));
    for (; room > 0 && m < memories.size(); --room) some_memories.push_back(packer.Add(memories[m++]));
    last = c == controllers.size() && a == attachments.size() && m == memories.size();

    Cleat__Engine__V1__Inventory out = CLEAT__ENGINE__V1__INVENTORY__INIT;
    out.n_controllers = some_controllers.size();
    out.controllers = some_controllers.data();
    out.n_attachments = some_attachments.size();
    out.attachments = some_attachments.data();
    out.n_memories = some_memories.size();
    out.memories = some_memories.data();
    SET(out, last, last);
    PbEnvelope envelope = EmptyEnvelope();
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_INVENTORY;
    envelope.inventory = &out;
    messages.push_back(Pack(envelope));
  }
  return messages;
}

std::vector<uint8_t> EncodeController(const ControllerReport& report) {
  Packer packer;
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_CONTROLLER;
  event.controller = packer.Add(report);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeControllerGone(const std::string& name) {
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_CONTROLLER_GONE;
  event.controller_gone = Text(name);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeAttachment(const AttachmentReport& report) {
  Packer packer;
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_ATTACHMENT;
  event.attachment = packer.Add(report);
  return PackEvent(event);
}

std::vector<uint8_t> EncodeAttachmentGone(const std::string& controller, uint32_t target) {
  Cleat__Engine__V1__AttachmentKey key = CLEAT__ENGINE__V1__ATTACHMENT_KEY__INIT;
  key.controller = Text(controller);
  SET(key, target, target);
  auto event = EmptyEvent();
  event.what_case = CLEAT__ENGINE__V1__STATUS_EVENT__WHAT_ATTACHMENT_GONE;
  event.attachment_gone = &key;
  return PackEvent(event);
}

}  // namespace cleat::engine
