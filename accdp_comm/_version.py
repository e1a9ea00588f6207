"""The version of accdp: the only place that states it (pyproject.toml and CMakeLists.txt read it here)."""

__version__ = "0.1.0"
