"""The text speaks of this project alone: no pattern of words.txt in any file."""

import re
from pathlib import Path

import tree

PATTERN_FILE = Path(__file__).with_name("words.txt")


def patterns():
    lines = PATTERN_FILE.read_text(encoding="utf-8").splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def check(root):
    problems = []
    forbidden = patterns()
    for path in tree.files(root):
        if path.name == PATTERN_FILE.name:
            continue
        if b"\0" in Path(root, path).read_bytes():
            continue
        for number, line in enumerate(tree.read(root, path).splitlines(), start=1):
            problems += [f"{path}:{number}: '{match.group(0)}' has no place in the project's text"
                         for pattern in forbidden for match in [pattern.search(line)] if match]
    return problems


# In two halves, so that this file passes its own check.
GOOD_TREE = {"README.md": "A worker maps the arena; see /run/hotkv and /etc/hotkv.\n"}
BAD_TREES = [
    ({"a.cpp": "// TO" + "DO: later\n"}, "TO" + "DO"),
    ({"a.cpp": "// FIX" + "ME\n"}, "FIX" + "ME"),
    ({"a.sh": "cd /ho" + "me/somebody/src\n"}, "/ho" + "me/"),
    ({"README.md": "Co-auth" + "ored-by: somebody\n"}, "Co-auth" + "ored-by"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
