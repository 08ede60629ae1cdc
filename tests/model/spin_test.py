"""Checks the protocol models with Spin: what is right passes, each mistake is found.

A mistake that passed would show that the check cannot fail. Needs spin and gcc, else it is skipped
(exit 77). Takes about 120 seconds of one core, and 1.2 GB for the context model.

usage: spin_test.py [--deep] [MODEL]...
  --deep   only what is right, in larger bounds: minutes to hours, and HOTKV_SPIN_MEMORY_MB (20000)
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SKIPPED = 77
MEMORY_MB_MAX = 2900   # more than twice what the largest model takes
DEPTH_MAX = 10_000     # the longest path has about 300 steps
SECONDS_MAX = 1500     # for one model on a machine that has other work


class Model(NamedTuple):
    # Sets of flags; each is a search of its own.
    right: list = [""]
    wrong: list = []
    deep: list = []
    # So many states that it pays to compile the search with optimisation.
    is_large: bool = False


MODELS = {
    "slot_reuse": Model(wrong=["BAD1", "BAD2"]),
    "weak_memory": Model(
        # On x86 the last six are no mistakes: the model says why.
        right=["", "WEAK", "HEAD_BUFFERED", "HEAD_ACQUIRE", "SCAN_ACQUIRE", "UNPIN_RELAXED", "PUBLISH_RELAXED",
               "ID_RELAXED"],
        wrong=["PIN_BUFFERED", "BOTH_BUFFERED", "LATE_READ", "LATE_MARK"]
        + [f"WEAK {flag}" for flag in ("PIN_BUFFERED", "BOTH_BUFFERED", "LATE_READ", "LATE_MARK", "HEAD_BUFFERED",
                                       "HEAD_ACQUIRE", "SCAN_ACQUIRE", "UNPIN_RELAXED", "PUBLISH_RELAXED",
                                       "ID_RELAXED")]),
    "shared_prefix": Model(
        wrong=["INPLACE", "STALEBASE", "KEPTNOOWN", "NOREFNEXT", "COPYNOREF", "FREECHAIN", "BLINDSWEEP", "NEWESTONLY"]
        + [f"NORULES {flag}" for flag in ("INPLACE", "STALEBASE", "KEPTNOOWN", "NOREFNEXT", "COPYNOREF", "FREECHAIN")],
        deep=["OPERATIONS=3"], is_large=True),
    "context": Model(
        wrong=["NOWPIN", "LIBCOW", "GENPIN", "NORECHECK", "SPLIT", "TIPFIRST", "KEEPGRANT", "STALELEN"],
        deep=["APPENDS=3"], is_large=True),
}


def run(command, folder, seconds):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=seconds)


def search(model, flags, memory_mb, seconds, optimise):
    """(errors found, output) of an exhaustive search; errors is None if it was not finished."""
    with tempfile.TemporaryDirectory(prefix="hotkv-spin-") as folder:
        steps = [
            ["spin", "-a", *(f"-D{flag}" for flag in flags.split()), str(FOLDER / f"{model}.pml")],
            # SAFETY: assertions and dead ends, no cycles. COLLAPSE: a third of the memory.
            ["gcc", optimise, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={memory_mb}", "-o", "pan", "pan.c"],
            [os.path.join(folder, "pan"), f"-m{DEPTH_MAX}", "-n"],
        ]
        for step in steps:
            result = run(step, folder, seconds)
            if result.returncode != 0 and step is not steps[-1]:
                return None, f"{step[0]} failed:\n{result.stdout}"
        found = re.search(r"errors: (\d+)", result.stdout)
        cut_short = re.search(r"max search depth too small|out of memory|MEMLIM bound", result.stdout)
        if found is None or cut_short:
            return None, result.stdout
        return int(found.group(1)), result.stdout


def problem_of(errors, output, is_right):
    """Nothing if the outcome is the expected one, else what is wrong."""
    if errors is None:
        return f"the search was not finished:\n{output}"
    if is_right:
        # Searched to its end: any assertion or dead end is an error.
        return f"an error was found:\n{output}" if errors or "not completed" in output else None
    if errors == 0:
        return f"no error was found, so the check does not see this mistake:\n{output}"
    # A dead end, say, would be a slip of the model, not the mistake that the flag makes.
    return None if "assertion violated" in output else f"the error is no violated assertion:\n{output}"


def check(model, flags, is_right, is_deep):
    begin = time.monotonic()
    memory_mb = int(os.environ.get("HOTKV_SPIN_MEMORY_MB", "20000")) if is_deep else MEMORY_MB_MAX
    # A mistake is found in a moment: there, compiling quickly is what counts.
    optimise = "-O2" if is_right and MODELS[model].is_large else "-O0"
    errors, output = search(model, flags, memory_mb, None if is_deep else SECONDS_MAX, optimise)
    problem = problem_of(errors, output, is_right)
    states = re.search(r"(\d+) states, stored", output)
    print(f"{'FAIL' if problem else 'ok  '} {model} {flags or 'as it is'}: {'right' if is_right else 'seen to be wrong'}, "
          f"{states.group(1) if states else 'no'} states, {time.monotonic() - begin:.1f} s", flush=True)
    if problem:
        print(problem)
    return problem is None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL")
    args = parser.parse_args()
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        print(f"SKIP: {' and '.join(missing)} not installed")
        return SKIPPED
    passed = []
    for name in args.models or MODELS:
        model = MODELS[name]
        if args.deep:
            passed += [check(name, flags, True, True) for flags in model.deep]
            continue
        passed += [check(name, flags, False, False) for flags in model.wrong]
        passed += [check(name, flags, True, False) for flags in model.right]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
