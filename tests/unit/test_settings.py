"""The settings table: every row takes what it says it takes, refuses the rest by name, and is in the documentation."""

import subprocess
import sys
from pathlib import Path

import jobs
import pytest

from accdp_comm import UsageError, _core, cards, settings

ROOT = Path(__file__).resolve().parents[2]

SECONDS = {"0.5": "0.5", "3": "3", "1e3": "1000"}
BYTES = {"4k": "4k", "8192": "8k", "64k": "64k"}
NOT_A_NUMBER = ["", "x", "-1", "nan", "inf", "1 ", " 1", "1e999", "0x10"]
NOT_BYTES = [*NOT_A_NUMBER, "1.5k", "4kk", "4K", "4kB", "9223372036854775807k", "k"]

# Variable -> texts it takes, each with the text that is shown for it.
GOOD = {
    "ACCDP_CHUNK_BYTES": {**BYTES, "1M": "1M", "64M": "64M"},
    "ACCDP_FLAT_BYTES": {**BYTES, "0": "0", "1000": "1000", "1M": "1M"},
    "ACCDP_RING_BYTES": {"32k": "32k", "65536": "64k", "1G": "1G"},
    "ACCDP_EAGER_BYTES": {"0": "0", "100": "100", "512k": "512k"},
    "ACCDP_CMA": {"auto": "auto", "on": "on", "off": "off"},
    "ACCDP_SLOT_STORES": {"auto": "auto", "cached": "cached", "streaming": "streaming"},
    "ACCDP_SPIN_US": {**SECONDS, "0": "0"},
    "ACCDP_YIELD_US": {**SECONDS, "0": "0"},
    "ACCDP_TIMEOUT_S": {**SECONDS, "0": "0"},
    "ACCDP_LIVENESS_S": SECONDS,
    "ACCDP_MPI": {"auto": "auto", "on": "on"},
    "ACCDP_TOPOLOGY": {"": "", "2x2": "2x2", "0,0,1": "0,0,1"},
    "ACCDP_BCAST_ALGORITHM": {name: name for name, _ in _core.bcast_algorithms()},
    "ACCDP_ALLREDUCE": {name: name for name, _ in _core.reduce_algorithms()},
    "ACCDP_BASELINE": {"off": "off", "mpi": "mpi"},
    "ACCDP_CODEC": {"auto": "auto", "none": "none", "fpk": "fpk"},
    "ACCDP_CODEC_CHUNK_BYTES": {"4k": "4k", "256k": "256k", "16M": "16M"},
    "ACCDP_DETERMINISTIC": {"off": "off", "on": "on"},
    "ACCDP_ASYNC_OPS": {"off": "off", "on": "on"},
    "ACCDP_CODECS_OFF": {"": "", "fpk,zstd": "fpk,zstd"},
    "ACCDP_CACHE_DIR": {"": "", "-": "-", "/tmp": "/tmp"},
    "ACCDP_STEP_LOG": {"": "", "/tmp": "/tmp"},
    "ACCDP_GPU_PATH": {"auto": "auto", "by_host": "by_host", "staged": "staged"},
    "ACCDP_GPU_SLOT_BYTES": {"64k": "64k", "16M": "16M", "256M": "256M"},
    "ACCDP_GPU_PINNED_BYTES": {**BYTES, "0": "0", "1000": "1000", "2G": "2G"},
    "ACCDP_MPI_CUDA": {"auto": "auto", "on": "on", "off": "off"},
}
# Variable -> texts it refuses.
BAD = {
    "ACCDP_CHUNK_BYTES": [*NOT_BYTES, "0", "4095", "65M"],
    "ACCDP_FLAT_BYTES": [*NOT_BYTES, "2M"],
    "ACCDP_RING_BYTES": [*NOT_BYTES, "0", "2k", "5k", "65537", "2G"],
    "ACCDP_EAGER_BYTES": [*NOT_BYTES, "524289"],
    "ACCDP_CMA": ["", "yes", "1", "ON"],
    "ACCDP_SLOT_STORES": ["", "on", "Cached"],
    "ACCDP_SPIN_US": NOT_A_NUMBER,
    "ACCDP_YIELD_US": NOT_A_NUMBER,
    "ACCDP_TIMEOUT_S": NOT_A_NUMBER,
    "ACCDP_LIVENESS_S": [*NOT_A_NUMBER, "0"],
    "ACCDP_MPI": ["", "off", "AUTO", "1"],
    "ACCDP_BCAST_ALGORITHM": ["", "ring", "Chain"],
    "ACCDP_ALLREDUCE": ["", "chain", "Ring"],
    "ACCDP_BASELINE": ["", "on", "MPI"],
    "ACCDP_CODEC": [""],
    "ACCDP_CODEC_CHUNK_BYTES": [*NOT_BYTES, "0", "4095", "5000", "17M"],
    "ACCDP_DETERMINISTIC": ["", "yes", "1"],
    "ACCDP_ASYNC_OPS": ["", "no", "0"],
    "ACCDP_GPU_PATH": ["", "off", "shared"],
    "ACCDP_GPU_SLOT_BYTES": [*NOT_BYTES, "0", "32k", "65537", "257M"],
    "ACCDP_GPU_PINNED_BYTES": NOT_BYTES,
    "ACCDP_MPI_CUDA": ["", "yes", "1", "ON"],
}
BAD_TOPOLOGIES = ["x", "2x", "x2", "0x2", "2x0", "2x2x2", "2y2", "2X2", "2 x 2", " 2x2", "a", "a,b", "1.5"]
BAD_TOPOLOGIES += ["-1", "-1,0", "0,,1", "0,1,"]
ENVS = [row.env for row in settings.table()]
PAIRS = [(env, text) for env in BAD for text in BAD[env]]


@pytest.fixture(autouse=True)
def restored():
    """Puts everything back after a test."""
    before = {row.env: (row.value, row.source) for row in settings.table()}
    yield
    _core.set_settings(before)


def set_to(env, text):
    _core.set_settings({env: (text, "code")})


def test_tables_of_this_file_are_complete():
    assert list(GOOD) == ENVS
    # A topology is parsed by Python, see below; whether a folder can be written to is seen when it is; names of codecs
    # are compared with those there are when codecs are asked for.
    assert {*BAD, "ACCDP_TOPOLOGY", "ACCDP_CODECS_OFF", "ACCDP_CACHE_DIR", "ACCDP_STEP_LOG"} == {*ENVS}


def test_rows():
    for row in settings.table():
        assert row.env == "ACCDP_" + row.name.upper()
        assert row.accepts and row.meaning.endswith(".") and "|" not in row.accepts + row.meaning
    assert len(set(ENVS)) == len(ENVS)


@pytest.mark.parametrize("env", GOOD)
def test_accepted(env):
    if env == "ACCDP_CHUNK_BYTES":
        set_to("ACCDP_FLAT_BYTES", "0")
    if env == "ACCDP_RING_BYTES":
        set_to("ACCDP_EAGER_BYTES", "0")
    for text, shown in GOOD[env].items():
        set_to(env, text)
        assert settings.value_of(env) == shown
        assert settings.value_of(env.removeprefix("ACCDP_").lower()) == shown
        assert {row.env: row.source for row in settings.table()}[env] == "code"


@pytest.mark.parametrize(("env", "text"), PAIRS)
def test_refused(env, text):
    before = settings.table()
    row = {row.env: row for row in before}[env]
    with pytest.raises(UsageError) as caught:
        set_to(env, text)
    assert str(caught.value).startswith(f"{env}=")
    assert str(caught.value).endswith(f": expected {row.accepts}")
    assert settings.table() == before


def test_refusal_shows_the_text_that_was_given():
    with pytest.raises(UsageError, match=r"^ACCDP_SPIN_US=fast: expected microseconds"):
        set_to("ACCDP_SPIN_US", "fast")


@pytest.mark.parametrize("text", BAD_TOPOLOGIES)
def test_refused_topology(text):
    accepts = {row.env: row.accepts for row in settings.table()}["ACCDP_TOPOLOGY"]
    with pytest.raises(UsageError) as caught:
        cards.declared_nodes(text)
    assert str(caught.value).startswith(f"ACCDP_TOPOLOGY={text}: expected ")
    assert accepts.startswith(str(caught.value).partition("expected ")[2])


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        ("1x1", [0]),
        ("2x2", [0, 0, 1, 1]),
        ("1x3", [0] * 3),
        ("3x1", [0, 1, 2]),
        ("0,1,0", [0, 1, 0]),
        ("1,0", [1, 0]),
        ("5", [5]),
    ],
)
def test_topology(text, nodes):
    assert cards.declared_nodes(text) == nodes


@pytest.mark.parametrize("name", ["ACCDP_NO_SUCH", "chunk", ""])
def test_unknown(name):
    with pytest.raises(UsageError, match="no such setting; `accdp info` lists them"):
        set_to(name, "1")
    with pytest.raises(UsageError, match="no such setting"), settings.override(**{name: 1}):
        pass


def test_override_is_for_the_block():
    before = settings.table()
    with settings.override(chunk_bytes="2M", spin_us=7):
        assert settings.value_of("chunk_bytes") == "2M"
        assert settings.value_of("spin_us") == "7"
    assert settings.table() == before


@pytest.mark.parametrize("names", [("chunk_bytes", "flat_bytes"), ("flat_bytes", "chunk_bytes")])
@pytest.mark.parametrize(
    "sizes", [{"chunk_bytes": "8k", "flat_bytes": "4k"}, {"chunk_bytes": "4M", "flat_bytes": "2M"}]
)
def test_override_of_settings_that_limit_each_other(names, sizes):
    """In any order, on the way in and on the way out."""
    before = settings.table()
    with settings.override(**{name: sizes[name] for name in names}):
        assert {name: settings.value_of(name) for name in sizes} == sizes
    assert settings.table() == before


def test_override_that_is_refused_changes_nothing():
    before = settings.table()
    with pytest.raises(UsageError, match="ACCDP_MPI=maybe"), settings.override(spin_us=7, mpi="maybe"):
        pass
    assert settings.table() == before


def test_a_chunk_made_small_takes_its_derived_limit_along():
    """In code as in the environment: a limit that nobody has set follows the size that it depends on."""
    done = ask("from accdp_comm import settings\nwith settings.override(chunk_bytes='4k', ring_bytes='4k'): show()")
    assert done.stdout.split() == ["4k", "4k", "4k", "1k"], done.stderr


def test_shared_settings():
    """What ranks compare when they form a group: the rows that say so, with their values."""
    shared = dict(row.split("=", 1) for row in _core.settings_text().split(";") if row)
    assert shared == {row.env: row.value for row in settings.table() if row.shared}
    assert {"ACCDP_CHUNK_BYTES", "ACCDP_TOPOLOGY"} <= set(shared)
    assert "ACCDP_SPIN_US" not in shared


SHOW = """
def show():
    print(*(settings.value_of(name) for name in ("chunk_bytes", "flat_bytes", "ring_bytes", "eager_bytes")))
"""


def ask(code: str, **variables: str) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own, which reads its environment afresh."""
    argv = [sys.executable, "-c", SHOW + code]
    return subprocess.run(argv, env=jobs.environment(**variables), capture_output=True, text=True, timeout=60)


def test_environment():
    done = ask("from accdp_comm import settings; show()", ACCDP_CHUNK_BYTES="8k", ACCDP_RING_BYTES="16k")
    assert done.stdout.split() == ["8k", "8k", "16k", "4k"], done.stderr  # the derived limits follow
    done = ask(
        "from accdp_comm import settings; print([r.source for r in settings.table() if r.name == 'spin_us'])",
        ACCDP_SPIN_US="5",
    )
    assert done.stdout.strip() == "['environment']", done.stderr


def test_override_gives_back_where_a_value_came_from():
    code = """
from accdp_comm import settings
def sources(): return [row.source for row in settings.table() if row.name in ("spin_us", "yield_us")]
with settings.override(spin_us=7, yield_us=7): print(*sources())
print(*sources())"""
    done = ask(code, ACCDP_SPIN_US="5")
    assert done.stdout.splitlines() == ["code code", "environment default"], done.stderr


def test_text_that_is_no_utf_8():
    """As paths may be: it can be read, set and shown, and wrong values are refused in words."""
    code = """
import os, sys
import accdp_comm
from accdp_comm import UsageError, settings
there = os.fsdecode(b"/tmp/\\xff")
assert settings.value_of("cache_dir") == there
with accdp_comm.Communicator(), settings.override(cache_dir=there + "/more"):
    assert settings.value_of("cache_dir") == there + "/more"
try:
    settings.override(chunk_bytes=there).__enter__()
except UsageError as error:
    print(ascii(str(error)))
try:
    with accdp_comm.Communicator():
        raise KeyError("\\udcff \\ud800")
except KeyError:
    print("its own")
"""
    done = ask(code, ACCDP_CACHE_DIR="/tmp/\udcff")
    assert done.returncode == 0 and "UsageError" not in done.stderr, done.stderr
    said, own = done.stdout.splitlines()
    assert said.startswith("'ACCDP_CHUNK_BYTES=/tmp/\\udcff: expected bytes") and own == "its own"


def test_a_source_that_is_none():
    with pytest.raises(UsageError, match="ACCDP_SPIN_US: source=chance: expected default, environment or code"):
        _core.set_settings({"ACCDP_SPIN_US": ("5", "chance")})


@pytest.mark.parametrize(
    "variables",
    [
        {"ACCDP_RING_BYTES": "100"},
        {"ACCDP_FLAT_BYTES": "8k", "ACCDP_CHUNK_BYTES": "4k"},
        {"ACCDP_EAGER_BYTES": "8k", "ACCDP_RING_BYTES": "16k"},
        {"ACCDP_MPI": "never"},
        {"ACCDP_LIVENESS_S": "soon"},
    ],
    ids=str,
)
def test_wrong_environment(variables):
    """It is an error when a group is made, not when the package is imported."""
    done = ask("import accdp_comm\nprint('imported')\naccdp_comm.Communicator()", **variables)
    name, text = next(iter(variables.items()))
    assert done.stdout.strip() == "imported"
    assert f"UsageError: {name}={text}: expected " in done.stderr


def test_documentation():
    """docs/environment.md is what `accdp info --markdown` prints, whatever is set where it runs."""
    argv = [sys.executable, "-m", "accdp_comm", "info", "--markdown"]
    env = jobs.environment(ACCDP_SPIN_US="5")
    page = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert (ROOT / "docs/environment.md").read_text() == page, (
        "write it anew: accdp info --markdown > docs/environment.md"
    )
    for row in settings.table():
        assert f"`{row.env}`" in page
