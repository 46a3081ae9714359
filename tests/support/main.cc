// SPDX-License-Identifier: Apache-2.0
// main of the test programs that have none of their own.
#include <gtest/gtest.h>

#include "tests/support/test_main.h"

int main(int argc, char** argv) {
  cleat::test::InitTestProgram(&argc, argv);
  return RUN_ALL_TESTS();
}
