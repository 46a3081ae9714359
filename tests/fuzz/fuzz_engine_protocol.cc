// SPDX-License-Identifier: Apache-2.0
// Whatever comes on the engine's command socket: protobuf-c's parser and the checks behind it. The input is one
// datagram. Nothing may crash or leak; what is refused says why; what is taken keeps the bounds that the
// engine relies on, and comes out the same when it is reported and read again.
#include <cleat/engine/v1/engine.pb-c.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log_request.h"
#include "engine/protocol/codec.h"

namespace cleat::engine {
namespace {

struct Free {
  void operator()(Cleat__Engine__V1__Envelope* envelope) const {
    cleat__engine__v1__envelope__free_unpacked(envelope, nullptr);
  }
};

void CheckReadable(const std::vector<uint8_t>& bytes) {
  CLEAT_CHECK(bytes.size() <= kMessageBytesMax);
  const std::unique_ptr<Cleat__Engine__V1__Envelope, Free> read(
      cleat__engine__v1__envelope__unpack(nullptr, bytes.size(), bytes.data()));
  CLEAT_CHECK(read != nullptr);
}

void Check(const PutControllerMessage& message) {
  ControllerReport report;
  report.spec = message.controller;
  CheckReadable(EncodeController(report));
  CheckReadable(EncodeControllerGone(message.controller.name));
  for (const auto& part : EncodeInventory({report, report}, {}, {}, {}, {})) CheckReadable(part);
}

void Check(const AttachMessage& message) {
  AttachmentReport report;
  report.spec = message.attachment;
  CheckReadable(EncodeAttachment(report));
  CheckReadable(EncodeAttachmentGone(message.attachment.controller, message.attachment.target));
  for (const auto& part : EncodeInventory({}, {report, report}, {}, {}, {})) CheckReadable(part);
}

void Check(const KeepMemoryMessage& message) {
  for (const auto& part : EncodeInventory({}, {}, {message.memory}, {}, {})) CheckReadable(part);
}

void Check(const PutGroupMessage& message) {
  for (const auto& part : EncodeInventory({}, {}, {}, {message.group, message.group}, {}))
    CheckReadable(part);
}

void Check(const PutClusterMessage& message) {
  for (const auto& part : EncodeInventory({}, {}, {}, {}, {message.cluster, message.cluster}))
    CheckReadable(part);
}

void Run(std::span<const uint8_t> bytes) {
  const uint64_t id = DecodeId(bytes);
  const auto incoming = Decode(bytes);
  if (!incoming) {
    CLEAT_CHECK(!incoming.error().message.empty());
    CheckReadable(EncodeReply(id, incoming.error()));
    return;
  }
  CLEAT_CHECK(incoming->id == id);
  CLEAT_CHECK(incoming->request.empty() || log::IsRequestId(incoming->request));
  if (const auto* put = std::get_if<PutControllerMessage>(&incoming->body)) Check(*put);
  if (const auto* attach = std::get_if<AttachMessage>(&incoming->body)) Check(*attach);
  if (const auto* group = std::get_if<PutGroupMessage>(&incoming->body)) Check(*group);
  if (const auto* cluster = std::get_if<PutClusterMessage>(&incoming->body)) Check(*cluster);
  if (const auto* keep = std::get_if<KeepMemoryMessage>(&incoming->body)) Check(*keep);
}

}  // namespace
}  // namespace cleat::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size <= cleat::engine::kMessageBytesMax) cleat::engine::Run({data, size});
  return 0;
}
