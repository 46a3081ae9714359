// SPDX-License-Identifier: Apache-2.0
// All resources of a kind, by id, in the ids' order. An entry stays where it is until it is erased. Under the state's mutex.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::control {

template <typename Entry>
class ResourceTable {
 public:
  using Map = std::map<std::string, Entry>;
  using const_iterator = typename Map::const_iterator;

  // Null when it is not there.
  Entry* Find(const std::string& id) {
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second;
  }
  const Entry* Find(const std::string& id) const {
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second;
  }
  // Of a resource that something in the tables names, so that it is there.
  Entry& At(const std::string& id) {
    Entry* const entry = Find(id);
    CLEAT_CHECK(entry != nullptr);
    return *entry;
  }
  const Entry& At(const std::string& id) const {
    const Entry* const entry = Find(id);
    CLEAT_CHECK(entry != nullptr);
    return *entry;
  }
  bool Has(const std::string& id) const { return entries_.contains(id); }

  // The resource is new.
  Entry& Insert(const std::string& id, Entry entry) {
    const auto [place, inserted] = entries_.emplace(id, std::move(entry));
    CLEAT_CHECK(inserted);
    return place->second;
  }
  void Erase(const std::string& id) { CLEAT_CHECK(entries_.erase(id) == 1); }

  size_t size() const { return entries_.size(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  // The first one behind that id, for pages; and the first one that is not before it.
  const_iterator After(const std::string& id) const { return entries_.upper_bound(id); }
  const_iterator From(const std::string& id) const { return entries_.lower_bound(id); }

 private:
  Map entries_;
};

}  // namespace cleat::control
