// SPDX-License-Identifier: Apache-2.0
// docs/scsi.md says what the table of commands says.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "scsi/command_table.h"
#include "tests/support/paths.h"

namespace cleat::scsi::documented_test {
namespace {

// The cells of each row below that headline.
std::vector<std::vector<std::string>> RowsBelow(const std::string& headline) {
  std::ifstream file(test::SourceFile("docs/scsi.md"));
  std::vector<std::vector<std::string>> rows;
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) here = line == headline;
    if (!here || !line.starts_with("| ") || line.starts_with("| command ")) continue;
    std::vector<std::string> cells;
    size_t at = 2;
    for (size_t end = 0; (end = line.find(" |", at)) != std::string::npos; at = end + 3) {
      cells.push_back(line.substr(at, end - at));
    }
    rows.push_back(cells);
  }
  return rows;
}

// "9Eh/10h 16": opcode, service action if it has one, length of the CDB.
std::string InTable(const CommandInfo& info) {
  char text[32];
  if (info.service_action < 0) {
    std::snprintf(text, sizeof(text), "%02Xh %d", static_cast<unsigned>(info.opcode), int{info.cdb_bytes});
  } else {
    std::snprintf(text, sizeof(text), "%02Xh/%02Xh %d", static_cast<unsigned>(info.opcode),
                  static_cast<unsigned>(info.service_action), int{info.cdb_bytes});
  }
  return text;
}

TEST(DocumentedTest, ThePageHasTheCommandsOfTheTableAndNoOthers) {
  std::vector<std::string> known;
  for (const CommandInfo& info : AllCommands()) known.push_back(InTable(info));
  std::vector<std::string> documented;
  for (const auto& cells : RowsBelow("## Supported")) {
    ASSERT_EQ(cells.size(), 4U) << cells.front();
    documented.push_back(cells[1] + " " + cells[2]);
    EXPECT_FALSE(cells[3].empty()) << cells.front();
  }
  EXPECT_EQ(documented, known);
}

TEST(DocumentedTest, WhatThePageCallsRefusedIsNotKnownAndHasItsReason) {
  const auto rows = RowsBelow("## Refused, and why");
  EXPECT_FALSE(rows.empty());
  std::set<int> refused;
  for (const auto& cells : rows) {
    ASSERT_EQ(cells.size(), 3U) << cells.front();
    EXPECT_FALSE(cells[2].empty()) << cells.front();
    const std::regex opcode("([0-9A-F]{2})h");
    for (auto found = std::sregex_iterator(cells[1].begin(), cells[1].end(), opcode);
         found != std::sregex_iterator(); ++found) {
      const int number = std::stoi((*found)[1], nullptr, 16);
      EXPECT_TRUE(refused.insert(number).second) << cells.front() << ": twice";
      Cdb cdb{};
      cdb[0] = static_cast<uint8_t>(number);
      EXPECT_EQ(FindCommand(cdb), nullptr) << cells.front();
      EXPECT_FALSE(HasServiceActions(cdb[0])) << cells.front();
    }
  }
}

}  // namespace
}  // namespace cleat::scsi::documented_test
