// SPDX-License-Identifier: Apache-2.0
#include "control/state/writes/object_changes.h"

#include <fmt/format.h>

#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/disk_identity.h"
#include "control/model/json.h"
#include "control/model/names.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {
namespace {

constexpr const char* kDeleting = R"({"deleting":true})";

// ---- Objects, and what callers can set of them

struct Object {
  std::string kind;
  std::string name;
  uint64_t kept = 0;  // one of several deleted disks of that name: its revision
  auto operator<=>(const Object&) const = default;
};

Object ObjectOf(const DiskRow& row) {
  return {"disk", DiskName(row.id)};
}
Object ObjectOf(const EraseDiskRow& row) {
  return {"disk", DiskName(row.id)};
}
Object ObjectOf(const DeletedDiskRow& row) {
  return ObjectOf(row.disk);
}
Object ObjectOf(const GroupRow& row) {
  return {"group", GroupName(row.id)};
}
Object ObjectOf(const EraseGroupRow& row) {
  return {"group", GroupName(row.id)};
}
Object ObjectOf(const ClusterRow& row) {
  return {"cluster", ClusterName(row.id)};
}
Object ObjectOf(const EraseClusterRow& row) {
  return {"cluster", ClusterName(row.id)};
}
Object ObjectOf(const SubsystemRow& row) {
  return {"subsystem", SubsystemName(row.id)};
}
Object ObjectOf(const EraseSubsystemRow& row) {
  return {"subsystem", SubsystemName(row.id)};
}
Object ObjectOf(const PoolRow& row) {
  return {"pool", PoolName(row.id)};
}
Object ObjectOf(const ErasePoolRow& row) {
  return {"pool", PoolName(row.id)};
}
Object ObjectOf(const ControllerRow& row) {
  return {"controller", ControllerName(row.id)};
}
Object ObjectOf(const EraseControllerRow& row) {
  return {"controller", ControllerName(row.id)};
}
Object ObjectOf(const AttachmentRow& row) {
  return {"attachment", AttachmentName(row.controller, row.id)};
}
Object ObjectOf(const EraseAttachmentRow& row) {
  return {"attachment", AttachmentName(row.controller, row.id)};
}
Object ObjectOf(const UpgradeRow& row) {
  return {"upgrade", EngineName(row.engine)};
}
Object ObjectOf(const EraseUpgradeRow& row) {
  return {"upgrade", EngineName(row.engine)};
}

struct State {
  std::string json;  // empty: the object is not there
  std::string key;   // all of its keys, wrapped; to be compared, and shown to nobody
};

std::string SpecAndLabels(const google::protobuf::Message& spec, const Labels& labels) {
  std::string json = fmt::format(R"("spec":{})", JsonWithoutKeys(spec));
  if (!labels.empty()) json += fmt::format(R"(,"labels":{})", JsonLabels(labels));
  return json;
}

State StateOf(const DiskRow& row) {
  if (row.deleting) return {kDeleting, {}};
  return {'{' + SpecAndLabels(row.spec, row.labels) + '}', WrappedKeyBytes(row.spec)};
}
State StateOf(const DeletedDiskRow& row, uint64_t store_number) {
  const uint64_t uid = DiskIdentity::Of(store_number, row.disk.revision).value();
  return {fmt::format(R"({{"deleted":true,"uid":"{:016x}","purge_time_s":{},{}}})", uid, row.purge_time_s,
                      SpecAndLabels(row.disk.spec, row.disk.labels)),
          WrappedKeyBytes(row.disk.spec)};
}
State StateOf(const GroupRow& row) {
  return {'{' + SpecAndLabels(row.spec, row.labels) + '}', {}};
}
State StateOf(const ClusterRow& row) {
  return {'{' + SpecAndLabels(row.spec, row.labels) + '}', WrappedKeyBytes(row.spec)};
}
State StateOf(const SubsystemRow& row) {
  return {'{' + SpecAndLabels(row.spec, row.labels) + '}', WrappedKeyBytes(row.spec)};
}
State StateOf(const PoolRow& row) {
  return {'{' + SpecAndLabels(row.spec, row.labels) + '}', {}};
}
State StateOf(const ControllerRow& row) {
  if (row.deleting) return {kDeleting, {}};
  std::string json = SpecAndLabels(row.spec, row.labels);
  if (!row.engine.empty()) json += fmt::format(R"(,"engine":{})", JsonString(EngineName(row.engine)));
  return {'{' + json + '}', WrappedKeyBytes(row.spec)};
}
State StateOf(const AttachmentRow& row) {
  if (row.deleting) return {kDeleting, {}};
  return {'{' + SpecAndLabels(row.spec, {}) + '}', {}};
}
State StateOf(const v1::UpgradeStatus& status) {
  return {fmt::format(R"({{"to":{},"state":"{}"}})", JsonString(status.to()),
                      v1::UpgradeState_Name(status.state())),
          {}};
}
State StateOf(const UpgradeRow& row) {
  return StateOf(row.status);
}
State StateOf(const EraseDiskRow& /*row*/) {
  return {};
}
State StateOf(const EraseGroupRow& /*row*/) {
  return {};
}
State StateOf(const EraseClusterRow& /*row*/) {
  return {};
}
State StateOf(const EraseSubsystemRow& /*row*/) {
  return {};
}
State StateOf(const ErasePoolRow& /*row*/) {
  return {};
}
State StateOf(const EraseControllerRow& /*row*/) {
  return {};
}
State StateOf(const EraseAttachmentRow& /*row*/) {
  return {};
}
State StateOf(const EraseUpgradeRow& /*row*/) {
  return {};
}

// ---- Before and after

class Changes {
 public:
  // Of an object that has several rows in one change - a disk, and what is kept of it - the first state before and the last one after count.
  void Add(Object object, State before, State after) {
    const auto [place, added] = places_.try_emplace(std::move(object), entries_.size());
    if (added) entries_.push_back({place->first, {}, {}});
    Entry& entry = entries_[place->second];
    if (entry.before.json.empty()) entry.before = std::move(before);
    if (!after.json.empty()) entry.after = std::move(after);
  }

  ObjectChanges Take() {
    ObjectChanges changes;
    for (Entry& entry : entries_) {
      NoteKey(entry);
      if (entry.before.json == entry.after.json) continue;
      changes.push_back({std::move(entry.object.kind), std::move(entry.object.name),
                         std::move(entry.before.json), std::move(entry.after.json)});
    }
    return changes;
  }

 private:
  struct Entry {
    Object object;
    State before;
    State after;
  };

  static void NoteKey(Entry& entry) {
    std::string& json = entry.after.json;
    if (entry.before.key == entry.after.key || json.empty() || json == kDeleting) return;
    const char* const what = entry.after.key.empty()    ? "(removed)"
                             : entry.before.key.empty() ? "(set)"
                                                        : "(changed)";
    json.insert(json.size() - 1, fmt::format(R"(,"key":"{}")", what));
  }

  std::map<Object, size_t> places_;
  std::vector<Entry> entries_;
};

// The rows of the tables that a change puts or erases. An overload for each kind: one that is missing does not compile.
class InTables {
 public:
  InTables(const Tables& tables, uint64_t store_number) : tables_(tables), store_number_(store_number) {}

  template <typename Row>
  void operator()(const Row& row) {
    changes_.Add(ObjectOf(row), Before(row), StateOf(row));
  }
  void operator()(const DeletedDiskRow& row) {
    const DeletedDiskRow* const before = tables_.deleted.Find(row.disk.id, row.disk.revision);
    changes_.Add(ObjectOf(row), before == nullptr ? State() : StateOf(*before, store_number_),
                 StateOf(row, store_number_));
  }
  void operator()(const EraseDeletedDiskRow& erased) {
    for (const auto& [key, row] : tables_.deleted.rows()) {
      if (row.disk.revision == erased.revision) changes_.Add(ObjectOf(row), StateOf(row, store_number_), {});
    }
  }
  ObjectChanges Take() { return changes_.Take(); }

 private:
  template <typename Entry>
  static State StateIn(const Entry* entry) {
    return entry == nullptr ? State() : StateOf(entry->row);
  }
  State Attachment(const std::string& controller, const std::string& id) const {
    const ControllerEntry* const entry = tables_.controllers.Find(controller);
    if (entry == nullptr) return {};
    const auto found = entry->attachments.find(id);
    return found == entry->attachments.end() ? State() : StateOf(found->second.row);
  }
  State Upgrade(const std::string& id) const {
    const EngineEntry* const engine = tables_.engines.Find(id);
    return engine == nullptr || !engine->upgrade ? State() : StateOf(*engine->upgrade);
  }
  State Before(const DiskRow& row) const { return StateIn(tables_.disks.Find(row.id)); }
  State Before(const EraseDiskRow& row) const { return StateIn(tables_.disks.Find(row.id)); }
  State Before(const GroupRow& row) const { return StateIn(tables_.groups.Find(row.id)); }
  State Before(const EraseGroupRow& row) const { return StateIn(tables_.groups.Find(row.id)); }
  State Before(const ClusterRow& row) const { return StateIn(tables_.clusters.Find(row.id)); }
  State Before(const EraseClusterRow& row) const { return StateIn(tables_.clusters.Find(row.id)); }
  State Before(const SubsystemRow& row) const { return StateIn(tables_.subsystems.Find(row.id)); }
  State Before(const EraseSubsystemRow& row) const { return StateIn(tables_.subsystems.Find(row.id)); }
  State Before(const PoolRow& row) const { return StateIn(tables_.pools.Find(row.id)); }
  State Before(const ErasePoolRow& row) const { return StateIn(tables_.pools.Find(row.id)); }
  State Before(const ControllerRow& row) const { return StateIn(tables_.controllers.Find(row.id)); }
  State Before(const EraseControllerRow& row) const { return StateIn(tables_.controllers.Find(row.id)); }
  State Before(const AttachmentRow& row) const { return Attachment(row.controller, row.id); }
  State Before(const EraseAttachmentRow& row) const { return Attachment(row.controller, row.id); }
  State Before(const UpgradeRow& row) const { return Upgrade(row.engine); }
  State Before(const EraseUpgradeRow& row) const { return Upgrade(row.engine); }

  const Tables& tables_;
  const uint64_t store_number_;
  Changes changes_;
};

}  // namespace

ObjectChanges ChangesOf(const Tables& tables, uint64_t store_number, const StoreChange& change) {
  InTables changes(tables, store_number);
  for (const RowChange& row : change) std::visit(changes, row);
  return changes.Take();
}

ObjectChanges ChangesBetween(RowsOfStore before, RowsOfStore after) {
  Changes changes;
  const auto add = [&](const auto& rows_before, const auto& rows_after) {
    for (const auto& row : rows_before) changes.Add(ObjectOf(row), StateOf(row), {});
    for (const auto& row : rows_after) changes.Add(ObjectOf(row), {}, StateOf(row));
  };
  add(before.rows.disks, after.rows.disks);
  add(before.rows.groups, after.rows.groups);
  add(before.rows.clusters, after.rows.clusters);
  add(before.rows.subsystems, after.rows.subsystems);
  add(before.rows.pools, after.rows.pools);
  add(before.rows.controllers, after.rows.controllers);
  add(before.rows.attachments, after.rows.attachments);
  add(before.rows.upgrades, after.rows.upgrades);
  // Many may have had the same name.
  const auto kept = [](const DeletedDiskRow& row) {
    return Object{"disk", DiskName(row.disk.id), row.disk.revision};
  };
  for (const DeletedDiskRow& row : before.rows.deleted_disks)
    changes.Add(kept(row), StateOf(row, before.number), {});
  for (const DeletedDiskRow& row : after.rows.deleted_disks)
    changes.Add(kept(row), {}, StateOf(row, after.number));
  return changes.Take();
}

std::vector<std::string> ObjectsOf(const StoreChange& change) {
  std::vector<std::string> objects;
  for (const RowChange& row : change) {
    std::visit(
        [&](const auto& one) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, EraseDeletedDiskRow>)
            objects.push_back(ObjectOf(one).name);
        },
        row);
  }
  return objects;
}

}  // namespace cleat::control
