// SPDX-License-Identifier: Apache-2.0
// A host with a real Ceph cluster behind it: cleatd, an engine, the cluster made known, and guests played by src/perf.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tests/ceph/mini_ceph.h"
#include "tests/system/expect_ok.h"
#include "tests/system/host.h"
#include "tests/system/peer.h"

namespace cleat::system_test {
using test::MiniCeph;
using test::Stopped;

inline constexpr uint64_t kDiskBytes = uint64_t{32} << 20;

inline v1::DiskSpec Rbd(const std::string& image, uint64_t size_bytes = kDiskBytes,
                        const std::string& cluster = "clusters/ceph") {
  v1::DiskSpec spec;
  spec.set_size_bytes(size_bytes);
  spec.mutable_rbd()->set_cluster(cluster);
  spec.mutable_rbd()->set_pool("rbd");
  spec.mutable_rbd()->set_image(image);
  return spec;
}

// Makes the cluster known to the host, as the user "cleat".
inline grpc::Status CreateClusterOn(Host& host, const MiniCeph& ceph, const std::string& id,
                                    const std::string& key) {
  v1::CreateClusterRequest request;
  request.set_cluster_id(id);
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.set_monitors(ceph.Monitors());
  spec.set_user("cleat");
  spec.set_plain_key(key);
  grpc::ClientContext context;
  v1::Cluster cluster;
  grpc::Status status = host.api().stub().CreateCluster(&context, request, &cluster);
  EXPECT_EQ(cluster.SerializeAsString().find(key), std::string::npos);
  return status;
}

class RbdHostTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    ASSERT_OK(CreateCluster("ceph", ceph_.Key("cleat")));
  }

  grpc::Status CreateCluster(const std::string& id, const std::string& key, Host* host = nullptr) {
    return CreateClusterOn(host != nullptr ? *host : host_, ceph_, id, key);
  }

  // What `rbd export` writes.
  std::string Export(const std::string& image) {
    const std::string command = fmt::format("rbd -c {} export rbd/{} - 2>/dev/null", ceph_.conf(), image);
    FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): our own command
    EXPECT_NE(pipe, nullptr);
    if (pipe == nullptr) return {};
    std::string content;
    std::vector<char> chunk(uint64_t{1} << 20);
    while (const size_t count = fread(chunk.data(), 1, chunk.size(), pipe))
      content.append(chunk.data(), count);
    EXPECT_EQ(pclose(pipe), 0) << command;
    return content;
  }

  static std::vector<uint8_t> ReadAll(Peer& peer, uint64_t bytes) {
    constexpr uint64_t kStep = uint64_t{1} << 20;
    std::vector<uint8_t> content(bytes);
    for (uint64_t at = 0; at < bytes; at += kStep) {
      EXPECT_OK(peer.driver().ReadSync(at, std::span(content).subspan(at, std::min(kStep, bytes - at))));
    }
    return content;
  }

  v1::Attachment WaitState(Host& host, const std::string& id, v1::AttachmentState state,
                           const std::string& message = {}) {
    v1::Attachment seen;
    const bool there = host.api().WaitUntil([&](const Model& model) {
      const auto found = model.attachments.find(fmt::format("controllers/{}/attachments/{}", id, id));
      if (found == model.attachments.end()) return false;
      seen = found->second;
      return seen.status().state() == state && seen.status().message().find(message) != std::string::npos;
    });
    EXPECT_TRUE(there) << id << " is " << seen.status().ShortDebugString() << ", waited for " << message;
    return seen;
  }

  // A disk and a controller of that id, attached; READY or not.
  void AttachAnyhow(Host& host, const std::string& id, const v1::DiskSpec& spec, bool read_only = false) {
    ASSERT_OK(host.api().CreateDisk(id, spec));
    ASSERT_OK(host.api().CreateController(id, BlkController(host.SocketPath(id))));
    ASSERT_OK(host.api().Attach(id, id, read_only));
  }

  MiniCeph& ceph_ = MiniCeph::Shared();
  Host host_{{.with_keys = true, .cleatd_arguments = {"--metrics-address", "127.0.0.1:0"}}};
};

}  // namespace cleat::system_test
