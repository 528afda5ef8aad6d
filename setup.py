"""Extensions from one table. ROCKETSTORE_BUILD = release | debug | asan | tsan | cov;
ROCKETSTORE_MODULES=_message,_columns builds only those."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

BUILD = os.environ.get("ROCKETSTORE_BUILD", "release")
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
FLAVOURS = ("release", "debug", "asan", "tsan", "cov")
if BUILD not in FLAVOURS:
    sys.exit(f"ROCKETSTORE_BUILD={BUILD}: must be one of {', '.join(FLAVOURS)}")

#: module -> the C files that are linked into it. A file with state is in exactly one module.
MODULES: dict[str, list[str]] = {
    "arguments._numbers_and_bodies": [],
    "system._env": ["csrc/env_posix.c"],
    "system._allocation": ["csrc/env_posix.c"],
    "system._open_state": [],
    "record._record": ["csrc/crc32.c", "csrc/hash.c", "csrc/status.c"],
    "record._text": ["csrc/hash.c"],
    "record._message": ["csrc/status.c"],
    "files._mapped_file": ["csrc/env_posix.c"],
    "files._writes": [],
    "index._entries": ["csrc/hash.c"],
    "index._file": ["csrc/hash.c", "csrc/status.c"],
    "commit_log._append": [
        "csrc/env_posix.c",
        "csrc/group_commit.c",
        "csrc/hash.c",
        "csrc/status.c",
    ],
    "commit_log._puts": [],
    "commit_log._scan": ["csrc/status.c"],
    "commit_log._chunk_scan": ["csrc/hash.c"],
    "consume_queue._units": ["csrc/status.c"],
    "dispatch._dispatcher": ["csrc/env_posix.c", "csrc/hash.c"],
    "columns._builder": ["csrc/env_posix.c", "csrc/hash.c"],
    "columns._decode": ["csrc/status.c"],
    "columns._record_walk": ["csrc/hash.c", "csrc/status.c"],
    "reading._queue_runs": [],
    "reading._messages": ["csrc/status.c"],
    "reading._file_columns": ["csrc/status.c"],
    "reading._by_key": ["csrc/hash.c"],
    "store._store_calls": ["csrc/env_posix.c"],
}

#: Tests of damaged bytes spend their time in Python: -O0 is the cheapest debug build.
FLAGS = {
    "release": ["-O3", "-DNDEBUG", "-g1"],
    "debug": ["-O0", "-g1", "-UNDEBUG", "-DCYTHON_WITHOUT_ASSERTIONS=0"],
    "asan": [
        "-O1",
        "-g",
        "-UNDEBUG",
        "-fsanitize=address,undefined",
        "-fno-omit-frame-pointer",
        "-fno-sanitize-recover=undefined",
    ],
    # Branches as they were written: nothing is merged, and no assertion counts as one.
    "cov": ["-O0", "-g", "-DNDEBUG", "--coverage", "-fprofile-update=atomic"],
    "tsan": ["-O1", "-g", "-UNDEBUG", "-fsanitize=thread", "-fno-omit-frame-pointer"],
}[BUILD]
LINK = {
    "asan": ["-fsanitize=address,undefined"],
    "tsan": ["-fsanitize=thread"],
    "cov": ["--coverage"],
}.get(BUILD, [])
CHECKED = BUILD in {"debug", "asan"}

#: Compiled from Python as it stands: signal handlers do not run inside, see signal_shield.py.
PYTHON = (
    "commit_log.put_room",
    "consumer.groups",
    "flush.async_put",
    "transaction.positions",
    "transaction.service",
)
#: Modules whose time is that of Python objects or of making files: -O1 takes half of the compiler's
#: time. None has C files beside it, whose objects all modules share.
COLD = {
    "commit_log.put_room",
    "consumer.groups",
    "flush.async_put",
    "transaction.positions",
    "transaction.service",
}
#: Cython's own code for typed memoryviews, functions and arguments, which all modules share: a
#: copy in each of them took more than half of the compiler's time. Cython writes its C file.
SHARED = "pyrocketstore.system._cython"
PYTHON_DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "binding": True,
}

#: Hardening of the release build: of each tuple the first alternative that the compiler takes.
#: A sanitizer brings its own checks, and FORTIFY needs an optimizing build.
HARDENING = (
    (["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"], ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]),
    (["-fstack-protector-strong"],),
    (["-fstack-clash-protection"],),
    (["-fcf-protection"],),
)
HARDENED_LINK = ((["-Wl,-z,relro", "-Wl,-z,now"],),)
PROBE = "#include <string.h>\nint probe(char *to, char *from) { strcpy(to, from); return 0; }\n"


def accepted(command: list[str], alternatives: tuple[list[str], ...]) -> list[str]:
    """The first alternative with which a compiler turns PROBE into the output of `command`, no
    warning given; [] if there is none: other compilers, macOS and old C libraries lack some."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text(PROBE)
        output = ["-o", str(Path(directory) / "probe.out")]
        for flags in alternatives:
            words = [*command, "-O2", "-fPIC", "-Werror", *flags, str(source), *output]
            if subprocess.run(words, capture_output=True).returncode == 0:
                return flags
    return []


class Build(build_ext):
    """Compiles on all cores, each module once, with the hardening flags that the compiler has."""

    done = 0

    def finalize_options(self) -> None:
        """Set what was not asked for."""
        super().finalize_options()
        self.parallel = self.parallel or CORES
        if self.editable_mode:
            # `pip install --editable` builds in a temporary directory, where nothing is compiled
            # yet; `build_ext --inplace` builds in this one.
            usual = build(self.distribution)
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_lib, usual.build_temp

    def build_extensions(self) -> None:
        """Probe the compiler once, then build."""
        if BUILD == "release" and self.compiler.compiler_type == "unix":
            compiler = [*self.compiler.compiler_so, "-c"]
            compile_args = [word for each in HARDENING for word in accepted(compiler, each)]
            linker = list(self.compiler.linker_so)
            link_args = [word for each in HARDENED_LINK for word in accepted(linker, each)]
            for extension in self.extensions:
                extension.extra_compile_args += compile_args
                extension.extra_link_args += link_args
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Build a module, and say so if its file is new: all of them take minutes."""
        built = Path(self.get_ext_fullpath(ext.name))
        before = built.stat().st_mtime_ns if built.exists() else 0
        super().build_extension(ext)
        if built.stat().st_mtime_ns != before:
            self.done += 1
            print(f"[{self.done}/{len(self.extensions)}] Compiled {ext.name}", flush=True)


# Cython's trees of a module are garbage together, when its C code is written: looking through them
# often takes 40 % of its time.
gc.set_threshold(100_000, 50, 100)

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKED,
    "wraparound": CHECKED,
    "initializedcheck": CHECKED,
    "cdivision": True,
    "embedsignature": True,
    "binding": True,
    # None where an extension type belongs is a TypeError; `X argument=None` and `or None` take it.
    "allow_none_for_extension_args": False,
    # Checks are what the builds that have them are for.
    "show_performance_hints": not CHECKED,
}


def cold_flags(name: str) -> list[str]:
    """Flags of the release build for a module where optimizing is of no use."""
    return ["-O1"] if BUILD == "release" and name in COLD else []


wanted = os.environ.get("ROCKETSTORE_MODULES", "")
names = wanted.split(",") if wanted else [*MODULES, *PYTHON]


def extension(name: str, *sources: str) -> Extension:
    """The module `name` of the package, of these sources."""
    return Extension(
        f"pyrocketstore.{name}",
        list(sources),
        include_dirs=["csrc", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[
            *FLAGS,
            *cold_flags(name),
            "-std=gnu11",
            "-Wall",
            "-Wno-unused-function",
            "-pthread",
        ],
        extra_link_args=[*LINK, "-pthread"],
        depends=["setup.py", *(f"csrc/{h}" for h in os.listdir("csrc") if h.endswith(".h"))],
    )


def source_of(name: str) -> str:
    """The path of a module's Cython or Python source."""
    return f"pyrocketstore/{name.replace('.', '/')}.{'py' if name in PYTHON else 'pyx'}"


# The longest first, so that all cores end together.
names.sort(key=lambda name: -os.path.getsize(source_of(name)))
extensions = [
    extension(SHARED.partition(".")[2], f"{SHARED.replace('.', '/')}.c"),
    *(extension(name, source_of(name), *MODULES.get(name, [])) for name in names),
]


#: Cython 3.3 parses the format of a buffer's items with a null pointer once they have a second
#: field, which ends the process. Typed memoryviews here have plain numbers: one letter, after a
#: byte order. Each other format is refused before it is parsed.
PARSE = "if (unlikely(!__Pyx_BufFmt_CheckString(&ctx, buf->format))) goto fail;"
CHECK = r"""if (unlikely(buf->format[0] && buf->format[1]
                     && (buf->format[2] || !strchr("@=<>!^", buf->format[0])))) {
            PyErr_Format(PyExc_ValueError, "Buffer dtype mismatch, expected '%s' but got items of "
                         "format '%.100s'", dtype->name, buf->format);
            goto fail;
        }
        """


def check_formats(source: Path) -> None:
    """Insert CHECK into the C code that Cython made, unless it is there."""
    code = source.read_text()
    if code.count("__Pyx_BufFmt_CheckString(&ctx") != code.count(PARSE):
        raise SystemExit(f"setup.py: {source} parses a format otherwise than PARSE")
    if CHECK not in code and PARSE in code:
        source.write_text(code.replace(PARSE, CHECK + PARSE))


def cythonized(python: bool) -> list[Extension]:
    """The extensions of the modules that are Python, or of the others."""
    found: list[Extension] = cythonize(
        [e for e in extensions if (e.name.partition(".")[2] in PYTHON) is python],
        compiler_directives=PYTHON_DIRECTIVES if python else DIRECTIVES,
        build_dir=f"build/cython-{BUILD}",
        nthreads=CORES,
        shared_utility_qualified_name=SHARED,
    )
    for extension in found:
        check_formats(Path(extension.sources[0]))
    return found


# The processes that cythonize starts import this file.
if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": Build},
        ext_modules=[*cythonized(False), *cythonized(True)],
    )
