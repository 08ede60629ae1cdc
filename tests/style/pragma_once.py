"""Every header starts with #pragma once. That each compiles alone is the target header_check."""

import tree


def check(root):
    problems = []
    for path in tree.files(root, ".h"):
        problems.append(f"{path}: headers end in .hpp")
    for path in tree.files(root, ".hpp"):
        lines = tree.read(root, path).splitlines()
        if not lines or lines[0] != "#pragma once":
            problems.append(f"{path}: the first line is not #pragma once")
    return problems


GOOD_TREE = {"shared/a.hpp": "#pragma once\n"}
BAD_TREES = [
    ({"shared/a.hpp": "#ifndef A\n#define A\n#endif\n"}, "not #pragma once"),
    ({"shared/a.hpp": ""}, "not #pragma once"),
    ({"shared/a.h": "#pragma once\n"}, "end in .hpp"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
