// SPDX-License-Identifier: Apache-2.0
// How a test program is started: gtest's own options, and --of, by which ctest runs one program in parts.
#pragma once

namespace cleat::test {

// Initializes gtest and takes `--of A_TEST.CC[,B_TEST.CC...]` out of the arguments: of all tests, those that are defined in
// these source files are run; a gtest filter is refused beside it. Exits with status 2 when a file has no test - a part that
// runs nothing must not pass - or a suite is spread over two files. Call once, first thing in main.
void InitTestProgram(int* argc, char** argv);

}  // namespace cleat::test
