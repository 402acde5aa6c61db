"""Finding names: what is found, as what, where, and what is not."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_memkit.matching.fuzzy import KeyFinder, NameMatch
from langchain_memkit.matching.normalize import fold_text

TEXTS = Path(__file__).parents[3] / "benchmarks" / "texts"
BOOKS = ["Travelling at Night", "The Skeleton Songs", "The Locksmith's Dream"]
TITLES = [
    *BOOKS,
    "Moby-Dick",
    "One Hundred Years of Solitude",
    "Nineteen Eighty-Four",
    "The Brothers Karamazov",
    "Pride and Prejudice",
    "Straßenkatzen",
    "A Brief History of Seven Killings",
    "Frankenstein",
    "Les Misérables",
    "Catch-22",
    "Middlemarch",
    "The Old Man and the Sea",
]


def finder(*names: str, min_score: float | None = 88) -> KeyFinder:
    """Names that stand for themselves."""
    return KeyFinder({name: name for name in names}, min_score=min_score)


def found(names: KeyFinder, text: str) -> list[tuple[str, str, str]]:
    """What is found: the part of the text, the key, the kind."""
    return [(text[f.start : f.end], f.key, f.kind) for f in names.find(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Who wrote The Skeleton Songs?", [("The Skeleton Songs", BOOKS[1], "exact")]),
        ("the skeleton songs", [("the skeleton songs", BOOKS[1], "folded")]),
        ('"THE SKELETON-SONGS!"', [("THE SKELETON-SONGS", BOOKS[1], "folded")]),
        ("The locksmith´s dream.", [("The locksmith´s dream", BOOKS[2], "folded")]),
        ("A locksmith´s dream.", [("locksmith´s dream", "Locksmith's Dream", "folded")]),
        ("who wrote the skeletn songs?", [("the skeletn songs", BOOKS[1], "fuzzy")]),
        ("traveling at night", [("traveling at night", BOOKS[0], "fuzzy")]),
        ("The Skel eton Songs", [("The Skel eton Songs", BOOKS[1], "fuzzy")]),
        ("#TheSkeletonSongs", [("TheSkeletonSongs", BOOKS[1], "fuzzy")]),
        ("theskeleton songs", [("theskeleton songs", BOOKS[1], "fuzzy")]),
        ("The Skeleton Songsters", []),
        ("Unthe Skeleton Songs", []),
        ("skeleton", []),
        ("the songs", []),
    ],
)
def test_kinds(text: str, expected: Any) -> None:
    """Exactly, in another spelling, with typos; whole words only."""
    assert found(finder(*BOOKS, "Locksmith's Dream"), text) == expected


def test_no_names() -> None:
    """Nothing is found among no names, and nothing in nothing."""
    assert KeyFinder({}).find("text") == KeyFinder({}, min_score=88).find("text") == []
    assert finder("The Skeleton Songs", "").find("") == []


def test_typos_only_if_asked() -> None:
    """Without a score no typo is allowed; with one, it says how alike."""
    assert finder(*BOOKS, min_score=None).find("the skeletn songs") == []
    assert finder(*BOOKS, min_score=98).find("the skeletn songs") == []
    assert finder(*BOOKS).find("the skeletn songs") == [NameMatch("The Skeleton Songs", 0, 17, 97, "fuzzy")]


def test_short_names_only_as_written() -> None:
    """Names of fewer than four letters are found as they are written, and nowhere else."""
    names = finder("It", "US", "X-Y", "C", "C++")
    assert found(names, "it is us") == []
    assert found(names, "It is in the US.") == [("It", "It", "exact"), ("US", "US", "exact")]
    assert found(names, "x-y, X Y, X-Y") == [("X-Y", "X-Y", "exact")]
    assert found(names, "C++ and C, not c") == [("C++", "C++", "exact"), ("C", "C", "exact")]


def test_names_without_letters() -> None:
    """Symbols are names as well, exactly and apart from letters."""
    assert found(finder("!!!", "🐠"), "!!! wow!!! the 🐠.") == [("!!!", "!!!", "exact"), ("🐠", "🐠", "exact")]


def test_scripts_without_spaces() -> None:
    """Where words are not apart, a name may begin and end anywhere."""
    names = finder("红楼梦", "百年の孤独", "The Sea", "三体三部曲全集合订本")
    assert found(names, "我喜欢红楼梦和百年の孤独。") == [
        ("红楼梦", "红楼梦", "exact"),
        ("百年の孤独", "百年の孤独", "exact"),
    ]
    assert found(names, "我喜欢The Sea吗") == [("The Sea", "The Sea", "exact")]
    assert found(names, "我喜欢三体三部曲全集合钉本") == [("三体三部曲全集合钉本", "三体三部曲全集合订本", "fuzzy")]


def test_punctuation_of_a_name_belongs_to_it() -> None:
    """A name that ends in punctuation is exact with it, and folded without."""
    names = finder("Who Goes There?", "(Untitled)")
    assert found(names, "Read Who Goes There? (Untitled)") == [
        ("Who Goes There?", "Who Goes There?", "exact"),
        ("(Untitled)", "(Untitled)", "exact"),
    ]
    assert found(names, "Who Goes There is Untitled") == [
        ("Who Goes There", "Who Goes There?", "folded"),
        ("Untitled", "(Untitled)", "folded"),
    ]


def test_same_letters() -> None:
    """Names that fold to the same: the exact spelling decides, else all are found; a key is found once."""
    names = finder("Polish", "polish")
    assert found(names, "polish") == [("polish", "polish", "exact")]
    assert found(names, "POLISH") == [("POLISH", "Polish", "folded"), ("POLISH", "polish", "folded")]
    assert [f.key for f in KeyFinder({"Moby Dick": "m", "Moby-Dick": "m"}, min_score=88).find("MOBY DICK")] == ["m"]
    assert [f.key for f in KeyFinder({"Moby Dick": "m", "Moby-Dick": "n"}, min_score=88).find("moby dikc")] == [
        "m",
        "n",
    ]


def test_places_do_not_overlap() -> None:
    """The better kind wins, then the longer name; what is left over is found as well."""
    names = finder("Night", "Travelling at Night", "at Night School", "The Night School")
    assert found(names, "Travelling at Night School") == [("Travelling at Night", "Travelling at Night", "exact")]
    assert found(names, "travelling at night, Night") == [
        ("travelling at night", "Travelling at Night", "folded"),
        ("Night", "Night", "exact"),
    ]
    # twice as long as what was found within it
    assert found(names, "Traveling at Night") == [("Traveling at Night", "Travelling at Night", "fuzzy")]


def test_a_longer_name_with_typos_does_not_beat_what_is_there() -> None:
    """A name that stands there is not taken for a slightly longer one with a typo."""
    names = finder("The Skeleton Songs", "The Skeleton Songs II")
    assert found(names, "The Skeleton Songs is good") == [("The Skeleton Songs", "The Skeleton Songs", "exact")]


def test_other_digits_are_another_name() -> None:
    """Catch-23 is not Catch-22."""
    names = finder("Catch-22", "Part 1 of the Trilogy", "Apollo 13 Mission")
    assert found(names, "catch 23, part 2 of the trilogy, apollo 31 mission") == []
    assert found(names, "apolo 13 mission") == [("apolo 13 mission", "Apollo 13 Mission", "fuzzy")]


def test_another_known_name_is_no_typo() -> None:
    """What is a name itself is not taken for a misspelt other one."""
    assert found(finder("The Matching Hour", "The Marching Hour"), "the marching hour") == [
        ("the marching hour", "The Marching Hour", "folded")
    ]


def test_the_nearest_name_is_meant() -> None:
    """Of several names that are like a place, those with the highest score."""
    names = finder("The Complete Guide to Gardening", "The Complete Guide to Gardens", "The Complete Guide to Garages")
    assert [f.key for f in names.find("the complete guide to gardning")] == ["The Complete Guide to Gardening"]


def test_other_words_are_no_typos() -> None:
    """A word in place of another one is no typo, however long the rest is."""
    names = finder("Afternoon Zoru", "Realistic Nfo", "The Oceanarium Tgante", "Tile Pone")
    assert found(names, "afternoon for, realistic for, the oceanarium and the, tiles one") == []


def misspelt(title: str) -> list[str]:
    """Every title with one typo, a letter a place."""
    draw = random.Random(title)
    typos = set()
    for i in range(len(title)):
        letter = draw.choice("abcdefghijklmnopqrstuvwxyz")
        typos |= {title[:i] + letter + title[i:], title[:i] + letter + title[i + 1 :], title[:i] + title[i + 1 :]}
        typos.add(title[:i] + title[i + 1 : i + 2] + title[i] + title[i + 2 :])
    same = fold_text(title)
    digits = [c for c in title if c.isdigit()]
    return sorted(t for t in typos if fold_text(t) != same and [c for c in t if c.isdigit()] == digits)


def test_one_typo_anywhere() -> None:
    """A letter too many, too few, wrong, or in the wrong order is forgiven at (nearly) every place."""
    names = finder(*TITLES)
    tried = [(title, f"Have you read {typo}, or not?") for title in TITLES for typo in misspelt(title)]
    missed = [text for title, text in tried if title not in [f.key for f in names.find(text)]]
    assert len(tried) > 900
    assert len(missed) <= 0.02 * len(tried), missed


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda p: p.stem)
def test_prose_names_no_title(path: Path) -> None:
    """Thousands of words of ordinary text, and no title in it."""
    assert finder(*TITLES).find(path.read_text(encoding="utf-8")) == []


def many(count: int) -> list[str]:
    """Titles that begin alike: every piece but the last is shared by all."""
    return [f"The Complete Guide to {'abcdefghij'[i % 10]}{i:05}" for i in range(count)]


def test_names_that_begin_alike() -> None:
    """A title among five thousand with the same beginning is found with a typo there, and with one at its end."""
    names = finder(*many(5_000), "The Complete Guide to Gardening")
    assert found(names, "see the complte guide to d02343") == [
        ("the complte guide to d02343", "The Complete Guide to d02343", "fuzzy")
    ]
    assert found(names, "see the complete guide to gardning") == [
        ("the complete guide to gardning", "The Complete Guide to Gardening", "fuzzy")
    ]


def test_in_threads() -> None:
    """Many threads find the same."""
    names = finder(*TITLES)
    texts = [f"{title}, {typo}" for title in TITLES for typo in misspelt(title)[:20]]
    expected = [names.find(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(names.find, texts)) == expected


words = st.sampled_from(
    ["the", "skeleton", "songs", "at", "Night", "travelling", "straße", "É", "22", "红楼", "?", "-", "\ud800"]
)
phrases = st.lists(words, max_size=6).map(" ".join)


@settings(max_examples=300)
@given(st.lists(phrases | st.text(max_size=12), max_size=6), phrases | st.text(max_size=40))
def test_what_holds_for_any_text(titles: list[str], text: str) -> None:
    """Places are in order, lie in the text, do not overlap unless they are the same; kinds are what they say."""
    names = finder(*titles)
    results = names.find(text)
    assert results == sorted(results, key=lambda f: f.start)
    for one, other in pairwise(results):
        assert one.end <= other.start or (one.start, one.end) == (other.start, other.end)
    for f in results:
        assert 0 <= f.start < f.end <= len(text)
        part = text[f.start : f.end]
        assert (part == f.key) == (f.kind == "exact")
        assert f.score == 100 or f.kind == "fuzzy"
        if f.kind == "folded":
            assert fold_text(part) == fold_text(f.key)


@settings(max_examples=300)
@given(st.lists(phrases, min_size=1, max_size=4), st.lists(phrases, max_size=3))
def test_a_name_that_stands_there_is_found(titles: list[str], others: list[str]) -> None:
    """Written between spaces, a name is found exactly, or lies within a longer one that was."""
    title = titles[0].strip()
    text = f"{' '.join(others[:1])} {title} {' '.join(others[1:])}"
    results = finder(*titles, title).find(text)
    if fold_text(title):
        place = text.index(title)
        assert any(f.start < place + len(title) and place < f.end for f in results)


@settings(max_examples=300)
@given(st.lists(phrases, max_size=5), phrases)
def test_finds_what_a_slow_search_finds(titles: list[str], text: str) -> None:
    """Without typos: exactly where, of all titles one by one, a longest one stands between word borders."""
    latin = [t for t in titles if fold_text(t).isascii() and len(fold_text(t)) >= 4]
    if not fold_text(text).isascii():
        return
    padded = f" {fold_text(text)} "
    expected = {fold_text(t) for t in latin if f" {fold_text(t)} " in padded}
    results = finder(*latin, min_score=None).find(text)
    assert {fold_text(f.key) for f in results} <= expected
    assert bool(results) == bool(expected)
    if expected:
        longest = max(expected, key=len)
        exact = any(f.kind == "exact" for f in results)
        # a shorter name may win by the signs that stand in it: "the ? ? the" is longer than "songs the"
        assert exact or max(len(fold_text(text[f.start : f.end])) for f in results) >= len(longest)


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("The Trial", "we hiked the trail"),
        ("The Castle", "the cattle went home"),
        ("The Stand", "footprints in the sand"),
        ("The Giver", "across the river"),
        ("The Road", "all the roads"),
    ],
)
def test_an_article_does_not_make_short_words_alike(title: str, text: str) -> None:
    """Only what stands after it is compared; the title itself, and longer ones with a typo, are still found."""
    finder = KeyFinder({title: title, "The Skeleton Songs": "songs"}, min_score=88)
    assert finder.find(text) == []
    assert [found.key for found in finder.find(f"I read {title.lower()} and the skeletn songs")] == [title, "songs"]
