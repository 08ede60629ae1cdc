"""The table of field reports in tests/README.md and the tests agree.

A row is `| FR-071 | what failed | `Suite.Case`, `Other.Case` |`, or `| FR-100 | what failed | none: why |`.
Each test it names exists, one of them is in a file that names the report, and each report that a test
names has a row.
"""

import re

import tree

TABLE = "tests/README.md"
ROW = re.compile(r"^\| (FR-\d{3}) \|[^|]*\| (.*) \|$", re.MULTILINE)
# TEST(Suite, Case), and a script's `hotkv_script_test(name level`.
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
SCRIPT = re.compile(r"hotkv_script_test\((\w+) (\w+)")
REPORT = re.compile(r"\bFR-\d{3}\b")


def tests_and_reports(root):
    """Files by the test they hold, reports by the file that names them."""
    files_of, reports_of = {}, {}
    for path in tree.files(root, ".cpp", ".sh", ".py", ".txt"):
        if not tree.in_folder(path, "tests") or tree.in_folder(path, "tests/style"):
            continue
        text = tree.read(root, path)
        for suite, case in TEST.findall(text):
            files_of.setdefault(f"{suite}.{case}", set()).add(path)
        for name, level in SCRIPT.findall(text):
            files_of.setdefault(f"{level}.{name}", set()).add(path)
        reports_of[path] = set(REPORT.findall(text))
    return files_of, reports_of


def check(root):
    files_of, reports_of = tests_and_reports(root)
    problems, listed = [], []
    for report, answer in ROW.findall(tree.read(root, TABLE)):
        listed.append(report)
        names = re.findall(r"`([^`]+)`", answer)
        if answer.startswith("none: "):
            continue
        if not names:
            problems.append(f"{TABLE}: {report}: neither a test nor 'none: ' and a reason")
        for name in names:
            if name not in files_of:
                problems.append(f"{TABLE}: {report}: there is no test {name}")
        if names and not any(report in reports_of[path]
                             for name in names for path in files_of.get(name, ())):
            problems.append(f"{TABLE}: {report}: no file of its tests names it")
    if listed != sorted(set(listed)):
        problems.append(f"{TABLE}: rows are not in order, or twice")
    for path, reports in sorted(reports_of.items()):
        for report in sorted(reports - set(listed)):
            problems.append(f"{path}: {report} has no row in {TABLE}")
    return problems


ROWS = "| FR-001 | leak | `A.B` |\n| FR-002 | x | none: no such thing here |\n"
SOURCE = "// FR-001: nothing leaks.\nTEST_F(A, B) {}\n"
GOOD_TREE = {TABLE: ROWS, "tests/unit/a_test.cpp": SOURCE}
BAD_TREES = [
    ({**GOOD_TREE, TABLE: ROWS.replace("A.B", "A.C")}, "there is no test A.C"),
    ({**GOOD_TREE, TABLE: ROWS.replace("`A.B`", "A.B")}, "neither a test"),
    ({TABLE: ROWS, "tests/unit/a_test.cpp": "TEST(A, B) {}\n"}, "no file of its tests names it"),
    ({**GOOD_TREE, TABLE: ROWS + ROWS}, "or twice"),
    ({**GOOD_TREE, "tests/unit/b_test.cpp": "// FR-009\n"}, "FR-009 has no row"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
