"""What commands read of their options: values as people write them, and one message for all else."""

import argparse

import pytest

from accdp_comm import readers

MANY = "9" * 5000


def refuses(reader, text: str, message: str) -> bool:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        reader(text)
    return message in str(caught.value) and str(caught.value).endswith(f", got {text!r}")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64k", 65536),
        ("64KiB", 65536),
        ("64MiB", 64 << 20),
        ("64m", 64 << 20),
        ("1G", 1 << 30),
    ],
)
def test_sizes(text, nbytes):
    assert readers.bytes_of(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "M", "x", "4q", "4kk", "-1", "1.5M", "64MB", "64 MiB", "k", "\u0663k", "6\u212a", MANY]
)
def test_wrong_sizes(text):
    assert refuses(readers.bytes_of, text, "expected bytes, with k, M, G")


@pytest.mark.parametrize(
    ("text", "rate"), [("1Gbit", 1.25e8), ("100Mbit", 1.25e7), ("1.2GB", 1.2e9), ("2.5Gbit/s", 3.125e8), ("9kB", 9e3)]
)
def test_rates(text, rate):
    assert readers.rate_of(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["1", "1Gb", "0Gbit", "-1Gbit", "fast", "9" * 400 + "Gbit"])
def test_wrong_rates(text):
    assert refuses(readers.rate_of, text, "expected a rate such as 1Gbit")


def test_whole_numbers():
    ranks = readers.at_least(1, "a number of ranks")
    assert [ranks(text) for text in ("1", "007", "48")] == [1, 7, 48]
    assert all(
        refuses(ranks, text, "expected a number of ranks >= 1")
        for text in ("0", "", "-1", "1.0", "x", "٣", "9" * 19, MANY)
    )
    calls = readers.at_least(1, "a number", most=50)
    assert [calls("1"), calls("50")] == [1, 50]
    assert all(refuses(calls, text, "expected a number from 1 to 50, got") for text in ("0", "51", "9" * 17, MANY))
    assert readers.numbers(0)("3,0,3") == [3, 0, 3]
    assert all(
        refuses(readers.numbers(1), text, "expected numbers >= 1 with") for text in ("", "1,", "2,0", "1 2", "1;2")
    )


def test_real_numbers():
    seconds = readers.real("seconds up to 10", lambda value: 0 <= value <= 10)
    assert [seconds(text) for text in ("0", "1e-3", "10")] == [0, 1e-3, 10]
    assert all(refuses(seconds, text, "expected seconds up to 10") for text in ("", "nan", "inf", "-1", "10.1", "x"))


def test_words():
    colours = readers.some_of(("red", "green"))
    assert colours("green,red,green") == ["green", "red"]
    with pytest.raises(argparse.ArgumentTypeError, match="expected some of red, green, got 'blue', ''"):
        colours("red,blue,")
