"""Lists the skipped tests of a ctest run, and why: list_skipped.py CTEST_JUNIT_XML.

A reason is what follows "SKIP: " in a script's output, or the line after gtest's "Skipped".
"""

import re
import sys
import xml.etree.ElementTree as xml


def reason(output):
    script = re.search(r"^SKIP: (.+)$", output, re.MULTILINE)
    if script:
        return script.group(1)
    gtest = re.search(r": Skipped\n(.+)$", output, re.MULTILINE)
    return gtest.group(1).strip() if gtest else "no reason given"


def main():
    skipped = []
    for case in xml.parse(sys.argv[1]).getroot().iter("testcase"):
        if case.find("skipped") is not None or case.get("status") == "notrun":
            skipped.append((case.get("name"), reason(case.findtext("system-out") or "")))
    print(f"Skipped tests: {len(skipped)}")
    for name, why in skipped:
        print(f"  {name}: {why}")


if __name__ == "__main__":
    main()
