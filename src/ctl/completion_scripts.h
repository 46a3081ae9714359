// SPDX-License-Identifier: Apache-2.0
// What `cleatctl completion` prints. The scripts only ask `cleatctl __complete WORD...` (complete.h), so that they need
// not change when commands do.
#pragma once

#include <string_view>

namespace cleat::ctl {

// Bash splits words at = and : as well; the script joins them, and gives bash the part after the last of them.
inline constexpr std::string_view kBashCompletion = R"(# bash completion of cleatctl
_cleatctl() {
  local words=() word join= i
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((${#words[@]})) && [[ $join || $word == [=:]* ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
    join=
    [[ $word == *[=:] ]] && join=1
  done
  local current= prefix= line
  ((${#words[@]})) && current=${words[-1]}
  [[ $current == *[=:]* ]] && prefix=${current%"${current##*[=:]}"}
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${current#"$prefix"}")
    else
      line=${line%%$'\t'*}
      COMPREPLY+=("${line#"$prefix"}")
    fi
  done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -F _cleatctl cleatctl
)";

inline constexpr std::string_view kZshCompletion = R"(#compdef cleatctl
# zsh completion of cleatctl
_cleatctl() {
  local -a found
  local line files=
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      files=1
    else
      line=${line//:/\\:}
      found+=("${line/$'\t'/:}")
    fi
  done < <("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)
  if [[ -n $files ]]; then
    compset -P '--*='
    _files
  else
    _describe cleatctl found
  fi
}
if [[ ${funcstack[1]:-} == _cleatctl ]]; then _cleatctl "$@"; else compdef _cleatctl cleatctl; fi
)";

}  // namespace cleat::ctl
