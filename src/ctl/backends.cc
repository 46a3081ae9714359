// SPDX-License-Identifier: Apache-2.0
#include "ctl/backends.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/build_options.h"
#include "ctl/client.h"
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Kind = v1::DiskSpec::BackendCase;

// Where a kind's options go.
struct Options {
  CLI::App& create;   // what goes with a kind
  CLI::App& choices;  // the kind itself: one of these is given
  v1::DiskSpec& spec;
};

// ---- null

void AddNull(const Options& to) {
  auto* null = to.choices.add_flag_callback(
      "--null", [&spec = to.spec] { spec.mutable_null(); }, "Nothing: reads give zeroes");
  to.create
      .add_flag_callback(
          "--skip-reads", [&spec = to.spec] { spec.mutable_null()->set_skip_reads(true); },
          "Reads leave the buffer as it was, which benchmarks want; no disk for a file system")
      ->needs(null);
}

std::string ShowNull(const v1::NullBackend& null) {
  return null.skip_reads() ? "null (reads skipped)" : "null";
}

// ---- memory

void AddMemory(const Options& to) {
  to.choices.add_flag_callback(
      "--memory", [&spec = to.spec] { spec.mutable_memory(); },
      "Memory of this host; lost when cleatd and the engine both end");
}

// ---- file

void AddFile(const Options& to) {
  auto* file = to.choices
                   .add_option_function<std::string>(
                       "--file", [&spec = to.spec](const auto& path) { spec.mutable_file()->set_path(path); },
                       "A regular file or a block device")
                   ->type_name(kFileArgument);
  to.create
      .add_flag_callback(
          "--create", [&spec = to.spec] { spec.mutable_file()->set_create(true); },
          "Make the file (sparse) when there is none")
      ->needs(file);
}

// ---- rbd

// CLUSTER/POOL[/NAMESPACE]/IMAGE[@SNAPSHOT], as rbd itself writes what comes after the cluster. False when it is not.
bool ParseRbd(std::string_view text, v1::RbdBackend* rbd) {
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    rbd->set_snapshot(std::string(text.substr(at + 1)));
    if (rbd->snapshot().empty()) return false;
    text = text.substr(0, at);
  }
  if (text.starts_with("clusters/")) text.remove_prefix(std::string_view("clusters/").size());
  const std::vector<std::string> parts = CLI::detail::split(std::string(text), '/');
  const bool empty = std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); });
  if (empty || parts.size() < 3 || parts.size() > 4) return false;
  rbd->set_cluster(FullName("clusters/", parts[0]));
  rbd->set_pool(parts[1]);
  if (parts.size() == 4) rbd->set_name_space(parts[2]);
  rbd->set_image(parts.back());
  return true;
}

void AddRbd(const Options& to) {
  to.choices
      .add_option_function<std::string>(
          "--rbd", [&spec = to.spec](const auto& text) { ParseRbd(text, spec.mutable_rbd()); },
          "An image of a Ceph cluster, which is there and at least as large; a snapshot can only be "
          "attached read-only")
      ->check(CLI::Validator(
          [](const std::string& text) {
            v1::RbdBackend rbd;
            return ParseRbd(text, &rbd) ? std::string()
                                        : "'" + text + "' is not CLUSTER/POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]";
          },
          ""))
      ->type_name("CLUSTER/POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]");
}

std::string ShowRbd(const v1::RbdBackend& rbd) {
  return fmt::format("rbd:{}/{}/{}{}{}{}{}", IdOf(rbd.cluster()), rbd.pool(), rbd.name_space(),
                     rbd.name_space().empty() ? "" : "/", rbd.image(), rbd.snapshot().empty() ? "" : "@",
                     rbd.snapshot());
}

// ---- pool

void AddPool(const Options& to) {
  to.choices
      .add_option_function<std::string>(
          "--pool",
          [&spec = to.spec](const auto& pool) { spec.mutable_pool()->set_pool(FullName("pools/", pool)); },
          "Extents of a pool, which is a drive of this host")
      ->type_name(kPoolArgument);
}

std::string ShowPool(const v1::PoolBackend& pool) {
  return fmt::format("pool:{}", IdOf(pool.pool()));
}

// ---- nvme_tcp

void AddNvmeTcp(const Options& to) {
  auto* nvme = to.choices
                   .add_option_function<std::string>(
                       "--nvme-tcp",
                       [&spec = to.spec](const auto& subsystem) {
                         spec.mutable_nvme_tcp()->set_subsystem(FullName("subsystems/", subsystem));
                       },
                       "A namespace of an NVMe-oF subsystem, over NVMe/TCP or NVMe/RDMA as its "
                       "addresses say; it is there and at least as large")
                   ->type_name(kSubsystemArgument);
  auto* name_space =
      to.create
          .add_option_function<std::string>(
              "--namespace",
              [&spec = to.spec](const auto& uuid) { spec.mutable_nvme_tcp()->set_namespace_uuid(uuid); },
              "... which one: its UUID")
          ->type_name("UUID")
          ->needs(nvme);
  nvme->needs(name_space);
}

std::string ShowNvmeTcp(const v1::NvmeTcpBackend& nvme) {
  return fmt::format("nvme-tcp:{}/{}", IdOf(nvme.subsystem()), nvme.namespace_uuid());
}

// ---- example

void AddExample(const Options& to) {
  if (!kExampleDisks) return;
  auto* example = to.choices.add_flag_callback(
      "--example", [&spec = to.spec] { spec.mutable_example(); },
      "Memory of the engine, lost when that ends: the example of a back end");
  to.create
      .add_option_function<uint32_t>(
          "--fill", [&spec = to.spec](uint32_t fill) { spec.mutable_example()->set_fill(fill); },
          "What a byte of the example reads as that was never written: 0 to 255")
      ->needs(example);
}

std::string ShowExample(const v1::ExampleBackend& example) {
  return example.fill() == 0 ? "example" : fmt::format("example (filled with {})", example.fill());
}

// ---- All kinds: without a default, so that the compiler names one that is missing

// In the help of `disk create`; what people take for most disks comes first.
int PlaceInHelp(Kind kind) {
  switch (kind) {
    case Kind::kFile:
      return 0;
    case Kind::kMemory:
      return 1;
    case Kind::kNull:
      return 2;
    case Kind::kRbd:
      return 3;
    case Kind::kPool:
      return 4;
    case Kind::kNvmeTcp:
      return 5;
    case Kind::kExample:
      return 6;
    case Kind::BACKEND_NOT_SET:
      break;
  }
  return -1;
}

void AddKind(Kind kind, const Options& to) {
  switch (kind) {
    case Kind::kNull:
      return AddNull(to);
    case Kind::kMemory:
      return AddMemory(to);
    case Kind::kFile:
      return AddFile(to);
    case Kind::kRbd:
      return AddRbd(to);
    case Kind::kPool:
      return AddPool(to);
    case Kind::kNvmeTcp:
      return AddNvmeTcp(to);
    case Kind::kExample:
      return AddExample(to);
    case Kind::BACKEND_NOT_SET:
      return;
  }
}

}  // namespace

std::string ShowBackend(const v1::DiskSpec& spec) {
  switch (spec.backend_case()) {
    case Kind::kNull:
      return ShowNull(spec.null());
    case Kind::kMemory:
      return "memory";
    case Kind::kFile:
      return "file:" + spec.file().path();
    case Kind::kRbd:
      return ShowRbd(spec.rbd());
    case Kind::kPool:
      return ShowPool(spec.pool());
    case Kind::kNvmeTcp:
      return ShowNvmeTcp(spec.nvme_tcp());
    case Kind::kExample:
      return ShowExample(spec.example());
    case Kind::BACKEND_NOT_SET:
      break;
  }
  return "?";
}

void AddBackends(CLI::App& create, v1::DiskSpec& spec) {
  std::vector<Kind> kinds;
  const auto* backend = v1::DiskSpec::descriptor()->FindOneofByName("backend");
  for (int i = 0; i < backend->field_count(); ++i)
    kinds.push_back(static_cast<Kind>(backend->field(i)->number()));
  std::sort(kinds.begin(), kinds.end(), [](Kind a, Kind b) { return PlaceInHelp(a) < PlaceInHelp(b); });
  auto* choices = create.add_option_group("backend", "What stores the blocks");
  for (const Kind kind : kinds) AddKind(kind, {create, *choices, spec});
  choices->require_option(1);
}

}  // namespace cleat::ctl
