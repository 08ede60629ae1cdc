"""Every C++ file is as clang-format leaves it, by the .clang-format at the root."""

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
    problems = []
    for path in paths:
        run = subprocess.run([shutil.which(CLANG_FORMAT), "--dry-run", "-Werror", f"--style=file:{style}", path],
                             cwd=root, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            first = (run.stderr.splitlines() or ["clang-format failed"])[0]
            problems.append(f"{path}: not formatted; run clang-format -i ({first})")
    return problems


STYLE = "BasedOnStyle: Google\n"
GOOD_TREE = {".clang-format": STYLE, "shared/a.hpp": "#pragma once\nint answer();\n"}
BAD_TREES = [
    ({".clang-format": STYLE, "shared/a.hpp": "#pragma once\nint   answer( );\n"}, "not formatted"),
    ({"shared/a.hpp": "#pragma once\n"}, "no .clang-format"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES, required_program=CLANG_FORMAT)
