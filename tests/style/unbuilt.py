"""Every test and every source is named in a CMakeLists.txt of its folder or of one above it."""

import re
from pathlib import Path

import tree


def words_of(lists):
    """Every argument in a CMakeLists.txt, without comments and without a leading ${FOLDER}/."""
    text = re.sub(r"#.*", "", lists.read_text(encoding="utf-8"))
    return {re.sub(r"^\$\{\w+\}/", "", word) for word in re.split(r'[\s();"]+', text)}


def is_named(root, path):
    for folder in path.parents:
        lists = Path(root, folder, "CMakeLists.txt")
        if lists.is_file():
            name = str(path.relative_to(folder))
            # Small programs are listed without the ".cpp" that a loop adds.
            if {name, name.removesuffix(".cpp")} & words_of(lists):
                return True
    return False


def check(root):
    tests = tree.files(root, "_test.cpp", "_test.py", "_test.sh")
    sources = tree.files(root, ".cpp")
    return [f"{path}: named in no CMakeLists.txt, so it is never built or run"
            for path in sorted(set(tests + sources)) if not is_named(root, path)]


GOOD_TREE = {
    "tests/unit/CMakeLists.txt": "hotkv_test(unit_tests unit SOURCES a_test.cpp)\n",
    "tests/unit/a_test.cpp": "",
    "tests/integration/CMakeLists.txt": "COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/b_test.sh\n",
    "tests/integration/b_test.sh": "",
    "shared/CMakeLists.txt": "SOURCES hotkv/c.cpp\n",
    "shared/hotkv/c.cpp": "",
}
BAD_TREES = [
    ({"tests/unit/CMakeLists.txt": "SOURCES a_test.cpp\n", "tests/unit/b_test.cpp": ""}, "b_test.cpp"),
    ({"tests/unit/CMakeLists.txt": "SOURCES a_test.cpp  # b_test.cpp\n", "tests/unit/b_test.cpp": ""},
     "b_test.cpp"),
    ({"tests/unit/CMakeLists.txt": "SOURCES bb_test.cpp\n", "tests/unit/b_test.cpp": ""}, "b_test.cpp"),
    ({"tests/fault/kill_test.sh": ""}, "kill_test.sh"),
    ({"shared/CMakeLists.txt": "SOURCES a.cpp\n", "shared/b.cpp": ""}, "shared/b.cpp"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
