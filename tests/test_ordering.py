"""Names are listed for people with their numbers as numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cleave_plan.ordering import natural


def test_numbers_in_names_by_hand() -> None:
    """Devices of two kinds, a name with two numbers, one without, one that begins with its number."""
    names = ["phone-10", "laptop-2", "phone-9", "rack-2-slot-11", "rack-2-slot-3", "rack-10-slot-1", "phone", "7-phone"]
    assert sorted(names, key=natural) == [
        "7-phone", "laptop-2", "phone", "phone-9", "phone-10", "rack-2-slot-3", "rack-2-slot-11", "rack-10-slot-1",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["d", "device-", "phone"]), st.integers(0, 10**6)), unique=True))
def test_word_and_number(pairs: list[tuple[str, int]]) -> None:
    """Names of a word and a number are in the order of the pairs."""
    named = {f"{word}{number}": (word, number) for word, number in pairs}
    assert [named[name] for name in sorted(named, key=natural)] == sorted(pairs)


@given(st.text("a-01²٣", max_size=6), st.text("a-01²٣", max_size=6))
def test_any_two_names_have_an_order(one: str, other: str) -> None:
    """Whatever names are, one of two comes first, unless they are the same: lists never depend on where they came from."""
    assert (natural(one) < natural(other)) + (natural(other) < natural(one)) == (one != other)
