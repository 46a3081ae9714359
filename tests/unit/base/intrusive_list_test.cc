// SPDX-License-Identifier: Apache-2.0
#include "base/intrusive_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "base/random.h"

namespace cleat::intrusive_list_test {
namespace {

struct Item {
  explicit Item(int v) : value(v) {}
  int value;
  ListHook hook;
};
using List = IntrusiveList<Item, &Item::hook>;

std::vector<int> Values(List& list) {
  std::vector<int> values;
  for (Item* item = list.front(); item != nullptr; item = list.Next(*item)) values.push_back(item->value);
  return values;
}

TEST(IntrusiveList, AgreesWithADeque) {
  Random random(1);
  std::deque<Item> items;
  for (int i = 0; i < 50; ++i) items.emplace_back(i);
  List list;
  std::deque<int> model;
  for (int step = 0; step < 20'000; ++step) {
    Item& item = items[random.Below(items.size())];
    switch (random.Below(5)) {
      case 0:
        if (item.hook.linked()) break;
        list.PushBack(item);
        model.push_back(item.value);
        break;
      case 1:
        if (item.hook.linked()) break;
        list.PushFront(item);
        model.push_front(item.value);
        break;
      case 2:
        ASSERT_EQ(item.hook.linked(), std::erase(model, item.value) == 1);
        item.hook.Unlink();
        break;
      case 3: {
        const Item* front = list.PopFront();
        ASSERT_EQ(front == nullptr, model.empty());
        if (front == nullptr) break;
        ASSERT_EQ(front->value, model.front());
        model.pop_front();
        break;
      }
      default: {  // away to another list and back, twice round
        List other;
        other.Splice(list);
        ASSERT_TRUE(list.empty());
        list.Splice(other);
        list.Splice(other);
      }
    }
    ASSERT_EQ(Values(list), std::vector<int>(model.begin(), model.end()));
  }
}

TEST(IntrusiveList, ElementsAndListsMayDieInAnyOrder) {
  Item outlives(1);
  {
    List list;
    list.PushBack(outlives);
    {
      Item dies(2);
      list.PushBack(dies);
    }
    EXPECT_EQ(Values(list), std::vector<int>{1});
  }
  EXPECT_FALSE(outlives.hook.linked());
  List again;
  again.PushBack(outlives);
  EXPECT_EQ(again.front(), &outlives);
}

TEST(IntrusiveList, AnElementIsInOneListOnly) {
  Item item(1);
  List a;
  List b;
  a.PushBack(item);
  EXPECT_DEATH(b.PushBack(item), "check failed");
}

}  // namespace
}  // namespace cleat::intrusive_list_test
