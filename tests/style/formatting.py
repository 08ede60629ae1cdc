"""Every C++ file is as clang-format leaves it, by the .clang-format at the root."""

import re
import shutil
import subprocess
from pathlib import Path

import tree

CLANG_FORMAT = "clang-format"


def check(root):
    style = Path(root, ".clang-format")
    paths = tree.files(root, ".hpp", ".cpp")
    if not style.is_file():
        return ["there is no .clang-format at the root"]
    if not paths:
        return []
    run = subprocess.run([shutil.which(CLANG_FORMAT), "--dry-run", "-Werror", f"--style=file:{style}", *paths],
                         cwd=root, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return []
    # "path:line:column: error: ..." for every place; the first of each file says enough.
    first_places = {}
    for path, line in re.findall(r"^(\S+?):(\d+):\d+: error:", run.stderr, re.MULTILINE):
        first_places.setdefault(path, line)
    return [f"{path}:{line}: not formatted; run clang-format -i" for path, line in first_places.items()
            ] or [f"clang-format failed: {run.stderr.strip()}"]


STYLE = "BasedOnStyle: Google\n"
GOOD_TREE = {".clang-format": STYLE, "shared/a.hpp": "#pragma once\nint answer();\n"}
BAD_TREES = [
    ({".clang-format": STYLE, "shared/a.hpp": "#pragma once\nint   answer( );\n"}, "not formatted"),
    ({"shared/a.hpp": "#pragma once\n"}, "no .clang-format"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES, required_program=CLANG_FORMAT)
