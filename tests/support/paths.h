// SPDX-License-Identifier: Apache-2.0
// Where a test program finds what it needs: by its own place in the build tree, so that no path is compiled in.
#pragma once

#include <string>

namespace cleat::test {

// The path of a program of the product: "cleatd".
std::string Program(const std::string& name);
// The path of what was built for tests and lies beside them: "key_holder", "libcleat_no_lock.so".
std::string BuiltForTests(const std::string& name);
// The path of a file of the source tree: "docs/api.md".
std::string SourceFile(const std::string& path);

}  // namespace cleat::test
