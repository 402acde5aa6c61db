"""Gate: decide by rules, without a language model, whether a question is standalone. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_memkit.ranking.tokenize import STOP_WORDS, tokenize
from langchain_memkit.retrievers.expansion import CHARACTERS, GENERIC, TURNS, Turn, words_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENGLISH = 0.25  # share of stop words from which a question counts as English: less than half of what is usual
ENOUGH = 3  # topic words that a standalone question without names has at least
MORE = 2  # further topic words required if it begins with "and", or has "the album" and the like
NOUN_PHRASE = 100  # characters after "the" that are read

PERSONAL = _words("he she they him her them his hers their theirs himself herself themselves")
"""Personal pronouns; one that is left in a rewrite shows that the rewrite is not standalone."""
_BACK = PERSONAL | _words("it its itself this these those")
_POINTING = _words(
    """one ones other others another else both two former latter last next previous rest same
    instead option options again such earlier mentioned here equivalent counterpart"""
)
_BE = _words("is are was were be been s isn aren wasn weren")
_AUXILIARIES = _BE | _words(
    """am do does did don doesn didn have has had can could should would will shall may might must ve re ll m"""
)
_ASKING = _words("what which who whom whose when where why how")
_SAYING = _words("i we my")
_TELLING = _words("tell explain describe define introduce summarize summarise")
_ORDERS = _words(
    """show give list compare contrast outline name find suggest recommend write help teach discuss calculate translate
    convert please let lets"""
)
_HEADS = _ASKING | _AUXILIARIES | _SAYING | _TELLING | _ORDERS
_BESIDE = _words("after before for like than versus vs with")  # "Who was before Ada?"
# Stop words that other languages have, too: "Was kostet das in Berlin?"
_SHARED = _words("a all also am an are as be do for had has he i im in is me no of on or over so to under was we will")
# First words that questions in related languages do not have.
_ENGLISH_HEADS = _words("are can could did does should would explain give tell")
# Capitalized, but not the name of a topic.
_CALENDAR = """january february march april june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday"""
_TIMES = frozenset(tokenize(_CALENDAR))
# Words that fit any topic and so do not tell the topic.
_ANY_TOPIC = """across after along among around available basic better between big certain choose common current differ
    during early famous few five four general happen important key large late main major modern new normally number
    old part people person popular possible recent say several similar small special specific start three time top
    typical typically usually various vs within without work worse year"""
_VAGUE = GENERIC.union(tokenize(_ANY_TOPIC))
_BEFORE_THAT = """about of like for with from to do did does is was are were after before in on than by at during since
    and why how what when where who"""
# "that" alone, not "the diet that works": at the beginning, the end, after one of these words, or "that year".
_THAT = re.compile(
    rf"(?:^|[.,;!?]\s*|\b(?:{'|'.join(_BEFORE_THAT.split())})\s+)that\b|\bthat(?:['\u2019]s\b|\s*(?:[.?!,;]|$))"
    r"|\bthat (?:case|day|month|period|place|point|season|time|way|week|year)\b"
)
_COMPARING = """better bigger cheaper colder earlier easier faster harder higher larger later longer lower older safer
    shorter slower smaller stronger taller warmer worse younger"""
_ELLIPSIS = re.compile(
    r"\b(?:what|how) about\b|\bmore\W*$|^\W*(?:why|how|when|where|who|which|what)\W*$|\bsimilar\b(?! to\b)"
    r"|\b(?:any|some|many|most|more|few|several) (?:at|by|for|from|in|near|on|related|with)\b"
    r"|\bthe (?:first|second|third|fourth)\b|\b(?:first|second|third|fourth)(?=\W*$)"
    r"|\bthe\b(?= (?:most|worst|\w+est)(?: (?:at|ever|for|from|in|of|on)\b|\W*$))"
    rf"|\b(?:too|then|as well|{'|'.join(_COMPARING.split())})\W*$|['\u2019]s\W*$"
    r"|\b(?:convert|translate) (?:in)?to\b|\bwho\b(?=\W+(?:\w+\W+)?(?:after|before)\b)"
)
_FRAGMENT = re.compile(r"^\W*(?:any|some|more|yes|no|yeah|because|both|either|neither|not)\b")
_PERSON = re.compile(r"\b(?:he|him|his|she|hers?)\b", re.IGNORECASE)  # somebody is talked of
_PLACE = re.compile(r"\b(?:from|in|of|to) ([A-Z]\w*)")  # "the president of France"
_THE = re.compile(r"\b[Tt]he\s+(?=[a-z])")  # "the album": only the conversation tells which one
_MY = re.compile(r"\b[Mm]y\s+(?=[a-z])")  # "my password": whose it is can be told, unless it was talked of
# "the Coast", "the EU rules", "Prince Bernhard", not "the Ivory Coast", "the Bank of England", "King Charles III";
# "after the war"; "what is notable?"; "Who was Devin Moore?", since several people may have that name.
_OPEN = re.compile(
    r"\b(?:[Tt]he|King|Queen|Prince|Princess|Pope)\s+(?!Jr)[A-Z][\w-]*\b(?![\w-]|\W+(?:of\b|[A-Z\d]))"
    r"|\b(?:after|before|during) the\b|\b(?:highlights?|interesting|notable|noteworthy)\b"
    r"|^\W*[Ww]ho(?:['\u2019]s| is| was)(?: [^\W\da-z_][\w.'\u2019-]*)+\W*$"
)
_FULL_NAME = re.compile(r"(?<=[\w,;:] )\W?[A-Z]\S*(?:\s+(?:(?:of|the|and|de)\s+)*[A-Z]\S*)+")  # "Barack Obama"
_NUMBERED = re.compile(r"\b[a-z]+ #?(?!(?:19|20)\d\d\b)\d{2,}\b")  # "error 42"
_WORD_OR_SIGN = re.compile(r"[\w'\u2019-]+|[^\w\s]")
_LINKING = frozenset(("at", "for", "from", "in", "on", "to", "with"))
_ENDING = STOP_WORDS.union(("between", "with")).difference(("and", "or", "most", "more"))
# After these no verb follows the noun, so that "the policy for ..." is one thing.
_BEFORE_A_NOUN = re.compile(
    r"(?:\bwh(?:at|o)(?:['\u2019]s| is| are| was| were)|\b(?:about|explain|describe|list|define|summari[sz]e|me))\s+$",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[a-z]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_INNER_HEAD = re.compile(r"(?:[,;:]|\b(?:about|at|by|for|from|in|of|on|since|to|under|until|with))\s+([a-z]+)")
_POLITE = re.compile(
    r"\W*(?:(?:many )?thanks?\b|thank you\b|(?:that|this|it)(?:['\u2019]s| is| sounds| was| seems)\b|i see\W*$)"
)
_COURTESY = (
    r"thanks?|thank you|great|nice|ok(?:ay)?|good|cool|wow|h+m+|m+|interesting|i see|alright|sure|right|oh|ah"
    r"|well|perfect|awesome|excellent|amazing|so|now|actually"
)
_OPENING = re.compile(rf"^\W*(?:(?:{_COURTESY}|and|but)\b[\s,.!:-]*)+", re.IGNORECASE)
_CONTINUING = re.compile(rf"^\W*(?:(?:{_COURTESY})\b[\s,.!:-]*)*(and|but|or|then|also|plus)\b", re.IGNORECASE)
_PAIR = re.compile(r"\bbetween\b.{1,100}\band\b|\bdifferent from\b")  # counts as a topic word: "the difference between"
# "What is taurine?"; in the plural it may ask for more of what was said: "What are treatments?"
_DEFINING = re.compile(r"\W*[Ww]hat is (?!the\b|.*\blike\b)(?:an? )?[\w-]+(?: [\w-]+){0,2}(?:,? and\b.*)?\?\W*")
_THANKS = re.compile(r"(?s)^(?!.*\bbut\b).*\b(?:thanks?|thank you|helpful|(?:good)?bye)\b")
# "What is X and why does it matter?": the pronoun's noun is in the sentence.
_OWN_PRONOUN = re.compile(r"\band (?:why|how|what|where|when|who|which|does|do|is|are|did|its|their)\b[^?.!]*[?.!]*$")


def stands_alone(question: str, history: Sequence[Turn]) -> tuple[bool, str]:
    """Return whether a question can be understood without the conversation, and why.

    It can if it is a whole sentence, no word points back, and a name or enough topic words tell what it is about. In
    doubt it counts as not standalone: a lexical or dense retriever loses least if a standalone question gets `CAREFUL`
    weights, the question itself untouched.

    Args:
        question: The new question.
        history: Earlier questions with their answers, oldest first.

    Returns:
        The decision, and the reason in a few words.

    Example:
        >>> stands_alone("How old is he?", [("Who is the president of France?", "Emmanuel Macron.")])
        (False, "'he' points back")
    """
    if not history:
        return True, "nothing was said before"
    read = question[:CHARACTERS]
    asked = without_courtesy(read)
    content = {stem: word for stem, word in words_of(asked).items() if stem not in GENERIC}
    if pointing := pointing_word(question):
        return False, f"'{pointing}' points back"
    if len(content) <= 1 and "?" not in question and _THANKS.search(question.lower()):
        return True, "only thanks"
    if not _is_english(read.lower()):
        return False, "the gate reads English only, and does not know"
    if not _is_whole(asked.lower(), len(content)):
        return False, "it is not a whole sentence"
    bridges, more = _bridges(asked)
    mine = [stem for my in _MY.finditer(asked) for stem in tokenize(asked[my.end() :])[:1]]
    texts = [text[:CHARACTERS] for turn in history[-TURNS:] for text in turn if text]
    said, small = (set(tokenize(" ".join(some))) for some in (texts, re.findall(r"\b[a-z]\w*", " ".join(texts))))
    if not said.isdisjoint(bridges + mine) or (mine and not re.search(r"\b[Ii]\b", asked)):
        return False, "'the' or 'my' before what was said"
    if _OPEN.search(asked):
        return False, "it leaves open what is meant"
    # "Macron" after "Emmanuel Macron", and any first or last name if somebody is talked of.
    full = set(tokenize(" ".join(_FULL_NAME.findall(asked))))
    short = {stem for stem, word in content.items() if stem not in full and (word.name or stem in said - small)}
    people = short.difference(tokenize(" ".join(_PLACE.findall(asked)))) and any(map(_PERSON.search, texts))
    if people or not said.isdisjoint(short):
        return False, "a name that may be short for another"
    continuing = _continuing(read)
    # A number or a date tells when, not what: "what album was released june 2010"
    telling = sum(stem not in _VAGUE | _TIMES and not stem.isdigit() for stem in content)
    telling += (_PAIR.search(asked) is not None) + bool(mine)
    if telling >= ENOUGH + (MORE if continuing else more):
        return True, "it says enough and nothing points back"
    if continuing:
        return False, f"'{continuing}' goes on from what was said"
    named = any(word.name and stem not in _TIMES for stem, word in content.items())
    if not more and (named or _NUMBERED.search(asked) or (telling and _DEFINING.fullmatch(asked))):
        return True, "it has a name and nothing points back"
    return False, "'the' leaves open which one" if more else "it says too little"


def _is_english(folded: str) -> bool:
    """Return whether a lower-case text is English: by its share of stop words, or by the first word of a sentence."""
    read = _LETTERS.findall(folded)
    if any(sentence.split(" ", 1)[0] in _ENGLISH_HEADS for sentence in _SENTENCE.split(folded.strip())):
        return True
    english = [word for word in read if word in STOP_WORDS]
    return not _SHARED.issuperset(english) and len(english) >= ENGLISH * len(read)


def _is_whole(folded: str, content: int) -> bool:
    """Return whether a lower-case text has a sentence that asks, orders or states; not "in Germany?", "which city?"."""
    for sentence in _SENTENCE.split(folded):
        read = _LETTERS.findall(sentence)
        heads = [*read[:1], *(word for word in _INNER_HEAD.findall(sentence) if word in _ASKING | _AUXILIARIES)]
        head = next((word for word in heads if word in _HEADS), "")
        if not head:
            continue
        naming = head in _TELLING or (head in ("what", "who", "where") and _BE.intersection(read[1:2]))
        if naming and _BESIDE.isdisjoint(read):
            return True  # "Who is Ada?"
        # "Does it rain?", "Who wrote Hamlet?", but "Which city in Germany?", "I mean in Germany."
        short = head in _SAYING or (head in _ASKING - {"who"} and _AUXILIARIES.isdisjoint(read))
        if content >= (3 if short else 2):
            return True
    return False


def _bridges(asked: str) -> tuple[list[str], int]:
    """Find each "the" that leaves open which one is meant ("the album"), and "any".

    Returns:
        The stems of their nouns, and how many more topic words the sentence needs because of them.
    """
    found: list[str] = []
    more = MORE if re.search(r"\bany\b", asked) else 0  # "any awards": of what was said
    for the in _THE.finditer(asked):
        # The noun is the words up to the first name, stop word or punctuation mark; two tokens from there are read.
        after = [*_WORD_OR_SIGN.findall(asked[the.end() : the.end() + NOUN_PHRASE]), "", ""]
        end = 0
        while after[end][:1].isalnum() and not after[end][0].isupper() and after[end] not in _ENDING:
            end += 1
        noun, then, last = after[:end], after[end], after[min(end + 1, len(after) - 1)]
        highest = len(noun) > 1 and noun[0].endswith(("most", "est", "worst"))  # "the fastest way"
        singled = len(noun) == 1 and then[:1].isupper()  # "the singer Adele"
        if not noun or noun[-1][0].isdigit() or then in ("of", "between") or highest or singled:  # "the early 1970s"
            continue
        if _BEFORE_A_NOUN.search(asked[max(the.start() - NOUN_PHRASE, 0) : the.start()]):
            if then[:1].isupper() or (then in _LINKING and last[:1].isupper()):  # "the capital in Germany"
                continue
            if then in _LINKING:
                more = max(more, 1)
                continue
        more = MORE
        found += tokenize(" ".join(noun))
    return found, more


def _continuing(question: str) -> str:
    """Return the conjunction ("and", "but", "also", ...) that continues the conversation; empty if there is none.

    Sentences of mere courtesy are skipped.
    """
    for sentence in _SENTENCE.split(question.strip()):
        if sentence.rstrip().endswith("?") or not _POLITE.match(sentence.lower()):
            begins = _CONTINUING.match(sentence)
            if begins or _OPENING.sub("", sentence).strip(" ,.!?"):
                return begins.group(1).lower() if begins else "also" if re.search(r"(?i)\balso\b", question) else ""
    return ""


def pointing_word(question: str) -> str:
    """Return the first word or words of a question that point back to the conversation, in lower case; empty if none.

    Example:
        >>> pointing_word("And how old is he?"), pointing_word("How old is Macron?")
        ('he', '')
    """
    folded = without_courtesy(question[:CHARACTERS]).lower()
    for sentence in _SENTENCE.split(folded):
        own = _OWN_PRONOUN.search(sentence)
        before = sentence[: own.start()] if own else ""
        checked = before if any(stem not in GENERIC for stem in tokenize(before)) else sentence
        read = _LETTERS.findall(sentence)
        pointing = [word for word in _LETTERS.findall(checked) if word in _BACK]
        pointing += [word for word in read if word in _POINTING]
        # "restaurants there", not "is there"
        pointing += [w for i, w in enumerate(read) if w == "there" and _BE.isdisjoint(read[max(i - 1, 0) : i + 2])]
        if pointing:
            return str(pointing[0])
        if that := _THAT.search(sentence):
            return that.group().strip(" .,;!?")
    found = _ELLIPSIS.search(folded) or _FRAGMENT.search(folded)
    return found.group().strip() if found else ""


def without_courtesy(question: str) -> str:
    """Remove sentences of thanks and approval, and openings such as "ok, but"."""
    sentences = [s for s in _SENTENCE.split(question.strip()) if s]
    kept = [s for s in sentences if s.rstrip().endswith("?") or not _POLITE.match(s.lower())]
    return " ".join(filter(None, (_OPENING.sub("", s).strip(" ,.!") and _OPENING.sub("", s) for s in kept)))
