"""Every shell script parses (bash -n) and stops at its first error (set -e) or is only sourced."""

import subprocess
from pathlib import Path

import tree


def scripts(root):
    found = set(tree.files(root, ".sh"))
    for path in tree.files(root):
        if not path.suffix:
            with Path(root, path).open("rb") as file:
                if file.read(64).startswith((b"#!/bin/bash", b"#!/usr/bin/env bash", b"#!/bin/sh")):
                    found.add(path)
    return sorted(found)


def check(root):
    problems = []
    for path in scripts(root):
        run = subprocess.run(["bash", "-n", path], cwd=root, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            problems.append(f"{path}: does not parse: {run.stderr.strip()}")
        text = tree.read(root, path)
        if text.startswith("#!") and "set -e" not in text:
            problems.append(f"{path}: goes on after an error; it needs set -e")
    return problems


GOOD_TREE = {"a.sh": "#!/bin/bash\nset -euo pipefail\ntrue\n", "sourced.sh": "f() { true; }\n"}
BAD_TREES = [
    ({"a.sh": "#!/bin/bash\nset -e\nif true; then\n"}, "does not parse"),
    ({"run": "#!/bin/bash\nset -e\nfor\n"}, "does not parse"),
    ({"a.sh": "#!/bin/bash\ntrue\n"}, "set -e"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
