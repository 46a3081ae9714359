// SPDX-License-Identifier: Apache-2.0
// The product's DiskFactory on one reactor, and descriptions of back ends made from the protocol's own table of kinds, so that tests
// reach those that are yet to come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "engine/disks/module_disk_factory.h"
#include "engine/protocol/codec_structs.h"
#include "reactor/reactor.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::engine {

// A disk of the protocol whose back end is of the kind of that field, with texts in its fields and zeroes in all others.
class BackendMessage {
 public:
  explicit BackendMessage(std::string_view kind, const std::map<std::string, std::string>& texts = {}) {
    const ProtobufCFieldDescriptor* field = Field(cleat__engine__v1__disk__descriptor, kind);
    const auto& descriptor = *static_cast<const ProtobufCMessageDescriptor*>(field->descriptor);
    memory_ = std::make_unique<std::max_align_t[]>(descriptor.sizeof_message / sizeof(std::max_align_t) + 1);
    auto* message = reinterpret_cast<ProtobufCMessage*>(memory_.get());
    descriptor.message_init(message);
    for (const auto& [name, text] : texts) {
      char* copy = texts_.emplace_back(std::make_unique<std::string>(text))->data();
      At<char*>(message, Field(descriptor, name)->offset) = copy;
    }
    At<uint32_t>(&disk, field->quantifier_offset) = field->id;
    At<ProtobufCMessage*>(&disk, field->offset) = message;
  }

  // The kinds that the protocol has.
  static std::vector<std::string> Kinds() {
    std::vector<std::string> kinds;
    const ProtobufCMessageDescriptor& disk = cleat__engine__v1__disk__descriptor;
    for (unsigned i = 0; i < disk.n_fields; ++i) {
      if ((disk.fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) kinds.emplace_back(disk.fields[i].name);
    }
    return kinds;
  }
  // The fields of a kind that are texts.
  static std::vector<std::string> TextsOf(std::string_view kind) {
    std::vector<std::string> names;
    const auto& message = *static_cast<const ProtobufCMessageDescriptor*>(
        Field(cleat__engine__v1__disk__descriptor, kind)->descriptor);
    for (unsigned i = 0; i < message.n_fields; ++i) {
      if (message.fields[i].type == PROTOBUF_C_TYPE_STRING) names.emplace_back(message.fields[i].name);
    }
    return names;
  }

  PbDisk disk = CLEAT__ENGINE__V1__DISK__INIT;

 private:
  template <typename Member>
  static Member& At(void* message, size_t offset) {
    return *reinterpret_cast<Member*>(static_cast<char*>(message) + offset);
  }
  static const ProtobufCFieldDescriptor* Field(const ProtobufCMessageDescriptor& message,
                                               std::string_view name) {
    const auto* field = protobuf_c_message_descriptor_get_field_by_name(&message, std::string(name).c_str());
    CLEAT_CHECK(field != nullptr);
    return field;
  }

  std::unique_ptr<std::max_align_t[]> memory_;
  std::vector<std::unique_ptr<std::string>> texts_;
};

class DiskFactoryRig : public testing::Test {
 protected:
  using Opened = Result<OpenDisk>;

  // The disk is closed again.
  Opened Open(const DiskSpec& disk, block::AccessMode mode = block::AccessMode::kReadWrite,
              bool acquires = false) {
    std::optional<Opened> opened;
    Start(OpenInto(disk, mode, &opened));
    Await(opened);
    bool acquired = !acquires || !opened->ok();
    if (!acquired) Start(AcquireInto(*opened->value().pipeline, &acquired));
    while (!acquired) reactor_->RunOnce();
    if (opened->ok()) Close(*opened->value().pipeline);
    return std::move(*opened);
  }

  // Writes a block, reads it and flushes, as a front end does. False: the disk can't be opened.
  bool OpenAndUse(const DiskSpec& disk) {
    std::optional<Opened> opened;
    Start(OpenInto(disk, block::AccessMode::kReadWrite, &opened));
    Await(opened);
    if (!opened->ok()) return false;
    block::Pipeline& pipeline = *opened->value().pipeline;
    {
      const auto channel = pipeline.OpenChannel(*reactor_);
      CLEAT_CHECK(channel.ok());
      test::Arena arena(4096);
      for (const block::Op op : {block::Op::kWrite, block::Op::kRead, block::Op::kFlush}) {
        test::Io io;
        const uint32_t length = op == block::Op::kFlush ? 0 : 4096;
        if (length > 0) io.segments = {{&arena.region(), 0, length}};
        io.Submit(*channel.value(), op, 0, length);
        while (!io.done) reactor_->RunOnce();
        EXPECT_EQ(io.status(), block::IoStatus::kOk);
      }
    }
    Close(pipeline);
    return true;
  }

 private:
  // On the reactor, as an engine does.
  void Start(Task<void> task) {
    const auto held = std::make_shared<Task<void>>(std::move(task));
    reactor_->PostCall([held] { Spawn(std::move(*held)); });
  }
  void Await(const std::optional<Opened>& opened) {
    while (!opened) reactor_->RunOnce();
  }
  void Close(block::Pipeline& pipeline) {
    bool closed = false;
    Start(CloseInto(pipeline, &closed));
    while (!closed) reactor_->RunOnce();
  }
  Task<void> OpenInto(const DiskSpec& disk, block::AccessMode mode, std::optional<Opened>* opened) {
    DiskEvents events;
    auto open = disks_.Open(disk, mode, nullptr, std::move(events));
    *opened = co_await std::move(open);
  }
  Task<void> AcquireInto(block::Pipeline& pipeline, bool* acquired) {
    auto acquire = pipeline.Acquire();
    EXPECT_TRUE(co_await std::move(acquire));
    *acquired = true;
  }
  Task<void> CloseInto(block::Pipeline& pipeline, bool* closed) {
    auto close = pipeline.Close();
    EXPECT_TRUE(co_await std::move(close));
    *closed = true;
  }

  MonotonicClock clock_;  // a disk over a network has deadlines
  std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  BlockingPool blocking_{0};
  modules::UringHub uring_;
  modules::CryptoHub crypto_;

 protected:
  MemoryStore memories_;
  keys::Keyring keyring_;

 private:
  ClusterStore clusters_;
  PathGuard paths_;
  CephDisks ceph_{{*reactor_, clusters_, keyring_, blocking_, paths_}, "engine-0", {}};
  nvmf::LoginLine logins_{0};
  nvmf::RdmaAdapters adapters_{*reactor_};
  modules::RdmaPorts rdma_{adapters_};
  ModuleDiskFactory disks_{memories_, uring_, crypto_, keyring_, blocking_, logins_, rdma_, ceph_, paths_};
};

}  // namespace cleat::engine
