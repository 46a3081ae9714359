// SPDX-License-Identifier: Apache-2.0
#include "pool/extents.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace cleat::pool {

uint64_t CountOf(const ExtentRuns& runs) {
  uint64_t count = 0;
  for (const ExtentRun& run : runs) count += run.count;
  return count;
}

ExtentRuns Joined(const ExtentRuns& runs) {
  ExtentRuns joined;
  for (const ExtentRun& run : runs) {
    if (!joined.empty() && joined.back().end() == run.first) {
      joined.back().count += run.count;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

bool BeginsWith(const ExtentRuns& all, const ExtentRuns& first) {
  if (first.size() > all.size() || first.empty()) return first.empty();
  const size_t last = first.size() - 1;
  return std::equal(first.begin(), first.end() - 1, all.begin()) && all[last].first == first[last].first &&
         all[last].count >= first[last].count;
}

bool AreWithin(const ExtentRuns& runs, uint32_t extents) {
  ExtentSet seen;
  for (const ExtentRun& run : runs) {
    if (run.count == 0 || run.end() > extents || !seen.IsFree(run)) return false;
    seen.Add(run);
  }
  return true;
}

bool ExtentSet::IsFree(ExtentRun run) const {
  const auto after = runs_.upper_bound(run.first);
  if (after != runs_.end() && after->first < run.end()) return false;
  if (after == runs_.begin()) return true;
  const auto before = std::prev(after);
  return uint64_t{before->first} + before->second <= run.first;
}

bool ExtentSet::HasAll(ExtentRun run) const {
  const auto after = runs_.upper_bound(run.first);
  if (after == runs_.begin()) return false;
  const auto before = std::prev(after);
  return uint64_t{before->first} + before->second >= run.end();
}

void ExtentSet::Add(ExtentRun run) {
  CLEAT_CHECK(run.count > 0 && IsFree(run));
  count_ += run.count;
  auto next = runs_.lower_bound(run.first);
  if (next != runs_.end() && next->first == run.end()) {
    run.count += next->second;
    next = runs_.erase(next);
  }
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    if (uint64_t{before->first} + before->second == run.first) {
      before->second += run.count;
      return;
    }
  }
  runs_.emplace(run.first, run.count);
}

void ExtentSet::Add(const ExtentRuns& runs) {
  for (const ExtentRun& run : runs) Add(run);
}

void ExtentSet::Remove(ExtentRun run) {
  CLEAT_CHECK(run.count > 0 && HasAll(run));
  count_ -= run.count;
  const auto found = std::prev(runs_.upper_bound(run.first));
  const ExtentRun whole{found->first, found->second};
  runs_.erase(found);
  if (whole.first < run.first) runs_.emplace(whole.first, run.first - whole.first);
  if (run.end() < whole.end())
    runs_.emplace(static_cast<uint32_t>(run.end()), static_cast<uint32_t>(whole.end() - run.end()));
}

void ExtentSet::Remove(const ExtentRuns& runs) {
  for (const ExtentRun& run : runs) Remove(run);
}

std::optional<ExtentRuns> ExtentSet::Take(uint32_t count) {
  if (count > count_) return std::nullopt;
  ExtentRuns taken;
  while (count > 0) {
    // The shortest that is long enough, else the longest.
    const auto better = [count](const auto& a, const auto& b) {
      const bool a_fits = a.second >= count;
      const bool b_fits = b.second >= count;
      if (a_fits != b_fits) return a_fits;
      return a_fits ? a.second < b.second : a.second > b.second;
    };
    const auto best = std::min_element(runs_.begin(), runs_.end(), better);
    const ExtentRun run{best->first, std::min(best->second, count)};
    Remove(run);
    taken.push_back(run);
    count -= run.count;
  }
  return taken;
}

uint32_t ExtentSet::longest() const {
  uint32_t longest = 0;
  for (const auto& [first, count] : runs_) longest = std::max(longest, count);
  return longest;
}

ExtentRuns ExtentSet::Runs() const {
  ExtentRuns runs;
  runs.reserve(runs_.size());
  for (const auto& [first, count] : runs_) runs.push_back({first, count});
  return runs;
}

}  // namespace cleat::pool
