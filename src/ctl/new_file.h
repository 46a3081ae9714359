// SPDX-License-Identifier: Apache-2.0
// A file that gets its name only when all of it is on the disk. Owned by the command that makes it; one thread. What is not
// finished goes with its owner.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::ctl {

class NewFile {
 public:
  // `if_there`: what the error says is to be done when there is a file of that name.
  NewFile(std::string path, std::string if_there);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Makes the file, of mode 0600, under another name beside it.
  Status Open();
  Status Write(std::string_view data);
  int fd() const { return fd_.get(); }
  // Gives it its name. kAlreadyExists: there is one, and `replace` is not set.
  Status Finish(bool replace);

 private:
  bool Rename(bool replace) const;
  Error Failed() const;

  const std::string path_;
  const std::string if_there_;
  std::string unfinished_;
  UniqueFd fd_;
};

}  // namespace cleat::ctl
