"""What users may import from accdp_comm: one list for `dir()`, for `import *`, and for type checkers."""

import ast
from pathlib import Path

import accdp_comm


def test_all_lazy_names_are_public():
    assert set(accdp_comm._HOMES) <= set(accdp_comm.__all__) <= set(dir(accdp_comm))
    for name in accdp_comm.__all__:
        assert getattr(accdp_comm, name) is not None, name


def test_type_checkers_see_every_public_name():
    """The package is typed, and what only __getattr__ finds would be Any."""
    body = ast.parse(Path(accdp_comm.__file__).read_text()).body
    block = next(node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(accdp_comm.__all__)
