#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tidy.py [--jobs N] [--clang-tidy PROGRAM] [--checks MORE] [--since COMMIT] BUILD_DIR FOLDER...

Runs clang-tidy over the built sources in these folders and prints what it found. Exit status 1: something.

Most of the time would go into the headers of libraries, so a dozen sources (more take longer than apart) are put into one
file, in BUILD_DIR/lint - not included: clang's analyzer looks at the main file alone -, unless they use a name twice. Those
that don't compile together after all are checked by halves. clang can't read GCC's precompiled headers: the compile
commands there leave them out."""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import time

TOGETHER = 12
# Options that change nothing of what clang-tidy sees; sources that differ in them alone go together.
NO_MATTER = ("-MD", "-Winvalid-pch", "-Wno-subobject-linkage", "-fPIC", "-fPIE")
INCLUDED = re.compile(r'^#include "(.*)"$', re.M)
FINDING = re.compile(r"^(\S+?):(\d+):(\d+): (?:warning|error): ")
# What only one of the files in a translation unit may have: the names in anonymous namespaces, and macros.
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
NAME = re.compile(r"^(?:constexpr |const |thread_local )*(?:(?:class|struct|enum class|using) (\w+)|[\w:<>,&*\[\] ]+?[ *&](\w+)"
                  r"(?= =|\(|\[|\{|;))", re.M)
MACRO = re.compile(r"^#define (\w+)|^int (main)\(", re.M)
USING = re.compile(r"^using (?:namespace )?([\w:]+)(?: =|;)", re.M)
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))


def relative(path):
    return os.path.relpath(os.path.realpath(path), ROOT)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def own_names(path):
    """Of macros, main, and what is of this file alone in its folder's namespace."""
    text = read(path)
    folder = os.path.dirname(path)
    names = {("", name) for pair in MACRO.findall(text) for name in pair if name}
    found = USING.findall(text)
    for part in ANONYMOUS.findall(text):
        found += [name for pair in NAME.findall(part) for name in pair if name]
    return names | {(folder, name) for name in found}


class Options:
    """What a compile command says, but for its files and precompiled headers."""

    def __init__(self, command):
        words = iter(shlex.split(command))
        self.compiler = next(words)
        if os.path.basename(self.compiler) == "ccache":
            self.compiler = next(words)
        self.found = []  # -D, -I and the like
        self.others = []
        for word in words:
            if word in ("-o", "-c", "-MT", "-MF"):
                next(words)
            elif word == "-include":
                header = next(words)
                if "cmake_pch" not in header:
                    self.others += [word, header]
            elif word == "-isystem":
                self.found.append((word, next(words)))
            elif word.startswith(("-D", "-I")):
                self.found.append((word,))
            elif word not in NO_MATTER and not word.startswith(("-O", "-m")):
                self.others.append(word)

    def command(self, more, path):
        found = [word for option in dict.fromkeys([*self.found, *more]) for word in option]
        return shlex.join([self.compiler, *self.others, *found, "-c", path])


class Unit:
    """What clang-tidy gets: one source, or several in one file. `options`: of each source."""

    def __init__(self, sources, options, directory):
        self.sources = sources
        self.options = options
        self.directory = directory
        self.first_lines = [1]
        self.path = sources[0]

    def join(self, path):
        self.path = os.path.abspath(path)
        line = 1
        self.first_lines = []
        with open(path, "w", encoding="utf-8") as file:
            for source in self.sources:
                text = read(source)
                self.first_lines.append(line)
                file.write(text)
                line += text.count("\n")

    def command(self):
        more = [option for options in self.options for option in options.found]
        return {"directory": self.directory, "file": self.path, "command": self.options[0].command(more, self.path)}

    def place(self, line):
        """A finding with the file and line that people know."""
        match = FINDING.match(line)
        if not match or relative(match[1]) != relative(self.path):
            return line
        number = int(match[2])
        which = max(i for i, first in enumerate(self.first_lines) if first <= number)
        return (f"{relative(self.sources[which])}:{number - self.first_lines[which] + 1}"
                f":{match[3]}: {line[match.end(3) + 2:]}")

    def halves(self):
        """Files of their own beside this one, for what it does not say as a whole."""
        middle = len(self.sources) // 2
        root, extension = os.path.splitext(self.path)
        for name, part in (("a", slice(middle)), ("b", slice(middle, None))):
            unit = Unit(self.sources[part], self.options[part], self.directory)
            if len(unit.sources) > 1:
                unit.join(root + name + extension)
            yield unit

    def with_halves(self):
        """All units that checking this one may need."""
        yield self
        if len(self.sources) > 1:
            for half in self.halves():
                yield from half.with_halves()


def changed_since(commit, sources):
    """Those of the sources that differ from what they were at a commit, or include a header that does."""
    run = subprocess.run(["git", "diff", "--name-only", commit, "--"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        print(f"tidy.py: there is no commit {commit} here: all of it is checked", file=sys.stderr, flush=True)
        return sources
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                         check=True)
    changed = set(run.stdout.split()) | set(new.stdout.split())

    def concerned(source):
        if relative(source) in changed:
            return True
        # From src/, from the top, or from the source's own folder. Not what those headers include in turn.
        folder = os.path.dirname(relative(source))
        return any(not changed.isdisjoint({header, f"src/{header}", f"{folder}/{header}"}) for header in INCLUDED.findall(read(source)))

    return {source: options for source, options in sources.items() if concerned(source)}


def sources_of(build):
    """The options of each source that is ours; what the build compiles together, taken apart."""
    sources = {}
    for command in json.loads(read(os.path.join(build, "compile_commands.json"))):
        path = command["file"]
        for source in INCLUDED.findall(read(path)) if "/Unity/unity_" in path else [path]:
            if relative(source).split(os.sep)[0] in ("src", "modules", "tests"):
                sources[source] = Options(command["command"])
    return sources


def units_of(sources, build, lint):
    kinds = collections.defaultdict(list)
    for source, options in sorted(sources.items()):
        kinds[os.path.splitext(source)[1], tuple(options.others)].append(source)
    units = []
    for kind in kinds.values():
        batches = []
        for source in kind:
            names = own_names(source)
            batch = next((b for b in batches if len(b[0]) < TOGETHER and not b[1] & names), None)
            if batch is None:
                batches.append(batch := ([], set()))
            batch[0].append(source)
            batch[1].update(names)
        units += [Unit(batch, [sources[source] for source in batch], os.path.abspath(build)) for batch, _ in batches]
    for number, unit in enumerate(units):
        if len(unit.sources) > 1:
            unit.join(os.path.join(lint, f"{number}{os.path.splitext(unit.sources[0])[1]}"))
    return units


def check(program, unit):
    """What clang-tidy has to say of a unit, or nothing."""
    run = subprocess.run([*program, unit.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode == 0:
        return ""
    if len(unit.sources) > 1 and "[clang-diagnostic-" in run.stdout:
        print("tidy.py: not together:", *(relative(source) for source in unit.sources), file=sys.stderr, flush=True)
        return "".join(check(program, half) for half in unit.halves())
    return "\n".join(unit.place(line) for line in run.stdout.splitlines()) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--clang-tidy", default="clang-tidy-16")
    parser.add_argument("--checks", default="", help="more than .clang-tidy names")
    parser.add_argument("--since", metavar="COMMIT", help="only what has changed since")
    parser.add_argument("build")
    parser.add_argument("folders", nargs="+")
    arguments = parser.parse_args()

    lint = os.path.join(arguments.build, "lint")
    os.makedirs(lint, exist_ok=True)
    chosen = {source: options for source, options in sources_of(arguments.build).items()
              if relative(source).split(os.sep)[0] in arguments.folders}
    if not chosen:
        sys.exit(f"tidy.py: {arguments.build} builds nothing in {' '.join(arguments.folders)}")
    if arguments.since:
        chosen = changed_since(arguments.since, chosen)
    print(f"tidy.py: {len(chosen)} sources", file=sys.stderr, flush=True)
    units = units_of(chosen, arguments.build, lint)
    commands = [one.command() for unit in units for one in unit.with_halves()]
    with open(os.path.join(lint, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(commands, file, indent=1)
    # The largest first, so that none is left alone at the end.
    units.sort(key=lambda unit: -len(unit.sources))
    program = [arguments.clang_tidy, "-p", lint, "--quiet", "--extra-arg=-Wno-unknown-warning-option",
               f"--checks={arguments.checks}"]
    failed = 0
    began = last = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(check, program, unit) for unit in units]
        for done, run in enumerate(concurrent.futures.as_completed(runs), 1):
            if run.result():
                failed += 1
                print(run.result(), flush=True)
            if time.monotonic() - last >= 60:
                last = time.monotonic()
                print(f"tidy.py: {done} of {len(units)} after {last - began:.0f} s", file=sys.stderr, flush=True)
    sys.exit(1 if failed else 0)


main()
