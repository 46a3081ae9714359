// SPDX-License-Identifier: Apache-2.0
#include "ctl/complete.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ctl/app.h"

namespace cleat::ctl::complete_test {
namespace {

using Words = std::vector<std::string>;

class CompleteTest : public ::testing::Test {
 protected:
  CompleteTest() { BuildApp(app_, globals_); }

  // Without the descriptions.
  Words Complete(const Words& words) {
    const auto find_ids = [this](std::string_view kind, const std::string& parent) -> Words {
      asked_.push_back(std::string(kind) + (parent.empty() ? "" : " of " + parent));
      return {"id-a", "id-b"};
    };
    Words found = ctl::Complete(app_, words, globals_, find_ids);
    for (std::string& line : found) line = line.substr(0, line.find('\t'));
    return found;
  }

  static bool Has(const Words& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  Globals globals_;
  CLI::App app_;
  Words asked_;
};

TEST_F(CompleteTest, Commands) {
  const Words all = Complete({""});
  for (const char* command :
       {"disk", "pool", "group", "controller", "attach", "detach", "attachment", "engine", "watch", "wait",
        "apply", "explain", "completion", "version", "help"}) {
    EXPECT_TRUE(Has(all, command)) << command;
  }
  EXPECT_EQ(Complete({"de"}), Words{"detach"});
  EXPECT_EQ(Complete({"disk", "re"}), Words{"resize"});
  EXPECT_EQ(Complete({"help", "disk", "re"}), Words{"resize"});
  EXPECT_TRUE(Complete({"fly", ""}).empty());
  EXPECT_TRUE(asked_.empty());
}

TEST_F(CompleteTest, Options) {
  const Words create = Complete({"disk", "create", "--"});
  for (const char* option : {"--size", "--file", "--memory", "--label", "--wait", "--output", "--address"}) {
    EXPECT_TRUE(Has(create, option)) << option;
  }
  EXPECT_FALSE(Has(create, "--queues"));
  EXPECT_EQ(Complete({"controller", "create", "--ty"}), Words{"--type"});
}

TEST_F(CompleteTest, ValuesOfOptions) {
  EXPECT_EQ(Complete({"--output", ""}), (Words{"table", "json", "yaml"}));
  EXPECT_EQ(Complete({"-o", "y"}), Words{"yaml"});
  EXPECT_EQ(Complete({"--output=j"}), Words{"--output=json"});
  EXPECT_EQ(Complete({"disk", "list", "--output", "t"}), Words{"table"});
  EXPECT_EQ(Complete({"controller", "create", "c", "--type", "s"}), Words{"scsi"});
  EXPECT_EQ(Complete({"controller", "create", "c", "--engine", "id"}), (Words{"id-a", "id-b"}));
  EXPECT_EQ(Complete({"export", "create", "e", "--listen", "10.0.0.1", "--disk", "id"}),
            (Words{"id-a", "id-b"}));
  EXPECT_EQ(Complete({"export", "update", "id"}), (Words{"id-a", "id-b"}));
  EXPECT_EQ(Complete({"engine", "upgrade", "e", "--to", "id"}), (Words{"id-a", "id-b"}));
  EXPECT_EQ(Complete({"disk", "create", "a", "--pool", "id-a"}), Words{"id-a"});
  EXPECT_EQ(Complete({"pool", "create", "p", "--device", ""}), Words{":files"});
  EXPECT_EQ(Complete({"pool", "scan", "--device", ""}), Words{":files"});
  EXPECT_EQ(Complete({"apply", "-f", "ho"}), Words{":files"});
  EXPECT_EQ(Complete({"disk", "create", "a", "--file", ""}), Words{":files"});
  EXPECT_EQ(Complete({"completion", ""}), (Words{"bash", "zsh"}));
  EXPECT_EQ(Complete({"explain", "DISK_I"}), Words{"DISK_IN_USE"});
  EXPECT_EQ(asked_, (Words{"ENGINE", "DISK", "EXPORT", "ENGINE", "POOL"}));
}

TEST_F(CompleteTest, Ids) {
  EXPECT_EQ(Complete({"attach", "id-b"}), Words{"id-b"});
  Complete({"attach", "id-a", ""});
  Complete({"attach", "--read-only", "--wait=5", "id-a", "--target", "3", ""});
  Complete({"detach", "vm1", ""});
  Complete({"wait", ""});
  Complete({"disk", "get", "--", ""});
  Complete({"pool", "delete", ""});
  EXPECT_EQ(asked_, (Words{"DISK", "CONTROLLER", "CONTROLLER", "WHICH of vm1", "NAME", "DISK", "POOL"}));
  EXPECT_TRUE(Complete({"attach", "id-a", "vm1", ""}).empty());
}

TEST_F(CompleteTest, TheAddressOfTheLineIsAsked) {
  Complete({"--address", "unix:/there", "disk", "get", ""});
  EXPECT_EQ(globals_.connection.address, "unix:/there");
  Complete({"disk", "get", "--address=h:1", "--ca", "ca.pem", ""});
  EXPECT_EQ(globals_.connection.address, "h:1");
  EXPECT_EQ(globals_.connection.ca, "ca.pem");
}

TEST_F(CompleteTest, NobodyThereIsQuiet) {
  globals_.connection.address = "unix:/nowhere/cleatd.sock";
  EXPECT_TRUE(FindIdsOfCleatd(globals_, "DISK", "").empty());
}

}  // namespace
}  // namespace cleat::ctl::complete_test
