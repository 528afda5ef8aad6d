"""The process of RocketMQ 4.9.3 itself (tests/java), for the tests and the benchmarks; and that of
5.x (tests/java5).

Built on first use: Maven resolves the jars into lib of that directory, javac compiles into out;
both are ignored by git. A file lock lets test processes run side by side.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

HOME = Path(__file__).parent.parent / "java"
MAIN = "org.pyrocketstore.driver.Driver"
BUILD_TIMEOUT_S = 600

#: 4.9.3 unmaps its files through JDK internals, which Java 17 opens only on demand.
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
#: A full disk of the machine that runs the tests must not make the store refuse puts.
PROPERTIES = (
    f"-Dlogback.configurationFile={HOME / 'logback.xml'}",
    "-Drocketmq.client.logUseSlf4j=true",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
    "-Dfile.encoding=UTF-8",
    "-Dsun.jnu.encoding=UTF-8",
)
QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaUnavailable(Exception):
    """There is no java, no mvn, or the jars cannot be had."""


class JavaError(Exception):
    """The driver ended in a way that it should not."""


class JavaDriver:
    """Builds the driver and knows its command line."""

    def __init__(self, home: Path = HOME, main: str = MAIN) -> None:
        self._home, self._main = home, main
        self._lib, self._out = home / "lib", home / "out"

    def build(self) -> None:
        """Fetch jars and compile, unless that was done from these very sources."""
        missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        if missing:
            raise JavaUnavailable(f"{' and '.join(missing)} are not here")
        sources = sorted((self._home / "src" / "main" / "java").rglob("*.java"))
        digest = hashlib.sha256()
        for path in (self._home / "pom.xml", *sources):
            digest.update(path.read_bytes())
        self._out.mkdir(exist_ok=True)
        stamp = self._out / "STAMP"
        with _locked(self._out / "LOCK"):
            if stamp.exists() and stamp.read_text() == digest.hexdigest():
                return
            self._resolve()
            self._compile(sources)
            stamp.write_text(digest.hexdigest())

    def _resolve(self) -> None:
        pom_digest = hashlib.sha256((self._home / "pom.xml").read_bytes()).hexdigest()
        stamp = self._lib / "STAMP"
        if stamp.exists() and stamp.read_text() == pom_digest:
            return
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={self._lib}")
        done = subprocess.run(
            command, cwd=self._home, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
            raise JavaUnavailable(f"mvn could not resolve the jars ({lines[0]})")
        stamp.write_text(pom_digest)

    def _compile(self, sources: Sequence[Path]) -> None:
        shutil.rmtree(self._out / "org", ignore_errors=True)
        command = ["javac", "-encoding", "UTF-8", "--release", "17", "-cp", f"{self._lib}/*"]
        command += ["-d", str(self._out), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        if done.returncode:
            raise JavaError(f"javac failed:\n{done.stdout}{done.stderr}")

    def command(self, *words: str, jvm: Sequence[str] = QUICK_START) -> list[str]:
        """The command line of the driver."""
        main = ("-cp", f"{self._out}:{self._lib}/*", self._main)
        return ["java", *jvm, *OPENED, *PROPERTIES, *main, *words]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
