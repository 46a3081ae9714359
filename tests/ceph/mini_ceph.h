// SPDX-License-Identifier: Apache-2.0
// A real Ceph cluster for a test: one monitor and one OSD as processes of its own (mini_ceph.sh), and an administrator
// who makes images, looks at them and changes them behind the module's back. It goes when this does, or when the test's
// process dies.
#pragma once

#include <rados/librados.h>
#include <rbd/librbd.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "modules/rbd/rbd_cluster.h"

namespace cleat::test {

class MiniCeph {
 public:
  explicit MiniCeph(const std::string& store = "memstore");
  ~MiniCeph();
  MiniCeph(const MiniCeph&) = delete;
  MiniCeph& operator=(const MiniCeph&) = delete;

  // One for the whole program. Tests that stop its daemons let them go on again.
  static MiniCeph& Shared();

  const std::string& folder() const { return folder_; }
  std::string conf() const { return folder_ + "/ceph.conf"; }
  std::string Monitors() const;
  std::string Key(const std::string& user) const;

  // As the user "cleat", who has the capabilities that docs/ceph.md asks for.
  std::shared_ptr<modules::ClusterOptions> Cluster(const std::string& name = "clusters/c") const;

  // ---- The daemons: "mon.a", "osd.0"
  pid_t Pid(const std::string& daemon) const;
  void Signal(const std::string& daemon, int signal) const;
  void Restart() const;  // what was killed; bluestore only

  // ---- The administrator, who waits for the cluster
  void CreateImage(const std::string& name, uint64_t bytes, const std::string& name_space = "");
  void CreateImageWithout(const std::string& name, uint64_t bytes, uint64_t features_left_out);
  void RemoveImage(const std::string& name);
  void CreateNamespace(const std::string& name);
  void Snapshot(const std::string& image, const std::string& snapshot);
  int Resize(const std::string& image, uint64_t bytes);
  void SetMetadata(const std::string& image, const std::string& key, const std::string& value);
  std::vector<std::string> MetadataKeys(const std::string& image);
  std::vector<uint8_t> ReadAll(const std::string& image);
  std::string MonCommand(const std::string& json);
  void SetOfOsd(const std::string& name, const std::string& value);  // one of its settings, at once
  // The OSD takes itself for full from now on, or sees again what is true. When the monitors know of its pools, which is within seconds.
  void SetFull(bool full);
  uint32_t BlocklistedCount();
  // Shuts the client out that has the image's exclusive lock.
  void BlocklistOwnerOf(const std::string& image);
  rados_t admin() const { return admin_; }
  rados_ioctx_t io() const { return io_; }
  std::string HeaderOf(const std::string& image);

 private:
  std::string Script(const std::string& arguments) const;
  void OsdCommand(const std::string& json);
  rbd_image_t Open(const std::string& image);
  std::string folder_;
  std::string store_;
  rados_t admin_ = nullptr;
  rados_ioctx_t io_ = nullptr;
};

// SIGSTOP; returns when none of its threads runs any more.
void StopProcess(pid_t pid);

// SIGSTOP for as long as it lives.
class Stopped {
 public:
  Stopped(const MiniCeph& ceph, std::string daemon);
  ~Stopped();
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  const MiniCeph& ceph_;
  const std::string daemon_;
};

}  // namespace cleat::test
