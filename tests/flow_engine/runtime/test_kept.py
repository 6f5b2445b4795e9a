"""What a process keeps has a bound, by weight and in the order of use."""

from flow_engine.runtime.kept import Kept


def test_what_was_used_longest_ago_gives_way() -> None:
    kept = Kept[str, str](2)
    kept.put("a", "1")
    kept.put("b", "2")
    assert kept.get("a") == "1"
    kept.put("c", "3")
    assert [kept.get(key) for key in "abc"] == ["1", None, "3"]
    assert len(kept) == 2


def test_the_bound_is_of_weights() -> None:
    kept = Kept[int, bytes](100, len)
    for number in range(9):
        kept.put(number, b"x" * 30)
    assert [number for number in range(9) if kept.get(number)] == [6, 7, 8]
    kept.put(9, b"x" * 100)
    assert len(kept) == 1


def test_what_takes_the_place_of_another_weighs_in_its_stead() -> None:
    kept = Kept[str, bytes](100, len)
    for size in (90, 60, 50):
        kept.put("a", b"x" * size)
    kept.put("b", b"x" * 50)
    assert [len(kept.get(key) or b"") for key in "ab"] == [50, 50]


def test_what_weighs_more_than_all_may_is_not_kept_nor_what_it_would_replace() -> None:
    kept = Kept[str, bytes](100, len)
    kept.put("a", b"x")
    kept.put("b", b"x")
    kept.put("a", b"x" * 101)
    assert (kept.get("a"), kept.get("b")) == (None, b"x")
