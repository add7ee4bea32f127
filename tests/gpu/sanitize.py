"""The kernel tests under NVIDIA's compute-sanitizer: accesses outside memory, races in shared memory.

    python -m tests.gpu.sanitize [--tool memcheck --tool racecheck] [--jobs 8] [pytest's own arguments]

Small shapes, and PyTorch's allocator cache off, so that a tensor ends where its memory ends. Tests above 2^31
elements and of the whole engine are left out. A process that does not end as it should is a finding.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

TESTS = "tests/kernels/triton"
LEFT_OUT = ("test_wide_offsets.py", "test_engine.py")
FOUND = 86  # how the sanitizer ends when it found something
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
VERDICT = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.M)


@dataclass(kw_only=True)
class Report:
    """What one tool said. `unfinished`: tests that the time was too short for."""

    tool: str
    version: str
    passed: int = 0
    skipped: int = 0
    findings: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    excerpts: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return self.passed > 0 and not (self.findings or self.failed or self.unfinished)


def collect(more: list[str]) -> list[str]:
    """The tests' names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow"]
    listed = subprocess.run([*command, TESTS, *more], capture_output=True, text=True, check=False)
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    names = [name for name in names if not any(part in name for part in LEFT_OUT)]
    if not names:
        sys.exit(f"no tests found: {listed.stdout}{listed.stderr}")
    return names


def run(tool: str, names: list[str], jobs: int, limit: float, version: str) -> Report:
    """All tests, in `jobs` processes beside each other."""
    report = Report(tool=tool, version=version)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shares = [names[i::jobs] for i in range(jobs) if names[i::jobs]]
        runs = [_begin(tool, share, Path(folder) / str(i)) for i, share in enumerate(shares)]
        for i, (share, process) in enumerate(zip(shares, runs, strict=True)):
            try:
                process.wait(max(begun + limit - time.monotonic(), 1.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _add(report, share, Path(folder) / str(i), process.returncode)
    report.seconds = round(time.monotonic() - begun, 1)
    return report


def _begin(tool: str, names: list[str], log: Path) -> "subprocess.Popen[bytes]":
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    sanitizer += ["--log-file", f"{log}.found", "--print-limit", "20"]
    tests = [sys.executable, "-u", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests += ["-o", "addopts=", "-o", "timeout=0"]
    tests += ["-o", "filterwarnings=default", *names]
    env = os.environ | {"PYDFLASH_TEST_DEVICE": "cuda", "PYDFLASH_TEST_SMALL": "1"}
    env |= {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with log.open("wb") as out:
        return subprocess.Popen(
            [*sanitizer, *tests],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # so that its tests end with it
        )


def _add(report: Report, names: list[str], log: Path, code: int) -> None:
    found = log.with_suffix(".found")
    text = found.read_text(errors="replace") if found.exists() else ""
    said = log.read_text(errors="replace")
    verdicts = dict(VERDICT.findall(said))
    report.passed += sum(v == "PASSED" for v in verdicts.values())
    report.skipped += sum(v == "SKIPPED" for v in verdicts.values())
    failed = [n for n, v in verdicts.items() if v in ("FAILED", "ERROR")]
    report.failed += failed
    report.unfinished += [n for n in names if n not in verdicts]
    told = SUMMARY.findall(text)
    findings = sum(map(int, told)) if told else text.count("Error: ")
    if code and not findings and not failed:
        findings = 1  # it did not end as it should
    report.findings += findings
    if findings or failed:
        report.excerpts.append(text[:4000] + said[-4000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", action="append", choices=("memcheck", "racecheck", "synccheck"))
    parser.add_argument("--jobs", type=int, default=8, help="processes beside each other")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for a tool")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    args, more = parser.parse_known_args()
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer is not on the PATH; it comes with NVIDIA's CUDA toolkit")
    asked = subprocess.run(
        ["compute-sanitizer", "--version"], capture_output=True, text=True, check=False
    )
    version = asked.stdout.strip().splitlines()[-1] if asked.stdout.strip() else "unknown"
    names = collect(more)
    reports = []
    for tool in args.tool or ["memcheck", "racecheck"]:
        report = run(tool, names, args.jobs, args.limit, version)
        reports.append(report)
        print(
            f"{tool}: {report.passed} passed, {report.skipped} skipped, {len(report.failed)} failed, "
            f"{len(report.unfinished)} unfinished, {report.findings} findings, {report.seconds:.0f} s"
        )
        for line in (*report.failed[:20], *report.unfinished[:20], *report.excerpts[:2]):
            print("  " + line)
        if args.json:
            args.json.write_text(json.dumps([asdict(r) for r in reports], indent=1) + "\n")
    return 0 if all(r.is_clean for r in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
