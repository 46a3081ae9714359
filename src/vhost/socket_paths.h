// SPDX-License-Identifier: Apache-2.0
// How a controller's socket is found by its path: who may be led where is not this layer's to decide. On the control reactor.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::vhost {

class SocketPaths {
 public:
  virtual ~SocketPaths() = default;
  // What is at the path, O_PATH. kNotFound while nothing is.
  virtual Result<UniqueFd> FindSocket(const std::string& path) = 0;
  // The folder in which it is, or is to be made, O_PATH.
  virtual Result<UniqueFd> FindFolder(const std::string& path) = 0;
};

// Wherever the path leads.
class AnySocketPaths final : public SocketPaths {
 public:
  Result<UniqueFd> FindSocket(const std::string& path) override;
  Result<UniqueFd> FindFolder(const std::string& path) override;
};

}  // namespace cleat::vhost
