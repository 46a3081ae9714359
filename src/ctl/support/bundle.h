// SPDX-License-Identifier: Apache-2.0
// What goes into a support bundle: named texts, and what was left out of it and why. A plain value, made by collect.h and written by
// WriteBundle; one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat::ctl {

class Bundle {
 public:
  // Of a longer part the end is kept, which is the newest of a log; when all of them have so much, further ones are left out.
  static constexpr size_t kPartBytesMax = size_t{8} << 20;
  static constexpr size_t kBytesMax = size_t{64} << 20;

  struct Part {
    std::string name;  // "host/disks.json": a path in the bundle
    std::string text;
    bool cut = false;
  };
  struct LeftOut {
    std::string name;
    std::string why;
  };

  // The text has been redacted.
  void Add(std::string name, std::string text);
  void LeaveOut(std::string name, std::string why);

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<LeftOut>& left_out() const { return left_out_; }
  // A line for each part and for each thing left out.
  std::string Manifest() const;

 private:
  std::vector<Part> parts_;
  std::vector<LeftOut> left_out_;
  size_t bytes_ = 0;
};

// A compressed tar archive of mode 0600, with the parts and MANIFEST in one folder. kAlreadyExists: there is such a file, which stays as it
// is. The base system's tar makes it, of a folder in the temporary directory that no other user can enter: no library parses anything,
// and whoever gets the file has the same program.
Status WriteBundle(const Bundle& bundle, const std::string& path);

}  // namespace cleat::ctl
