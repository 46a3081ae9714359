// SPDX-License-Identifier: Apache-2.0
// The kinds of back ends: each a struct that holds what the engine is told of a disk of that kind, and can be
//   Unpack   made of its message of the protocol; errors are kInvalidArgument and name the field,
//   Pack     written to that message again: what is needed of it lies in `memory`,
//   ==       compared: whether it is the same storage,
//   Open     opened, by its module in modules/. At most kFiles file descriptors are open for it then, one that is examined included.
// A kind that lacks one of these does not compile, nor does one that is missing in the variant or in UnpackBackend.
#include <cleat/engine/v1/engine.pb-c.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/build_options.h"
#include "engine/disks/open_backend.h"
#include "engine/protocol/backend.h"
#include "engine/protocol/codec_structs.h"
#include "engine/protocol/nvmf_secrets.h"
#include "engine/secrets/unwrap.h"
#include "keys/keyring.h"
#include "modules/example/example.h"
#include "modules/null/null.h"
#include "modules/nvme/nvme.h"
#include "modules/nvmf/nvmf.h"
#include "modules/ram/ram.h"
#include "nvme/fabrics/names.h"
#include "pool/layout.h"

namespace cleat::engine {
namespace {

using Memory = std::pmr::memory_resource;
using Opened = Result<std::unique_ptr<block::Device>>;

// What Open is given; outlives the task that it returns.
struct Opening {
  const DiskSpec& disk;
  block::AccessMode mode;
  const BackendParts& parts;

  block::DiskShape shape() const {
    return {disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes};
  }
};

// ---- null: nothing is stored (modules/null)

struct Null {
  static constexpr uint32_t kFiles = 0;
  bool skip_reads = false;  // reads leave the buffer as it was

  static Result<Null> Unpack(const Cleat__Engine__V1__NullBackend& in) { return Null{in.skip_reads != 0}; }
  void Pack(PbDisk& out, Memory& memory) const {
    auto& null = NewMessage(memory, cleat__engine__v1__null_backend__init);
    CLEAT_PB_SET(null, skip_reads, skip_reads);
    out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_NULL;
    out.null = &null;
  }
  bool operator==(const Null&) const = default;
  Task<Opened> Open(const Opening& opening, DiskEvents /*events*/) const {
    modules::NullOptions options(opening.shape());
    options.zero_fill = !skip_reads;
    return modules::OpenNull(std::move(options));
  }
};

// ---- memory: the memory that is kept under the disk's name (modules/ram)

struct KeptMemory {
  static constexpr uint32_t kFiles = 1;  // beside the one that is kept, attached or not (Engine::KeepMemory)
  static Result<KeptMemory> Unpack(const Cleat__Engine__V1__MemoryBackend& /*in*/) { return KeptMemory{}; }
  void Pack(PbDisk& out, Memory& memory) const {
    out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_MEMORY;
    out.memory = &NewMessage(memory, cleat__engine__v1__memory_backend__init);
  }
  bool operator==(const KeptMemory&) const = default;
  Task<Opened> Open(const Opening& opening, DiskEvents /*events*/) const {
    CLEAT_CO_ASSIGN(auto memory, opening.parts.memories.Duplicate(opening.disk.name));
    modules::RamOptions options(opening.shape(), std::move(memory));
    co_return co_await modules::OpenRam(std::move(options), opening.parts.blocking);
  }
};

// ---- file: a regular file or a block device (modules/uring), or an NVMe namespace (modules/nvme)

// How many descriptors a disk at that path takes: an NVMe namespace has a node more.
uint32_t FilesAt(const std::string& path) {
  return path.starts_with("/dev/") ? 3 : 2;
}

struct File {
  static constexpr uint32_t kFiles = 2;
  std::string path;
  bool path_checked = false;  // when the disk was made: PathGuard::Links

  static Result<File> Unpack(const Cleat__Engine__V1__FileBackend& in) {
    CLEAT_ASSIGN(auto path, TextOf(in.path, "disk.file.path"));
    return File{std::move(path), in.path_checked != 0};
  }
  void Pack(PbDisk& out, Memory& memory) const {
    auto& file = NewMessage(memory, cleat__engine__v1__file_backend__init);
    file.path = PbText(path);
    CLEAT_PB_SET(file, path_checked, path_checked);
    out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_FILE;
    out.file = &file;
  }
  bool operator==(const File& other) const { return path == other.path; }
  uint32_t files(size_t /*reactors*/) const { return FilesAt(path); }
  Task<Opened> Open(const Opening& opening, DiskEvents /*events*/) const {
    modules::UringOptions options(opening.shape(), path, opening.mode);
    const auto links = path_checked ? PathGuard::Links::kNone : PathGuard::Links::kTrusted;
    options.find = [&paths = opening.parts.paths, links](const std::string& where, const std::string& what) {
      return paths.FindDisk(where, what, links);
    };
    return modules::OpenFileDisk(std::move(options), opening.parts.uring, opening.parts.blocking);
  }
};

// ---- rbd: an image of a Ceph cluster (modules/rbd, by way of ceph_disks.h)

struct Rbd : RbdBackend {
  static constexpr uint32_t kFiles =
      0;  // Ceph's connections are its clients', which many disks share: not counted
  static Result<Rbd> Unpack(const Cleat__Engine__V1__RbdBackend& in);
  void Pack(PbDisk& out, Memory& memory) const {
    auto& rbd = NewMessage(memory, cleat__engine__v1__rbd_backend__init);
    rbd.cluster = PbText(cluster);
    rbd.pool = PbText(pool);
    if (!name_space.empty()) rbd.name_space = PbText(name_space);
    rbd.image = PbText(image);
    if (!snapshot.empty()) rbd.snapshot = PbText(snapshot);
    if (image_bytes != 0) CLEAT_PB_SET(rbd, image_bytes, image_bytes);
    out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_RBD;
    out.rbd = &rbd;
  }
  bool operator==(const Rbd& other) const { return RbdBackend::operator==(other); }
  Task<Opened> Open(const Opening& opening, DiskEvents events) const {
    return opening.parts.ceph.Open(opening.disk, *this, opening.mode, std::move(events));
  }
};

Result<Rbd> Rbd::Unpack(const Cleat__Engine__V1__RbdBackend& in) {
  CLEAT_ASSIGN(auto cluster, TextOf(in.cluster, "disk.rbd.cluster"));
  CLEAT_ASSIGN(auto pool, TextOf(in.pool, "disk.rbd.pool"));
  CLEAT_ASSIGN(auto image, TextOf(in.image, "disk.rbd.image"));
  Rbd rbd;
  rbd.cluster = std::move(cluster);
  rbd.pool = std::move(pool);
  rbd.image = std::move(image);
  rbd.name_space = OptionalText(in.name_space);
  rbd.snapshot = OptionalText(in.snapshot);
  rbd.image_bytes = in.has_image_bytes ? in.image_bytes : 0;
  if (rbd.name_space.size() > kTextBytesMax || rbd.snapshot.size() > kTextBytesMax) {
    return Malformed("the name of a disk's namespace or snapshot is too long");
  }
  return rbd;
}

// ---- pool: extents of a drive (src/pool), through modules/uring or modules/nvme as a file

struct Pool {
  std::string path;  // the drive's
  pool::Uid uid{};
  uint64_t extent_bytes = 0;
  pool::ExtentRuns extents;  // in the disk's order

  static Result<Pool> Unpack(const Cleat__Engine__V1__PoolBackend& in);
  void Pack(PbDisk& out, Memory& memory) const;
  bool operator==(const Pool&) const = default;
  uint32_t files(size_t /*reactors*/) const { return FilesAt(path); }
  Task<Opened> Open(const Opening& opening, DiskEvents /*events*/) const {
    modules::UringOptions options(opening.shape(), path, opening.mode);
    options.find = [&paths = opening.parts.paths](const std::string& where, const std::string& what) {
      return paths.FindDisk(where, what, PathGuard::Links::kNone);
    };
    options.placement = modules::Placement{uid, extent_bytes, extents, opening.disk.identity};
    return modules::OpenFileDisk(std::move(options), opening.parts.uring, opening.parts.blocking);
  }
};

Result<Pool> Pool::Unpack(const Cleat__Engine__V1__PoolBackend& in) {
  CLEAT_ASSIGN(auto path, TextOf(in.device, "disk.pool.device"));
  Pool pool;
  pool.path = std::move(path);
  if (!in.has_pool_uid || in.pool_uid.len != pool.uid.size())
    return Malformed("disk.pool.pool_uid has not 16 bytes");
  std::memcpy(pool.uid.data(), in.pool_uid.data, pool.uid.size());
  pool.extent_bytes = in.extent_bytes;
  if (!std::has_single_bit(pool.extent_bytes) || pool.extent_bytes < pool::kExtentBytesMin ||
      pool.extent_bytes > pool::kExtentBytesMax)
    return Malformed("disk.pool.extent_bytes is no power of two from 64 MiB to 1 GiB");
  if (in.n_extents == 0) return Malformed("disk.pool.extents has none");
  CLEAT_ASSIGN(pool.extents, ExtentRunsOf({in.extents, in.n_extents}, "disk.pool.extents"));
  return pool;
}

void Pool::Pack(PbDisk& out, Memory& memory) const {
  auto& pool = NewMessage(memory, cleat__engine__v1__pool_backend__init);
  pool.device = PbText(path);
  pool.has_pool_uid = 1;
  pool.pool_uid = {.len = uid.size(), .data = const_cast<uint8_t*>(uid.data())};
  CLEAT_PB_SET(pool, extent_bytes, extent_bytes);
  auto** const runs = static_cast<Cleat__Engine__V1__ExtentRun**>(
      memory.allocate(extents.size() * sizeof(void*), alignof(void*)));
  for (size_t i = 0; i < extents.size(); ++i) {
    runs[i] = &NewMessage(memory, cleat__engine__v1__extent_run__init);
    CLEAT_PB_SET((*runs[i]), first, extents[i].first);
    CLEAT_PB_SET((*runs[i]), count, extents[i].count);
  }
  pool.n_extents = extents.size();
  pool.extents = runs;
  out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_POOL;
  out.pool = &pool;
}

// ---- nvme_tcp: a namespace of an NVMe-oF subsystem, over TCP, RDMA or both (modules/nvmf)

namespace fabrics = nvme::fabrics;

struct NvmeTcp {
  std::string subsystem;  // "subsystems/ID"
  std::string nqn;
  std::vector<fabrics::PathAddress> addresses;
  uint8_t dscp = 0;
  fabrics::HostIdentity host;
  bool header_digest = false;
  bool data_digest = false;
  uint32_t keep_alive_ms = 0;
  fabrics::Uuid name_space{};
  NvmfSecrets secrets;
  uint64_t reservation_family = 0;
  bool reservation_proves = false;
  bool quiesce_time_proves = false;

  static Result<NvmeTcp> Unpack(const Cleat__Engine__V1__NvmeTcpBackend& in);
  // Without the secrets: cleatd has them.
  void Pack(PbDisk& out, Memory& memory) const;
  // How the namespace is reached does not say which one it is.
  bool operator==(const NvmeTcp& other) const {
    return subsystem == other.subsystem && nqn == other.nqn && name_space == other.name_space;
  }
  // For each address a connection of the admin queue, one of each reactor's I/O queue and one for reservations; the log of doubt, opened for its lock, and while
  // the disk is opened once more, beside the one that is kept (Engine::KeepMemory).
  uint32_t files(size_t reactors) const {
    const size_t of_reservations = reservation_family != 0 ? 1 : 0;
    return 2 + static_cast<uint32_t>(addresses.size() * (1 + reactors + of_reservations));
  }
  Task<Opened> Open(const Opening& opening, DiskEvents events) const;
};

bool IsOverRdma(const fabrics::PathAddress& address) {
  return address.target.transport == fabrics::TransportType::kRdma;
}

Result<std::vector<fabrics::PathAddress>> AddressesOf(std::span<char* const> texts) {
  if (texts.empty() || texts.size() > fabrics::kSubsystemAddressesMax) {
    return Malformed(fmt::format("disk.nvme_tcp.addresses has {}: 1 to {} are taken", texts.size(),
                                 fabrics::kSubsystemAddressesMax));
  }
  std::vector<fabrics::PathAddress> addresses;
  for (const char* const text : texts) {
    auto address = fabrics::ParsePathAddress(text);
    if (!address) return Malformed("disk.nvme_tcp.addresses: " + address.error().message);
    if (IsOverRdma(*address) && fabrics::IsUnspecified(address->target))
      return Malformed(fmt::format("disk.nvme_tcp.addresses: {} is nobody's", text));
    addresses.push_back(*address);
  }
  return addresses;
}

// TLS and digests are NVMe/TCP's.
Status CheckTransports(const NvmeTcp& nvme) {
  const auto rdma = std::ranges::count_if(nvme.addresses, IsOverRdma);
  if (rdma != 0 && nvme.secrets.tls_psk.there())
    return Malformed(
        "disk.nvme_tcp.tls_psk is there, and disk.nvme_tcp.addresses over RDMA, which has no TLS");
  if (static_cast<size_t>(rdma) == nvme.addresses.size() && (nvme.header_digest || nvme.data_digest))
    return Malformed("disk.nvme_tcp has digests, and no address over TCP, which alone has such");
  return Ok{};
}

Result<fabrics::Uuid> UuidOf(const char* text, const char* field) {
  CLEAT_ASSIGN(const auto copy, TextOf(text, field));
  auto uuid = fabrics::ParseUuid(copy);
  if (!uuid) return Malformed(std::string(field) + ": " + uuid.error().message);
  if (*uuid == fabrics::Uuid{}) return Malformed(std::string(field) + " is zero");
  return uuid;
}

Result<NvmeTcp> NvmeTcp::Unpack(const Cleat__Engine__V1__NvmeTcpBackend& in) {
  NvmeTcp nvme;
  CLEAT_ASSIGN(nvme.subsystem, TextOf(in.subsystem, "disk.nvme_tcp.subsystem"));
  CLEAT_ASSIGN(nvme.nqn, TextOf(in.nqn, "disk.nvme_tcp.nqn"));
  if (auto status = fabrics::CheckNqn(nvme.nqn, "disk.nvme_tcp.nqn"); !status)
    return Malformed(status.error().message);
  CLEAT_ASSIGN(nvme.addresses, AddressesOf({in.addresses, in.n_addresses}));
  CLEAT_ASSIGN(nvme.host.nqn, TextOf(in.host_nqn, "disk.nvme_tcp.host_nqn"));
  CLEAT_ASSIGN(nvme.host.id, UuidOf(in.host_id, "disk.nvme_tcp.host_id"));
  if (auto status = fabrics::CheckHostIdentity(nvme.host); !status) return Malformed(status.error().message);
  nvme.header_digest = in.header_digest != 0;
  nvme.data_digest = in.data_digest != 0;
  nvme.keep_alive_ms = in.keep_alive_ms;
  if (nvme.keep_alive_ms < fabrics::kKeepAliveMsMin || nvme.keep_alive_ms > fabrics::kKeepAliveMsMax)
    return Malformed(fmt::format("disk.nvme_tcp.keep_alive_ms is not {} to {}", fabrics::kKeepAliveMsMin,
                                 fabrics::kKeepAliveMsMax));
  CLEAT_ASSIGN(nvme.name_space, UuidOf(in.namespace_uuid, "disk.nvme_tcp.namespace_uuid"));
  CLEAT_ASSIGN(nvme.secrets, NvmfSecretsOf(in, "disk.nvme_tcp"));
  CLEAT_ASSIGN(nvme.dscp, DscpOf(in.dscp, "disk.nvme_tcp.dscp"));
  CLEAT_TRY(CheckTransports(nvme));
  nvme.reservation_family = in.reservation_family;
  nvme.reservation_proves = in.reservation_proves != 0;
  nvme.quiesce_time_proves = in.quiesce_time_proves != 0;
  if (nvme.reservation_proves && nvme.reservation_family == 0)
    return Malformed("disk.nvme_tcp.reservation_proves is there without reservation_family");
  return nvme;
}

void NvmeTcp::Pack(PbDisk& out, Memory& memory) const {
  auto& nvme = NewMessage(memory, cleat__engine__v1__nvme_tcp_backend__init);
  nvme.subsystem = PbText(subsystem);
  nvme.nqn = PbText(nqn);
  auto** const texts = static_cast<char**>(memory.allocate(addresses.size() * sizeof(char*), alignof(char*)));
  for (size_t i = 0; i < addresses.size(); ++i)
    texts[i] = CopyOf(fabrics::TextOfPathAddress(addresses[i]), memory);
  nvme.n_addresses = addresses.size();
  nvme.addresses = texts;
  nvme.host_nqn = PbText(host.nqn);
  nvme.host_id = CopyOf(fabrics::TextOfUuid(host.id), memory);
  CLEAT_PB_SET(nvme, header_digest, header_digest);
  CLEAT_PB_SET(nvme, data_digest, data_digest);
  CLEAT_PB_SET(nvme, keep_alive_ms, keep_alive_ms);
  nvme.namespace_uuid = CopyOf(fabrics::TextOfUuid(name_space), memory);
  if (reservation_family != 0) CLEAT_PB_SET(nvme, reservation_family, reservation_family);
  if (reservation_proves) CLEAT_PB_SET(nvme, reservation_proves, reservation_proves);
  if (quiesce_time_proves) CLEAT_PB_SET(nvme, quiesce_time_proves, quiesce_time_proves);
  if (dscp != 0) CLEAT_PB_SET(nvme, dscp, dscp);
  out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_NVME_TCP;
  out.nvme_tcp = &nvme;
}

Task<Opened> NvmeTcp::Open(const Opening& opening, DiskEvents events) const {
  auto shared = std::make_shared<modules::NvmfSubsystem>();
  shared->name = subsystem;
  shared->nqn = nqn;
  shared->addresses = addresses;
  shared->host = host;
  shared->dscp = dscp;
  shared->header_digest = header_digest;
  shared->data_digest = data_digest;
  shared->kato_ms = keep_alive_ms;
  shared->proofs.preempted = reservation_proves;
  shared->proofs.time_elapsed = quiesce_time_proves;
  auto keys = co_await Unwrap(secrets, subsystem, opening.parts.keyring, opening.parts.blocking);
  if (!keys) co_return Error(keys.error().code, opening.disk.name + ": " + keys.error().message);
  shared->chap = std::move(keys->chap);
  shared->psk = std::move(keys->psk);
  shared->tuning.kernel_tls = opening.parts.kernel_tls;
  modules::NvmfOptions options(opening.shape(), std::move(shared), name_space, opening.mode);
  options.reservation_family = reservation_family;
  options.arithmetic = &opening.parts.arithmetic;
  options.rdma = &opening.parts.rdma;
  options.events.resized = [grew = std::move(events.grew), block_bytes = opening.disk.logical_block_bytes,
                            name = opening.disk.name](uint64_t size_bytes) {
    spdlog::info("{}: namespace's size changed: {} bytes", name, size_bytes);
    if (grew) grew(size_bytes - size_bytes % block_bytes);
  };
  options.events.paths_changed = std::move(events.paths_changed);
  // Only writes are ever in doubt.
  if (opening.mode == block::AccessMode::kReadWrite) {
    CLEAT_CO_ASSIGN(options.doubt_log, opening.parts.memories.Duplicate(opening.disk.name));
  }
  co_return co_await modules::OpenNvmf(std::move(options));
}

// ---- example: an array of the engine's, in builds that have it (modules/example)

struct Example {
  static constexpr uint32_t kFiles = 0;
  uint8_t fill = 0;

  static Result<Example> Unpack(const Cleat__Engine__V1__ExampleBackend& in) {
    constexpr uint32_t kFillMax = 255;
    if (in.fill > kFillMax) return Malformed("disk.example.fill is no byte");
    return Example{static_cast<uint8_t>(in.fill)};
  }
  void Pack(PbDisk& out, Memory& memory) const {
    auto& example = NewMessage(memory, cleat__engine__v1__example_backend__init);
    CLEAT_PB_SET(example, fill, fill);
    out.backend_case = CLEAT__ENGINE__V1__DISK__BACKEND_EXAMPLE;
    out.example = &example;
  }
  bool operator==(const Example&) const = default;
  Task<Opened> Open(const Opening& opening, DiskEvents /*events*/) const {
    if constexpr (kExampleDisks) {
      modules::ExampleOptions options(opening.shape());
      options.fill = fill;
      return modules::OpenExample(std::move(options));
    } else {
      return Refuse(opening.disk.name);
    }
  }

 private:
  static Task<Opened> Refuse(std::string disk) {
    co_return Error(
        ErrorCode::kUnimplemented,
        disk + ": it is an example of a disk, and this engine was built without (CLEAT_EXAMPLE=OFF)");
  }
};

}  // namespace

struct Backend::Kind {
  std::variant<Null, KeptMemory, File, Rbd, Pool, NvmeTcp, Example> value;
};

namespace {

template <typename Struct>
Result<Backend> BackendOf(Result<Struct> unpacked) {
  CLEAT_TRY(unpacked);
  return Backend(std::make_shared<const Backend::Kind>(Backend::Kind{std::move(unpacked).value()}));
}

}  // namespace

Result<Backend> UnpackBackend(const std::string& disk, const PbDisk& in) {
  switch (in.backend_case) {  // without a default, so that the compiler names a kind that is missing
    case CLEAT__ENGINE__V1__DISK__BACKEND_NULL:
      return BackendOf(Null::Unpack(*in.null));
    case CLEAT__ENGINE__V1__DISK__BACKEND_MEMORY:
      return BackendOf(KeptMemory::Unpack(*in.memory));
    case CLEAT__ENGINE__V1__DISK__BACKEND_FILE:
      return BackendOf(File::Unpack(*in.file));
    case CLEAT__ENGINE__V1__DISK__BACKEND_RBD:
      return BackendOf(Rbd::Unpack(*in.rbd));
    case CLEAT__ENGINE__V1__DISK__BACKEND_POOL:
      return BackendOf(Pool::Unpack(*in.pool));
    case CLEAT__ENGINE__V1__DISK__BACKEND_NVME_TCP:
      return BackendOf(NvmeTcp::Unpack(*in.nvme_tcp));
    case CLEAT__ENGINE__V1__DISK__BACKEND_EXAMPLE:
      return BackendOf(Example::Unpack(*in.example));
    case CLEAT__ENGINE__V1__DISK__BACKEND__NOT_SET:
    case _CLEAT__ENGINE__V1__DISK__BACKEND__CASE_IS_INT_SIZE:
      break;
  }
  return Error(ErrorCode::kUnimplemented, disk + ": this engine does not know its kind of back end");
}

void PackBackend(const Backend& backend, PbDisk& out, std::pmr::memory_resource& memory) {
  std::visit([&](const auto& kind) { kind.Pack(out, memory); }, backend.kind().value);
}

Task<Opened> OpenBackend(const DiskSpec& disk, block::AccessMode mode, DiskEvents events,
                         const BackendParts& parts) {
  const Opening opening{disk, mode, parts};
  auto open = std::visit([&](const auto& kind) { return kind.Open(opening, std::move(events)); },
                         disk.backend.kind().value);
  co_return co_await std::move(open);
}

Backend::Backend() {
  static const auto null = std::make_shared<const Kind>();
  kind_ = null;
}

Backend::Backend(std::shared_ptr<const Kind> kind) : kind_(std::move(kind)) {}

bool Backend::operator==(const Backend& other) const {
  return kind_->value == other.kind_->value;
}

Backend WithExtents(const Backend& backend, const pool::ExtentRuns& extents) {
  const auto* const present = std::get_if<Pool>(&backend.kind().value);
  if (present == nullptr || extents.empty()) return backend;
  Pool grown = *present;
  grown.extents = extents;
  return Backend(std::make_shared<const Backend::Kind>(Backend::Kind{std::move(grown)}));
}

uint32_t FilesOf(const Backend& backend, size_t reactors) {
  const auto files = [reactors](const auto& kind) -> uint32_t {
    if constexpr (requires { kind.files(reactors); }) {
      return kind.files(reactors);
    } else {
      return kind.kFiles;
    }
  };
  return std::visit(files, backend.kind().value);
}

uint32_t FilesOfFileDisk() {
  return File::kFiles;
}

std::string StorageOf(const Backend& backend) {
  const auto name = [](const auto& kind) -> std::string {
    if constexpr (requires { kind.cluster; }) {
      return kind.cluster;
    } else if constexpr (requires { kind.subsystem; }) {
      return kind.subsystem;
    } else if constexpr (requires { kind.path; }) {
      return kind.path;
    } else {
      return "its storage";
    }
  };
  return std::visit(name, backend.kind().value);
}

}  // namespace cleat::engine
