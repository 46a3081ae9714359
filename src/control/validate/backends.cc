// SPDX-License-Identifier: Apache-2.0
#include "control/validate/backends.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/build_options.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/doubt/doubt_log.h"

namespace cleat::control {
namespace {

// A kind of back end: what backends.h says of a spec, for specs of that kind. A kind that leaves a question open does not compile.
class BackendKind {
 public:
  virtual ~BackendKind() = default;
  virtual Status Complete(std::string_view disk, v1::DiskSpec* spec) const = 0;
  virtual std::optional<StorageClaim> Claim(const v1::DiskSpec& spec) const = 0;
  virtual const std::string& File(const v1::DiskSpec& spec) const = 0;
  // Null: disks of this kind are in none.
  virtual const std::string* Cluster(const v1::DiskSpec& spec) const = 0;
  virtual KeptMemory Keeps(const v1::DiskSpec& spec) const = 0;
  virtual bool GrowsInEngine() const = 0;
  virtual std::string WhyReadOnly(const v1::DiskSpec& spec) const = 0;
  virtual std::string WhyItStays(bool has_reservations) const = 0;
  virtual void Put(const DiskRow& row, bool path_checked, engine::v1::Disk* disk) const = 0;
};

const std::string& Nothing() {
  static const std::string nothing;
  return nothing;
}

Error InvalidBackend(std::string_view disk, std::string_view field, const std::string& why) {
  return RefuseFor(disk, v1::REASON_INVALID_FIELD, fmt::format("{}: {} {}", disk, field, why),
                   {{"field", fmt::format("spec.{}", field)}});
}

// ---- none

class NoKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* /*spec*/) const override {
    return RefuseFor(disk, v1::REASON_INVALID_FIELD,
                     fmt::format("{}: no back end: set one of {}", disk, fmt::join(Names(), ", ")),
                     {{"field", "spec.backend"}});
  }
  std::optional<StorageClaim> Claim(const v1::DiskSpec& /*spec*/) const override { return std::nullopt; }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override { return {}; }
  void Put(const DiskRow& /*row*/, bool /*path_checked*/, engine::v1::Disk* /*disk*/) const override {}

 private:
  static std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto* backend = v1::DiskSpec::descriptor()->FindOneofByName("backend");
    for (int i = 0; i < backend->field_count(); ++i) {
      const bool offered = kExampleDisks || backend->field(i)->number() != v1::DiskSpec::kExampleFieldNumber;
      if (offered) names.push_back(backend->field(i)->name());
    }
    return names;
  }
};

// ---- null: nothing is stored

class NullKind final : public BackendKind {
 public:
  Status Complete(std::string_view /*disk*/, v1::DiskSpec* /*spec*/) const override { return Ok{}; }
  std::optional<StorageClaim> Claim(const v1::DiskSpec& /*spec*/) const override { return std::nullopt; }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override { return {}; }
  void Put(const DiskRow& row, bool /*path_checked*/, engine::v1::Disk* disk) const override {
    disk->mutable_null()->set_skip_reads(row.spec.null().skip_reads());
  }
};

// ---- memory: of this host, kept under the disk's name

class MemoryKind final : public BackendKind {
 public:
  Status Complete(std::string_view /*disk*/, v1::DiskSpec* /*spec*/) const override { return Ok{}; }
  std::optional<StorageClaim> Claim(const v1::DiskSpec& /*spec*/) const override { return std::nullopt; }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kContent; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override {
    return "is memory, which a VM can't migrate with";
  }
  void Put(const DiskRow& /*row*/, bool /*path_checked*/, engine::v1::Disk* disk) const override {
    disk->mutable_memory();
  }
};

// ---- file: a regular file or a block device

class FileKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* spec) const override {
    CLEAT_ASSIGN(auto path, CompletePath(disk, "file.path", spec->file().path(), kFilePathBytesMax));
    spec->mutable_file()->set_path(path);
    return Ok{};
  }
  std::optional<StorageClaim> Claim(const v1::DiskSpec& spec) const override {
    return StorageClaim{.noun = "file",
                        .with_an = "a file",
                        .which = spec.file().path(),
                        .when_taken = v1::REASON_FILE_TAKEN};
  }
  const std::string& File(const v1::DiskSpec& spec) const override { return spec.file().path(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override { return {}; }
  void Put(const DiskRow& row, bool path_checked, engine::v1::Disk* disk) const override {
    disk->mutable_file()->set_path(row.spec.file().path());
    if (path_checked) disk->mutable_file()->set_path_checked(true);
  }
};

// ---- rbd: an image of a Ceph cluster

class RbdKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* spec) const override;
  std::optional<StorageClaim> Claim(const v1::DiskSpec& spec) const override {
    const v1::RbdBackend& rbd = spec.rbd();
    // None of the parts has a slash in it but the cluster's name, and no space.
    return StorageClaim{.noun = "image",
                        .with_an = "an image",
                        .which = fmt::format("{} {}/{}/{}@{}", rbd.cluster(), rbd.pool(), rbd.name_space(),
                                             rbd.image(), rbd.snapshot()),
                        .when_taken = v1::REASON_IMAGE_TAKEN};
  }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& spec) const override { return &spec.rbd().cluster(); }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return true; }
  std::string WhyReadOnly(const v1::DiskSpec& spec) const override {
    if (spec.rbd().snapshot().empty()) return {};
    return fmt::format("is the snapshot '{}' of image '{}', which nobody can write", spec.rbd().snapshot(),
                       spec.rbd().image());
  }
  std::string WhyItStays(bool /*has_reservations*/) const override { return {}; }
  void Put(const DiskRow& row, bool path_checked, engine::v1::Disk* disk) const override;

 private:
  static Status CheckPart(std::string_view disk, std::string_view field, const std::string& name);
};

// Of a pool, namespace, image or snapshot, as rbd's own POOL/NAMESPACE/IMAGE@SNAPSHOT can be read.
Status RbdKind::CheckPart(std::string_view disk, std::string_view field, const std::string& name) {
  const bool printable =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c != 0x7f; });
  if (printable && name.size() <= kCephNameBytesMax && name.find_first_of("/@") == std::string::npos)
    return Ok{};
  return InvalidBackend(
      disk, field,
      fmt::format("is no name of Ceph's: at most {} bytes, without spaces, '/' and '@'", kCephNameBytesMax));
}

Status RbdKind::Complete(std::string_view disk, v1::DiskSpec* spec) const {
  const v1::RbdBackend& rbd = spec->rbd();
  if (auto cluster = ParseClusterName(rbd.cluster()); !cluster.ok())
    return InvalidBackend(disk, "rbd.cluster", "is wrong: " + cluster.error().message);
  if (rbd.pool().empty()) return InvalidBackend(disk, "rbd.pool", "is missing");
  if (rbd.image().empty()) return InvalidBackend(disk, "rbd.image", "is missing");
  CLEAT_TRY(CheckPart(disk, "rbd.pool", rbd.pool()));
  CLEAT_TRY(CheckPart(disk, "rbd.name_space", rbd.name_space()));
  CLEAT_TRY(CheckPart(disk, "rbd.image", rbd.image()));
  return CheckPart(disk, "rbd.snapshot", rbd.snapshot());
}

void RbdKind::Put(const DiskRow& row, bool /*path_checked*/, engine::v1::Disk* disk) const {
  const v1::RbdBackend& rbd = row.spec.rbd();
  engine::v1::RbdBackend& out = *disk->mutable_rbd();
  out.set_cluster(rbd.cluster());
  out.set_pool(rbd.pool());
  if (!rbd.name_space().empty()) out.set_name_space(rbd.name_space());
  out.set_image(rbd.image());
  if (!rbd.snapshot().empty()) out.set_snapshot(rbd.snapshot());
  if (row.image_bytes != 0) out.set_image_bytes(row.image_bytes);
}

// ---- pool: extents of a drive

class PoolKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* spec) const override;
  // What is a disk's of a pool the pool itself knows.
  std::optional<StorageClaim> Claim(const v1::DiskSpec& /*spec*/) const override { return std::nullopt; }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override {
    return "is on a drive of its host, which a VM can't migrate with";
  }
  void Put(const DiskRow& row, bool path_checked, engine::v1::Disk* disk) const override;
};

Status PoolKind::Complete(std::string_view disk, v1::DiskSpec* spec) const {
  if (auto pool = ParsePoolName(spec->pool().pool()); !pool.ok())
    return InvalidBackend(disk, "pool.pool", "is wrong: " + pool.error().message);
  spec->mutable_pool()->clear_extents();  // cleatd's to say
  return Ok{};
}

// ToEngine adds whose pool it is, and on which drive.
void PoolKind::Put(const DiskRow& row, bool /*path_checked*/, engine::v1::Disk* disk) const {
  engine::v1::PoolBackend& pool = *disk->mutable_pool();
  for (const v1::ExtentRun& run : row.spec.pool().extents()) {
    engine::v1::ExtentRun& out = *pool.add_extents();
    out.set_first(run.first());
    out.set_count(run.count());
  }
}

// ---- nvme_tcp: a namespace of an NVMe-oF subsystem

class NvmeTcpKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* spec) const override;
  std::optional<StorageClaim> Claim(const v1::DiskSpec& spec) const override {
    const v1::NvmeTcpBackend& nvme = spec.nvme_tcp();
    // No two subsystems of the host have the same NQN.
    return StorageClaim{.noun = "namespace",
                        .with_an = "a namespace",
                        .which = fmt::format("{} {}", nvme.subsystem(), nvme.namespace_uuid()),
                        .when_taken = v1::REASON_NAMESPACE_TAKEN};
  }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  // Where all only read, nothing is ever in doubt.
  KeptMemory Keeps(const v1::DiskSpec& spec) const override {
    return spec.access_mode() == v1::ACCESS_MODE_MANY_READERS ? KeptMemory::kNone : KeptMemory::kDoubtLog;
  }
  bool GrowsInEngine() const override { return true; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  // Without reservations a destination could not tell that the source's writes have ended.
  std::string WhyItStays(bool has_reservations) const override {
    if (has_reservations) return {};
    return "is a namespace of a subsystem without reservations, which a VM can't migrate with";
  }
  // ToEngine adds how the subsystem is reached.
  void Put(const DiskRow& row, bool /*path_checked*/, engine::v1::Disk* disk) const override {
    disk->mutable_nvme_tcp()->set_subsystem(row.spec.nvme_tcp().subsystem());
    disk->mutable_nvme_tcp()->set_namespace_uuid(row.spec.nvme_tcp().namespace_uuid());
  }
};

Status NvmeTcpKind::Complete(std::string_view disk, v1::DiskSpec* spec) const {
  v1::NvmeTcpBackend& nvme = *spec->mutable_nvme_tcp();
  if (auto subsystem = ParseSubsystemName(nvme.subsystem()); !subsystem.ok())
    return InvalidBackend(disk, "nvme_tcp.subsystem", "is wrong: " + subsystem.error().message);
  const auto uuid = nvme::fabrics::ParseUuid(nvme.namespace_uuid());
  if (!uuid.ok()) return InvalidBackend(disk, "nvme_tcp.namespace_uuid", "is wrong: " + uuid.error().message);
  if (*uuid == nvme::fabrics::Uuid{}) {
    return InvalidBackend(disk, "nvme_tcp.namespace_uuid",
                          "is all zeroes, which no namespace has: its identification says it (nvme list-ns)");
  }
  nvme.set_namespace_uuid(nvme::fabrics::TextOfUuid(*uuid));
  return Ok{};
}

// ---- example: an array of the engine's, in builds that have it

class ExampleKind final : public BackendKind {
 public:
  Status Complete(std::string_view disk, v1::DiskSpec* spec) const override;
  std::optional<StorageClaim> Claim(const v1::DiskSpec& /*spec*/) const override { return std::nullopt; }
  const std::string& File(const v1::DiskSpec& /*spec*/) const override { return Nothing(); }
  const std::string* Cluster(const v1::DiskSpec& /*spec*/) const override { return nullptr; }
  KeptMemory Keeps(const v1::DiskSpec& /*spec*/) const override { return KeptMemory::kNone; }
  bool GrowsInEngine() const override { return false; }
  std::string WhyReadOnly(const v1::DiskSpec& /*spec*/) const override { return {}; }
  std::string WhyItStays(bool /*has_reservations*/) const override {
    return "is its engine's own, which a VM can't migrate with";
  }
  void Put(const DiskRow& row, bool /*path_checked*/, engine::v1::Disk* disk) const override {
    disk->mutable_example()->set_fill(row.spec.example().fill());
  }
};

Status ExampleKind::Complete(std::string_view disk, v1::DiskSpec* spec) const {
  constexpr uint32_t kFillMax = 255;
  if (!kExampleDisks) {
    return InvalidBackend(
        disk, "example",
        "is for who writes a back end, and this cleatd was built without (CLEAT_EXAMPLE=OFF): "
        "set another back end");
  }
  const uint32_t fill = spec->example().fill();
  if (fill <= kFillMax) return Ok{};
  return InvalidBackend(disk, "example.fill", fmt::format("is {}: it must be 0 to {}", fill, kFillMax));
}

// ---- Which kind it is

// Without a default, so that the compiler names a kind that is missing.
const BackendKind& KindOf(const v1::DiskSpec& spec) {
  static const NoKind none;
  static const NullKind null;
  static const MemoryKind memory;
  static const FileKind file;
  static const RbdKind rbd;
  static const PoolKind pool;
  static const NvmeTcpKind nvme_tcp;
  static const ExampleKind example;
  switch (spec.backend_case()) {
    case v1::DiskSpec::kNull:
      return null;
    case v1::DiskSpec::kMemory:
      return memory;
    case v1::DiskSpec::kFile:
      return file;
    case v1::DiskSpec::kRbd:
      return rbd;
    case v1::DiskSpec::kPool:
      return pool;
    case v1::DiskSpec::kNvmeTcp:
      return nvme_tcp;
    case v1::DiskSpec::kExample:
      return example;
    case v1::DiskSpec::BACKEND_NOT_SET:
      break;
  }
  return none;
}

}  // namespace

Status CompleteBackend(std::string_view disk, v1::DiskSpec* spec) {
  return KindOf(*spec).Complete(disk, spec);
}

std::optional<StorageClaim> ClaimOf(const v1::DiskSpec& spec) {
  return KindOf(spec).Claim(spec);
}

std::string ClaimOfStorage(const v1::DiskSpec& spec) {
  const auto claim = ClaimOf(spec);
  return claim ? claim->Key() : std::string();
}

const std::string& FileOf(const v1::DiskSpec& spec) {
  return KindOf(spec).File(spec);
}

bool IsInCluster(const v1::DiskSpec& spec) {
  return KindOf(spec).Cluster(spec) != nullptr;
}

const std::string& ClusterOf(const v1::DiskSpec& spec) {
  const std::string* cluster = KindOf(spec).Cluster(spec);
  return cluster == nullptr ? Nothing() : *cluster;
}

const std::string& ClusterOf(const engine::v1::Disk& disk) {
  switch (disk.backend_case()) {
    case engine::v1::Disk::kRbd:
      return disk.rbd().cluster();
    case engine::v1::Disk::kNull:
    case engine::v1::Disk::kMemory:
    case engine::v1::Disk::kFile:
    case engine::v1::Disk::kPool:
    case engine::v1::Disk::kNvmeTcp:
    case engine::v1::Disk::kExample:
    case engine::v1::Disk::BACKEND_NOT_SET:
      break;
  }
  return Nothing();
}

const std::string& SubsystemOf(const v1::DiskSpec& spec) {
  return spec.has_nvme_tcp() ? spec.nvme_tcp().subsystem() : Nothing();
}

const std::string& RemoteOf(const v1::DiskSpec& spec) {
  const std::string& cluster = ClusterOf(spec);
  return cluster.empty() ? SubsystemOf(spec) : cluster;
}

const std::string& PoolOf(const v1::DiskSpec& spec) {
  return spec.has_pool() ? spec.pool().pool() : Nothing();
}

pool::ExtentRuns ExtentsOf(const v1::DiskSpec& spec) {
  pool::ExtentRuns runs;
  for (const v1::ExtentRun& run : spec.pool().extents()) runs.push_back({run.first(), run.count()});
  return runs;
}

void SetExtents(const pool::ExtentRuns& runs, v1::DiskSpec& spec) {
  spec.mutable_pool()->clear_extents();
  for (const pool::ExtentRun& run : runs) {
    v1::ExtentRun& added = *spec.mutable_pool()->add_extents();
    added.set_first(run.first);
    added.set_count(run.count);
  }
}

std::optional<std::string> WhyLost(const v1::DiskSpec& spec) {
  if (!spec.has_pool() || spec.pool().extents_size() > 0) return std::nullopt;
  return "the drive does not have it: it was purged after the backup that the store was restored from, and "
         "what it had is "
         "another's, or erased; or its pool was made from the drive since, as another disk. Delete it";
}

KeptMemory KeptMemoryOf(const v1::DiskSpec& spec) {
  return KindOf(spec).Keeps(spec);
}

uint64_t KeptBytes(const v1::DiskSpec& spec) {
  switch (KeptMemoryOf(spec)) {
    case KeptMemory::kNone:
      return 0;
    case KeptMemory::kContent:
      return spec.size_bytes();
    case KeptMemory::kDoubtLog:
      return nvme::host::kDoubtLogBytes;
  }
  return 0;
}

bool GrowsInEngine(const v1::DiskSpec& spec) {
  return KindOf(spec).GrowsInEngine();
}

std::string WhyReadOnly(const v1::DiskSpec& spec) {
  return KindOf(spec).WhyReadOnly(spec);
}

std::string WhyItStays(const v1::DiskSpec& spec, bool has_reservations) {
  return KindOf(spec).WhyItStays(has_reservations);
}

void PutBackend(const DiskRow& row, bool path_checked, engine::v1::Disk* disk) {
  KindOf(row.spec).Put(row, path_checked, disk);
}

}  // namespace cleat::control
