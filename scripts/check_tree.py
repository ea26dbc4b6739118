#!/usr/bin/env python3
"""Holds the rules of the source tree that no compiler holds.

    scripts/check_tree.py [ROOT]

Prints one line `file:line: what is wrong and what is allowed` for each violation and exits with 1
if there is any. The rules:

  dependencies   a folder includes only what its add_part line in CMakeLists.txt allows, and the
                 headers of outside libraries that scripts/cmake/FerryParts.cmake gives to it; a
                 test includes what its subject may include, headers of its own folder, and
                 tests/support
  cuda           CUDA code only in *_cuda.*, *.cu, *.cuh and the files CMake leaves out without
                 NCCL or cuDNN; everything else compiles with g++ alone
  conditionals   no #if or #ifdef: optional parts are pairs of files
  includes       named from the root, own header first; #pragma once
  size           no file over 600 lines
  tests          a source over 60 lines has a test of its name
  names          no folder or file called utils, helper, common ...
  text           ASCII only, no `using namespace` in a header

Exceptions are lines `path: reason` in scripts/conditionals.txt and scripts/untested.txt.
"""

import pathlib
import re
import sys

MAX_LINES = 600
UNTESTED_LINES = 60
CODE = {".h", ".cpp", ".cu", ".cuh"}
TEXT = CODE | {".py", ".sh", ".cmake", ".toml", ".txt"}
BUILT = ("build", "runs", "data")  # at the top level: made by the scripts, ignored by git

FORBIDDEN_NAMES = {
    "util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "third_party",
    "vendor", "include", "src",
}

# Headers of an outside library, and the target of FerryDependencies.cmake that a part must link
# to include them.
LIBRARY_HEADERS = [
    (re.compile(r"mpi\.h"), "MPI::MPI_CXX"),
    (re.compile(r"(hdf5|H5\w+)\.h"), "ferry_hdf5"),
    (re.compile(r"xxh(ash|3)\.h"), "ferry_xxhash"),
    (re.compile(r"nlohmann/.*"), "ferry_json"),
    (re.compile(r"fmt/.*"), "ferry_fmt"),
    (re.compile(r"toml\+\+/.*"), "ferry_toml"),
    (re.compile(r"CLI/.*"), "ferry_cli"),
    (re.compile(r"utf8proc\.h"), "ferry_utf8proc"),
    (re.compile(r"(cblas|lapacke|openblas_config)\.h"), "ferry_openblas"),
]

CUDA_HEADER = re.compile(
    r"(cuda\w*|cublas\w*|cudnn\w*|cupti\w*|nccl\w*|nvml|mma|cooperative_groups|cuda_\w+|vector_types)\.h"
    r"|(cub|thrust|cuda|nvtx3|cooperative_groups|cudnn_frontend|cute|cutlass)/.*"
    r"|cooperative_groups")
CUDA_CODE = re.compile(
    r"\b(cuda[A-Z]\w*|cu(blas|dnn|pti)[A-Z]\w*|cublasLt\w*|nccl[A-Z]\w*|nvml[A-Z]\w*"
    r"|CUDA_[A-Z]\w+|CUBLAS_\w+|CUDNN_\w+|NCCL_\w+"
    r"|__(global|device|host|shared|constant|forceinline|launch_bounds)__)|<<<")
CUDA_FILE = re.compile(r"(.*_cuda(_test)?\.\w+|.*\.cuh?|(nccl|cudnn|cupti)_\w+\.\w+)")

INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
CONDITIONAL = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")


def read_parts(root):
    """The add_part lines: {folder: (folders it may include, line)}, in order."""
    text = (root / "CMakeLists.txt").read_text()
    parts = {}
    for match in re.finditer(r"^add_part\(\s*([^\s)]+)\s+DEPENDS([^)]*)\)", text, re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        parts[match.group(1)] = (match.group(2).split(), line)
    return parts


def read_libraries(root):
    """Outside libraries of each folder: {folder with _ for /: set of targets}."""
    path = root / "scripts/cmake/FerryParts.cmake"
    libraries = {}
    if path.exists():
        pattern = r"(?:set\(|list\(APPEND )FERRY_LIBRARIES_(\w+)([^)]*)\)"
        for match in re.finditer(pattern, path.read_text()):
            libraries.setdefault(match.group(1), set()).update(match.group(2).split())
    return libraries


def without_comments(text):
    """The text with comments and string literals blanked, its lines kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    # The file names of includes look like strings, and are read from the original text.
    return re.sub(pattern, blank, text, flags=re.DOTALL)


class Tree:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.parts = read_parts(root)
        self.libraries = read_libraries(root)
        self.files = sorted(self.find_files())
        self.lines = {}     # path: lines of the text
        self.code = {}      # path: lines without comments and strings
        self.includes = {}  # path: [(line, is project's, name)]
        for path in self.files:
            self.read(path)
        self.excused = {
            name: self.read_exceptions(f"scripts/{name}.txt")
            for name in ("conditionals", "untested")
        }

    def find_files(self):
        for path in self.root.rglob("*"):
            relative = path.relative_to(self.root)
            top = relative.parts[0]
            if any(name.startswith(".") or name == "__pycache__" for name in relative.parts):
                continue
            if top in BUILT or top.startswith("build-") or not path.is_file():
                continue
            if path.suffix in TEXT or path.name == "CMakeLists.txt":
                yield relative.as_posix()

    def read(self, path):
        raw = (self.root / path).read_bytes()
        text = raw.decode("utf-8", errors="replace")
        self.lines[path] = text.splitlines()
        if pathlib.PurePath(path).suffix in CODE:
            self.code[path] = without_comments(text).splitlines()
            found = []
            for number, (line, code) in enumerate(zip(self.lines[path], self.code[path]), 1):
                match = INCLUDE.match(line)
                if match and "include" in code:
                    found.append((number, match.group(1) == '"', match.group(2)))
            self.includes[path] = found

    def read_exceptions(self, name):
        """Lines `path: reason`: {path: line}. Checked for use by refuse_stale."""
        excused = {}
        for number, line in enumerate(self.lines.get(name, []), 1):
            if not line.strip() or line.startswith("#"):
                continue
            path, _, reason = line.partition(":")
            if not reason.strip():
                self.refuse(name, number, f"'{path}' has no reason; write `path: reason`")
            excused[path.strip()] = number
        return excused

    def refuse(self, path, line, text):
        self.problems.append((path, line, text))

    def excuse(self, name, path):
        """True if scripts/NAME.txt excuses the path; the line then counts as needed."""
        return self.excused[name].pop(path, None) is not None

    def refuse_stale(self):
        for name, left in self.excused.items():
            for path, line in left.items():
                self.refuse(f"scripts/{name}.txt", line,
                            f"'{path}' needs no exception any more: remove the line")

    def part_of(self, path):
        """The folder of a source or of the subject of a test; None outside the parts."""
        folder = str(pathlib.PurePosixPath(path).parent).removeprefix("tests/")
        return folder if folder in self.parts else None

    # Each of the following checks one rule.

    def check_parts(self):
        declared = set()
        for part, (dependencies, line) in self.parts.items():
            for dependency in dependencies:
                if dependency not in declared:
                    self.refuse("CMakeLists.txt", line, f"{part} depends on {dependency}, which no "
                                "add_part line above it declares: the order must be acyclic")
            declared.add(part)
        tops = {part.split("/")[0] for part in self.parts}
        for path in self.code:
            top = path.split("/")[0]
            if top in tops and self.part_of(path) is None:
                self.refuse(path, 1, "its folder has no add_part line in CMakeLists.txt, so it is "
                            "not compiled")

    def check_dependencies(self, path):
        part = self.part_of(path)
        if part is None:
            return
        allowed = [part] + self.parts[part][0]
        is_test = path.startswith("tests/")
        if is_test:
            allowed += [f"tests/{part}", "tests/support"]
        for line, via, name in self.reached_includes(path):
            folder = str(pathlib.PurePosixPath(name).parent)
            if folder not in allowed:
                through = f" (through {via})" if via else ""
                self.refuse(path, line, f'includes "{name}"{through}, but {part} may include only '
                            + ", ".join(allowed))
        targets = self.libraries.get(part.replace("/", "_"), set())
        for line, is_project, name in self.includes[path]:
            for pattern, target in LIBRARY_HEADERS:
                if not is_project and pattern.fullmatch(name) and target not in targets:
                    self.refuse(path, line, f"includes <{name}>, but {part} does not use {target} "
                                "(see scripts/cmake/FerryParts.cmake)")

    def reached_includes(self, path):
        """The project's includes of a file, and those that headers of the tests bring into it."""
        seen = set()
        queue = [(line, "", name) for line, own, name in self.includes[path] if own]
        while queue:
            line, via, name = queue.pop(0)
            if name in seen or name not in self.includes:
                continue
            seen.add(name)
            yield line, via, name
            if name.startswith("tests/"):
                queue += [(line, name, inner) for _, own, inner in self.includes[name] if own]

    def cuda_line(self, path):
        """The first line of a file that is CUDA code, or 0."""
        for line, _, name in self.includes[path]:
            if CUDA_HEADER.fullmatch(name):
                return line
        for line, code in enumerate(self.code[path], 1):
            if CUDA_CODE.search(code):
                return line
        return 0

    def check_cuda(self, path):
        if CUDA_FILE.fullmatch(pathlib.PurePosixPath(path).name) or path.startswith("tests/bench/"):
            return
        where = "CUDA code belongs in *_cuda.*, *.cu, *.cuh, nccl_*, cudnn_* or cupti_*"
        line = self.cuda_line(path)
        if line:
            self.refuse(path, line, where)
        seen = {path}
        queue = [(line, name) for line, _, name in self.includes[path]]
        while queue:
            line, name = queue.pop(0)
            if name in seen or name not in self.includes:
                continue
            seen.add(name)
            if CUDA_FILE.fullmatch(pathlib.PurePosixPath(name).name) and self.cuda_line(name):
                self.refuse(path, line, f"reaches the CUDA code of {name}: {where}")
            queue += [(line, inner) for _, _, inner in self.includes[name]]

    def check_conditionals(self, path):
        found = [n for n, code in enumerate(self.code[path], 1) if CONDITIONAL.match(code)]
        if found and not self.excuse("conditionals", path):
            self.refuse(path, found[0], "preprocessor conditional: choose a file in CMake instead, "
                        "or give the reason in scripts/conditionals.txt")

    def check_includes(self, path):
        pure = pathlib.PurePosixPath(path)
        own = path.removeprefix("tests/").removesuffix(pure.suffix) + ".h"
        own = re.sub(r"(_mpi|_cuda)?_test\.h$", ".h", own)
        for index, (line, is_project, name) in enumerate(self.includes[path]):
            if not is_project:
                continue
            if name not in self.lines and not CUDA_HEADER.fullmatch(name):
                self.refuse(path, line, f'"{name}" is no file of the project; name it from the '
                            "root, or use <> for a header of another library")
            elif name == own and index > 0:
                self.refuse(path, line, f'its own header "{name}" comes first')
        if pure.suffix in (".h", ".cuh"):
            first = next((code for code in self.code[path] if code.strip()), "")
            if first.strip() != "#pragma once":
                self.refuse(path, 1, "a header begins with #pragma once")
            for line, code in enumerate(self.code[path], 1):
                if re.search(r"\busing\s+namespace\b", code):
                    self.refuse(path, line, "no `using namespace` in a header")

    def check_tested(self, path):
        part = self.part_of(path)
        if part is None or path.startswith("tests/"):
            return
        pure = pathlib.PurePosixPath(path)
        size = len(self.lines[path])
        if pure.suffix in (".h", ".cuh"):
            # The source of the same name counts for its header; much of a header is comment.
            if any(str(pure.with_suffix(suffix)) in self.lines for suffix in (".cpp", ".cu")):
                return
            size = sum(1 for code in self.code[path] if code.strip())
        if size <= UNTESTED_LINES:
            return
        subject = re.sub(r"_(cpu|cuda)$", "", pure.stem)
        names = [f"{stem}{kind}_test" for stem in (pure.stem, subject) for kind in ("", "_mpi")]
        names.append(f"{subject}_cuda_test")
        tests = [f"tests/{part}/{name}.cpp" for name in names]
        if not any(test in self.lines for test in tests) and not self.excuse("untested", path):
            self.refuse(path, 1, f"over {UNTESTED_LINES} lines without tests/{part}/{subject}"
                        "_test.cpp; write it, or give the reason in scripts/untested.txt")

    def check_text(self, path):
        for number, line in enumerate(self.lines[path], 1):
            if not line.isascii():
                self.refuse(path, number, "not ASCII: " + ascii(line.strip()[:60]))
        if len(self.lines[path]) > MAX_LINES:
            self.refuse(path, MAX_LINES + 1,
                        f"{len(self.lines[path])} lines; split it at {MAX_LINES}")
        pure = pathlib.PurePosixPath(path)
        for name in pure.parts[:-1]:
            if name in FORBIDDEN_NAMES:
                self.refuse(path, 1, f"no folder is called '{name}': say what is in it")
        for word in pure.stem.lower().split("_"):
            if word in FORBIDDEN_NAMES - {"include", "src"} and pure.suffix in CODE:
                self.refuse(path, 1, f"no file is called '{word}': say what is in it")

    def check(self):
        self.check_parts()
        for path in self.files:
            self.check_text(path)
            if path in self.code:
                self.check_dependencies(path)
                self.check_cuda(path)
                self.check_conditionals(path)
                self.check_includes(path)
                self.check_tested(path)
        self.refuse_stale()
        return sorted(self.problems)


def main(arguments):
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(arguments[0]).resolve() if arguments else default
    tree = Tree(root)
    if not tree.parts:
        print(f"{root}/CMakeLists.txt: no add_part line found", file=sys.stderr)
        return 1
    problems = tree.check()
    for path, line, text in problems:
        print(f"{path}:{line}: {text}")
    print(f"check_tree: {len(tree.files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
