"""`pytest tests` takes all test files at once."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_two_test_files_have_one_name():
    # Folders of tests are no packages: pytest imports their files by name.
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
