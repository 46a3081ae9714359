// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace cleat::log {

Status Init(std::string_view program, std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("log level '{}' is unknown: use trace, debug, info, "
                             "warn, error or off",
                             level));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return Ok{};
}

void Write(spdlog::level::level_enum level, std::string_view line) {
  spdlog::log(level, "{}", line);
}

}  // namespace cleat::log
