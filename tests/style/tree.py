"""What the style checks share: the list of source files, and the command line of a check.

A check is a function `check(root) -> list of problems`. Each must be able to fail: it comes with
small bad trees (files by path, and a word the problem must contain) and one good tree, and
`--self-test` builds them in a temporary folder and runs the check on them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED_FOLDERS = {".git", "__pycache__", ".cache"}
SKIP_EXIT_CODE = 77


def files(root, *suffixes):
    """Paths relative to root, sorted, with one of the suffixes (none: all); build folders left out."""
    found = []
    for folder, folders, names in os.walk(root):
        if "CMakeCache.txt" in names:
            folders[:] = []
            continue
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS
                            and not (Path(folder) == Path(root) and f.startswith("build")))
        for name in sorted(names):
            if not suffixes or name.endswith(suffixes):
                found.append(Path(folder, name).relative_to(root))
    return found


def read(root, path):
    return Path(root, path).read_text(encoding="utf-8", errors="replace")


def in_folder(path, folder):
    return str(path).startswith(folder + "/")


def write_tree(root, tree):
    for path, text in tree.items():
        file = Path(root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def self_test(check, good_tree, bad_trees):
    failures = []
    with tempfile.TemporaryDirectory() as root:
        write_tree(root, good_tree)
        problems = check(root)
        if problems:
            failures.append("the good tree is refused: " + "; ".join(problems))
    for tree, expected in bad_trees:
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, tree)
            problems = check(root)
            if not any(expected in problem for problem in problems):
                failures.append(f"{', '.join(tree)}: no problem says '{expected}', but: {problems}")
    return failures


def main(check, good_tree, bad_trees, required_program=None):
    """Prints one problem a line; exits 0, 1, or 77 where the program the check needs is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parents[2])
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if required_program and not has_program(required_program):
        print(f"SKIP: {required_program} is not installed")
        sys.exit(SKIP_EXIT_CODE)
    if arguments.self_test:
        problems = self_test(check, good_tree, bad_trees)
    else:
        problems = check(arguments.root)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem(s)")
    sys.exit(1 if problems else 0)


def has_program(name):
    return subprocess.run(["which", name], stdout=subprocess.DEVNULL, check=False).returncode == 0
