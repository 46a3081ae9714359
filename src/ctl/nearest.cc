// SPDX-License-Identifier: Apache-2.0
#include "ctl/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cleat::ctl {
namespace {

constexpr size_t kSuggestionsMax = 3;

// Levenshtein's distance: letters inserted, left out or changed.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> Nearest(std::string_view word, const std::vector<std::string>& names) {
  if (word.empty()) return {};
  const size_t far = std::max<size_t>(2, word.size() / 3);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& name : names) {
    // A part of a name is nearer than any name of other letters that is not just a slip away.
    const bool part = word.size() >= 3 && name.find(word) != std::string::npos;
    const size_t distance = part ? 1 : Distance(word, name);
    if (distance <= far && distance < std::max(word.size(), name.size())) near.emplace_back(distance, name);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > kSuggestionsMax) near.resize(kSuggestionsMax);
  std::vector<std::string> result;
  for (auto& [distance, name] : near) result.push_back(std::move(name));
  return result;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& names) {
  const std::vector<std::string> near = Nearest(word, names);
  std::string text;
  for (size_t i = 0; i < near.size(); ++i) {
    if (i > 0) text += i + 1 == near.size() ? " or " : ", ";
    text += near[i];
  }
  return text.empty() ? text : ". Did you mean " + text + "?";
}

}  // namespace cleat::ctl
