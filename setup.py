"""Extensions from one table. ROCKETSTORE_BUILD = release | debug | asan | tsan | cov;
ROCKETSTORE_MODULES=_message,_columns builds only those."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

BUILD = os.environ.get("ROCKETSTORE_BUILD", "release")
FLAVOURS = ("release", "debug", "asan", "tsan", "cov")
if BUILD not in FLAVOURS:
    sys.exit(f"ROCKETSTORE_BUILD={BUILD}: must be one of {', '.join(FLAVOURS)}")

#: module -> the C files that are linked into it. A file with state is in exactly one module.
MODULES: dict[str, list[str]] = {
    "_env": ["csrc/env_posix.c"],
    "_allocation": ["csrc/env_posix.c"],
    "_mapped_file": ["csrc/env_posix.c"],
    "_writes": [],
    "_new_file": [],
    "_record": ["csrc/crc32.c", "csrc/hash.c", "csrc/status.c"],
    "_exact": [],
    "_text": ["csrc/hash.c"],
    "_message": ["csrc/status.c"],
    "_consume_queue": ["csrc/status.c"],
    "_index_walk": ["csrc/hash.c"],
    "_index_keys": ["csrc/hash.c"],
    "_index_file": ["csrc/hash.c", "csrc/status.c"],
    "_values": ["csrc/env_posix.c", "csrc/hash.c"],
    "_column_memory": [],
    "_queue_check": ["csrc/hash.c"],
    "_columns": ["csrc/status.c"],
    "_text_columns": [],
    "_commit_log": ["csrc/env_posix.c", "csrc/hash.c", "csrc/status.c"],
    "_put_columns": [],
    "_put_result": [],
    "_tally": [],
    "_group_commit": ["csrc/group_commit.c"],
    "_put_path": ["csrc/env_posix.c"],
    "_scan": ["csrc/status.c"],
    "_log_piece": ["csrc/hash.c"],
    "_log_walk": [],
    "_queue_rows": ["csrc/status.c"],
    "_prefill": [],
    "_reader": ["csrc/status.c"],
    "_file_columns": ["csrc/status.c"],
    "_key_search": ["csrc/hash.c"],
    "_face": [],
    "_verify": ["csrc/hash.c"],
    "_dispatch": ["csrc/env_posix.c", "csrc/hash.c"],
}

FLAGS = {
    "release": ["-O3", "-DNDEBUG", "-g1"],
    "debug": ["-O1", "-g", "-UNDEBUG", "-DCYTHON_WITHOUT_ASSERTIONS=0"],
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

#: Compiled from Python as it stands: signal handlers do not run inside, see shield.py.
PYTHON = ("put_room", "async_put")
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


class HardenedBuild(build_ext):
    """Adds to every extension the hardening flags that this machine's compiler has."""

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
}

wanted = os.environ.get("ROCKETSTORE_MODULES", "")
names = wanted.split(",") if wanted else [*MODULES, *PYTHON]

extensions = [
    Extension(
        f"pyrocketstore.{name}",
        [f"pyrocketstore/{name}.{'py' if name in PYTHON else 'pyx'}", *MODULES.get(name, [])],
        include_dirs=["csrc", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[*FLAGS, "-std=gnu11", "-Wall", "-Wno-unused-function", "-pthread"],
        extra_link_args=[*LINK, "-pthread"],
        depends=["setup.py", *(f"csrc/{h}" for h in os.listdir("csrc") if h.endswith(".h"))],
    )
    for name in names
]


def cythonized(python: bool) -> list[Extension]:
    """The extensions of the modules that are Python, or of the others."""
    found: list[Extension] = cythonize(
        [e for e in extensions if (e.name.rpartition(".")[2] in PYTHON) is python],
        compiler_directives=PYTHON_DIRECTIVES if python else DIRECTIVES,
        build_dir=f"build/cython-{BUILD}",
        nthreads=0,
    )
    return found


setup(
    cmdclass={"build_ext": HardenedBuild},
    ext_modules=[*cythonized(False), *cythonized(True)],
)
