#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tidy.py [--jobs N] [--clang-tidy PROGRAM] [--checks MORE] [--since COMMIT] BUILD_DIR FOLDER...

Runs clang-tidy over the sources in these folders (tests/fuzz, say) that are built in BUILD_DIR, and prints what it found. Exit
status 1: something.

Most of the time would go into the headers of libraries, so a dozen sources are put into one file, in BUILD_DIR/lint - not included:
clang's analyzer looks at the main file alone -, unless they use a name twice. Those that don't compile together after all are
checked by halves. More than a dozen take longer than apart: the time of performance-unnecessary-value-param grows with their square,
and is half of the whole there.

A source in which nothing was found is not checked again as long as it, the headers it includes, its options, .clang-tidy and
clang-tidy itself stay what they were: see class Verdicts."""

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

TOGETHER = 12
VERDICTS_MAX = 5000  # files in the folder of the verdicts; the oldest go
# linux/time.h. The clock of files' times, which is some milliseconds behind the finer one: by that one, what is written now can be older
# than what began before.
CLOCK_REALTIME_COARSE = 5
COMPILER = re.compile(r"(c\+\+|cc|g\+\+|gcc|clang|clang\+\+)(-\d+)?$")
# Options that change nothing of what clang-tidy sees; sources that differ in them alone go together.
NO_MATTER = ("-MD", "-Wno-subobject-linkage", "-fPIC", "-fPIE")
INCLUDED = re.compile(r'^#include "(.*)"$', re.M)
FINDING = re.compile(r"^(\S+?):(\d+):(\d+): (?:warning|error): ")
# What only one of the files in a translation unit may have: the names in anonymous namespaces, and macros.
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
NAME = re.compile(r"^(?:constexpr |const |thread_local )*(?:(?:class|struct|enum class|using) (\w+)|[\w:<>,&*\[\] ]+?[ *&](\w+)"
                  r"(?= =|\(|\[|\{|;))", re.M)
MACRO = re.compile(r'^#define (\w+)|^(?:extern "C" )?int (main|LLVMFuzzerTestOneInput)\(', re.M)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.M)
USING = re.compile(r"^using (?:namespace )?([\w:]+)(?: =|;)", re.M)
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))


def relative(path):
    return os.path.relpath(os.path.realpath(path), ROOT)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def own_names(path):
    """Of macros, main (libFuzzer's too), and what is of this file alone in its namespace."""
    text = read(path)
    space = next(iter(NAMESPACE.findall(text)), "")
    names = {("", name) for pair in MACRO.findall(text) for name in pair if name}
    found = USING.findall(text)
    for part in ANONYMOUS.findall(text):
        found += [name for pair in NAME.findall(part) for name in pair if name]
    return names | {(space, name) for name in found}


def own_folder(path):
    """The folder of a source that includes headers beside it; None of one that names all from the top."""
    folder = os.path.dirname(path)
    return folder if any(os.path.exists(os.path.join(folder, header)) for header in INCLUDED.findall(read(path))) else None


class Options:
    """What a compile command says, but for its files."""

    def __init__(self, command):
        words = iter(shlex.split(command))
        self.compiler = next(word for word in words if COMPILER.fullmatch(os.path.basename(word)))  # after its launcher
        self.found = []  # -D, -I and the like
        self.others = []
        for word in words:
            if word in ("-o", "-c", "-MT", "-MF"):
                next(words)
            elif word == "-isystem":
                self.found.append((word, next(words)))
            elif word.startswith(("-D", "-I")):
                self.found.append((word,))
            elif word not in NO_MATTER and not word.startswith(("-O", "-m", "-ffile-prefix-map=")):
                self.others.append(word)

    def kind(self):
        """What sources have to have in common to go together: a definition of ours may choose other code."""
        return tuple(self.others + sorted(word for word, *_ in self.found if word.startswith("-DCLEAT_")))

    def command(self, more, path):
        found = [word for option in dict.fromkeys([*self.found, *more]) for word in option]
        return shlex.join([self.compiler, *self.others, *found, "-c", path])


@functools.cache
def digest(path):
    """Of a file's content; None when it is gone."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return None


class Verdicts:
    """Which sources were found clean, by content: for each a file, named by what clang-tidy saw of it (version, checks, options,
    text), with the digests of all that it included then. In the user's cache folder (XDG_CACHE_HOME), for all clones."""

    def __init__(self, program, checks):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.folder = os.path.join(cache, "cleat", "clang-tidy")
        os.makedirs(self.folder, exist_ok=True)
        version = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.began_ns = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        self.common = [version, checks, read(os.path.join(ROOT, ".clang-tidy")), read(__file__)]
        self.clang = program.replace("clang-tidy", "clang++")

    def path(self, source, options):
        said = shlex.join(options.others + [word for option in options.found for word in option])
        seen = [*self.common, relative(source), said.replace(ROOT, "."), digest(source)]
        return os.path.join(self.folder, hashlib.sha256("\0".join(seen).encode()).hexdigest())

    def is_clean(self, source, options):
        path = self.path(source, options)
        try:
            with open(path, encoding="utf-8") as file:
                included = json.load(file)
            os.utime(path)  # the least used ones are thrown away
        except (FileNotFoundError, ValueError):
            return False
        return all(digest(os.path.join(ROOT, path)) == was for path, was in included.items())

    def keep(self, source, options, directory):
        """That nothing was found in it; not if a file has changed since this began, which clang-tidy may have seen or not."""
        command = shlex.split(options.command([], source))
        command = [self.clang, "-M", *command[1:]]
        run = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if run.returncode != 0:
            return
        paths = [os.path.join(directory, word) for word in run.stdout.replace("\\\n", " ").split()[1:]]
        # The digests first: what changes after them is found by the times, or has another digest than is kept.
        included = {relative(path) if os.path.realpath(path).startswith(ROOT + os.sep) else path: digest(path) for path in paths}
        if any(os.stat(path).st_mtime_ns >= self.began_ns for path in [source, *paths] if os.path.exists(path)):
            return
        # Another clone may do the same.
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as file:
            json.dump(included, file)
        os.replace(file.name, self.path(source, options))

    def prune(self):
        ages = {}
        for path in glob.glob(os.path.join(self.folder, "*")):
            with contextlib.suppress(FileNotFoundError):
                ages[path] = os.stat(path).st_mtime
        for path in sorted(ages, key=ages.get)[:max(0, len(ages) - VERDICTS_MAX)]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


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
        if folder := own_folder(self.sources[0]):  # the joined file lies elsewhere
            more.append(("-iquote", folder))
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


def includes_one_of(path, files):
    """From src/, from the top, or from the file's own folder."""
    folder = os.path.dirname(path)
    return any(not files.isdisjoint({header, f"src/{header}", f"{folder}/{header}"})
               for header in INCLUDED.findall(read(os.path.join(ROOT, path))))


def changed_since(commit, sources):
    """Those of the sources that differ from what they were at a commit, or include a header that does, itself or by way of others."""
    run = subprocess.run(["git", "diff", "--name-only", commit, "--"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        print(f"tidy.py: there is no commit {commit} here: all of it is checked", file=sys.stderr, flush=True)
        return sources
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                         check=True)
    changed = set(run.stdout.split()) | set(new.stdout.split())
    if ".clang-tidy" in changed:
        print(f"tidy.py: .clang-tidy has changed since {commit}: all of it is checked", file=sys.stderr, flush=True)
        return sources

    headers = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h"], cwd=ROOT,
                             stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    headers = [header for header in headers if os.path.exists(os.path.join(ROOT, header))]
    while more := {header for header in headers if header not in changed and includes_one_of(header, changed)}:
        changed |= more
    return {source: options for source, options in sources.items()
            if relative(source) in changed or includes_one_of(relative(source), changed)}


def sources_of(build):
    """The options of each source that is ours; what the build compiles together, taken apart. Of one that is compiled more than
    once, the first: the product's, before what tests make of it."""
    sources = {}
    for command in json.loads(read(os.path.join(build, "compile_commands.json"))):
        path = command["file"]
        inside = INCLUDED.findall(read(path)) if "/unity/" in path else []
        for source in [os.path.join(ROOT, one) for one in inside] or [path]:
            if relative(source).split(os.sep)[0] in ("src", "modules", "tests"):
                sources.setdefault(source, Options(command["command"]))
    return sources


def units_of(sources, build, lint):
    kinds = collections.defaultdict(list)
    for source, options in sorted(sources.items()):
        kinds[os.path.splitext(source)[1], options.kind(), own_folder(source)].append(source)
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


def check(program, unit, verdicts):
    """What clang-tidy has to say of a unit, or nothing."""
    run = subprocess.run([*program, unit.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode == 0:
        for source, options in zip(unit.sources, unit.options):
            verdicts.keep(source, options, unit.directory)
        return ""
    if len(unit.sources) > 1 and "[clang-diagnostic-" in run.stdout:
        print("tidy.py: not together:", *(relative(source) for source in unit.sources), file=sys.stderr, flush=True)
        return "".join(check(program, half, verdicts) for half in unit.halves())
    lines = [unit.place(line) for line in run.stdout.splitlines()]
    at_fault = {match[1] for line in lines if (match := FINDING.match(line))}
    # What is found in a header may be any source's.
    if at_fault and at_fault <= {relative(source) for source in unit.sources}:
        for source, options in zip(unit.sources, unit.options):
            if relative(source) not in at_fault:
                verdicts.keep(source, options, unit.directory)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clang-tidy", default="clang-tidy-16")
    parser.add_argument("--checks", default="", help="more than .clang-tidy names")
    parser.add_argument("--since", metavar="COMMIT", help="only what has changed since")
    parser.add_argument("build")
    parser.add_argument("folders", nargs="+")
    arguments = parser.parse_args()

    lint = os.path.join(arguments.build, "lint")
    os.makedirs(lint, exist_ok=True)
    folders = tuple(folder.rstrip("/") + "/" for folder in arguments.folders)
    chosen = {source: options for source, options in sources_of(arguments.build).items() if relative(source).startswith(folders)}
    if missing := [folder for folder in folders if not any(relative(source).startswith(folder) for source in chosen)]:
        sys.exit(f"tidy.py: {arguments.build} builds nothing in {' '.join(missing)}")
    if arguments.since:
        chosen = changed_since(arguments.since, chosen)
    verdicts = Verdicts(arguments.clang_tidy, arguments.checks)
    known = [source for source, options in chosen.items() if verdicts.is_clean(source, options)]
    for source in known:
        del chosen[source]
    print(f"tidy.py: {len(chosen)} sources to check, {len(known)} known to be clean", file=sys.stderr, flush=True)
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
        runs = [pool.submit(check, program, unit, verdicts) for unit in units]
        for done, run in enumerate(concurrent.futures.as_completed(runs), 1):
            if run.result():
                failed += 1
                print(run.result(), flush=True)
            if time.monotonic() - last >= 60:
                last = time.monotonic()
                print(f"tidy.py: {done} of {len(units)} after {last - began:.0f} s", file=sys.stderr, flush=True)
    verdicts.prune()
    sys.exit(1 if failed else 0)


main()
