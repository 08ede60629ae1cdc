"""Checks the protocol models with Spin: the good ones pass, each wrong variant fails.

A variant that passed would show that the check cannot fail. Needs spin and gcc, else it is skipped
(exit 77). Takes about 80 seconds of one core, and 1.1 GB for the good context model.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SKIPPED = 77
MEMORY_MB_MAX = 2900   # more than twice what the largest model takes
DEPTH_MAX = 10_000     # the longest path has about 300 steps
SECONDS_MAX = 600      # for one model on a machine that has other work

# The mistakes that a model makes when it is compiled with the flag.
WRONG = {
    "context": ["NOWPIN", "LIBCOW", "GENPIN", "NORECHECK", "SPLIT", "TIPFIRST", "KEEPGRANT", "STALELEN"],
    "slot_reuse": ["BAD1", "BAD2"],
}


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=SECONDS_MAX)


def search(model, flag):
    """(errors found, output) of an exhaustive search; errors is None if it was not finished."""
    with tempfile.TemporaryDirectory(prefix="hotkv-spin-") as folder:
        steps = [
            ["spin", "-a"] + ([f"-D{flag}"] if flag else []) + [str(FOLDER / f"{model}.pml")],
            # SAFETY: assertions and dead ends, no cycles. COLLAPSE: a third of the memory.
            ["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB_MAX}", "-o", "pan", "pan.c"],
            [os.path.join(folder, "pan"), f"-m{DEPTH_MAX}", "-n"],
        ]
        for step in steps:
            result = run(step, folder)
            if result.returncode != 0 and step is not steps[-1]:
                return None, f"{step[0]} failed:\n{result.stdout}"
        found = re.search(r"errors: (\d+)", result.stdout)
        cut_short = re.search(r"max search depth too small|out of memory|MEMLIM bound", result.stdout)
        if found is None or cut_short:
            return None, result.stdout
        return int(found.group(1)), result.stdout


def check(model, flag):
    """Nothing if the outcome is the expected one, else what is wrong."""
    errors, output = search(model, flag)
    if errors is None:
        return f"the search was not finished:\n{output}"
    if flag is None:
        # A good model must have been searched to its end: any assertion or dead end is an error.
        return f"an error was found:\n{output}" if errors or "not completed" in output else None
    if errors == 0:
        return f"no error was found, so the check does not see this mistake:\n{output}"
    # A dead end, say, would be a slip of the model, not the mistake that the flag makes.
    return None if "assertion violated" in output else f"the error is no violated assertion:\n{output}"


def main():
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        print(f"SKIP: {' and '.join(missing)} not installed")
        return SKIPPED
    failed = False
    for model, flags in WRONG.items():
        for flag in [*flags, None]:
            begin = time.monotonic()
            problem = check(model, flag)
            name = f"{model} {flag or 'as it is'}"
            print(f"{'FAIL' if problem else 'ok  '} {name} ({time.monotonic() - begin:.1f} s)", flush=True)
            if problem:
                print(problem)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
