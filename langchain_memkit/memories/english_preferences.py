"""A finder of standing wishes in English messages, for `PreferenceMemory(find=...)`. Pure."""

from __future__ import annotations

import re

from langchain_memkit.messages.text import sentence_spans

__all__ = ["find_english_preferences"]

# In cues `_` is a space, other white space means nothing, and {name} stands for the words of it.
CUE_WORDS = {
    # what makes a wish last: these two hold lists that follow
    "lasting": """
        from_(?:now|here|this_point)_on(?:wards)? going_forward in_(?:the_)?future permanently
        for_(?:the_)?future_reference any_?more by_default as_a_rule at_all_times all_the_time
        for_good with_me in_your_{replies}""",
    "occasion": r"""
        whenever every_?time each_time any_?time when_you_{verb}
        (?:when|if)_I_(?:ask|say|mention|request|tell)
        (?:in|for|with|on|to|of)_(?:all|every|everything|each|any)(?=[^,]*\byou(?:r|_{doing}))""",
    # "in all that you write", not "you wrote"
    "doing": r"(?!\w+ed\b|gave|made|wrote)",
    # what an assistant is asked to do
    "verb": """
        answer cite explain format include list mention quote recommend refer_to reply respond show
        skip spell suggest summari[sz]e translate use write""",
    # what others are asked as well ("Never give up!"): it counts beside "I", "me" or "my"
    "other_verb": """
        add address ask assume avoid be begin book call check confirm convert delete double-check
        give indent keep leave_out make no_more open order plan put remind repeat round say schedule
        send share sign speak start talk tell treat warn""",
    "opening": """
        also and but so oh ok okay hey hi hello thanks actually well no(?=,) yes as since because
        given_that btw by_the_way fyi just_so_you_know note_that keep_in_mind_that remember_that""",
    "polite": r"""
        please just only kindly don't do_not stop mind remember_(?:to|that)
        make_sure(?:_that|_to)?(?:_you)? (?:can|could|will|would)_you you_(?:can|may|should|must)
        I(?:'d|_would)_like_you_to I_(?:want|need)_you_to""",
    "ever": "always never ever",
    "replies": """
        answers replies responses explanations messages summaries e-?mails letters recipes sources
        reasoning""",
    "habit": "buy drink drive eat fly read stay travel use watch wear",
    "very": """
        also always really just usually generally strongly definitely much personally still do
        try_to""",
    "other": "it them him her this that these",
}


def _cue(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of cues."""
    for name, words in CUE_WORDS.items():
        pattern = pattern.replace(f"{{{name}}}", rf"(?:{'|'.join(words.split())})")
    return re.compile("".join(pattern.split()).replace("_", " "), re.IGNORECASE)


# Typographic marks as a keyboard has them; one character for one, so that positions stay the same.
KEYBOARD = str.maketrans("\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u2013\u2014", '\'\'"""""--')

# -- whose words a message holds

# marks of mails, chats, logs, prompts, code, lyrics and quotations, and work on another's text
OF_OTHERS = _cue(r"""
    [\r\n\u2028\u2029]|:(?!\S)|/(?!\S)|\S@\S|https?:|www\.|["`<>{}\[\]=|*#★\\]|(?<!\w)'|^[-•]|\w\(|
    \d{4}-\d\d|\bp\.?s\.|^(?:dear\b|(?:hi|hey|hello)_(?!there|again)\w+,)|
    \b(?:best|regards|sincerely|yours|love|thanks),?_(?-i:[A-Z])\w+\W*$|
    \b(?:says|said|writes|wrote|written|told|tells|asked|asks|texted|forwarded|according)\b|
    (?:^|[.!?]_|(?:can|could|would)_you_|please_)(?:translate|proofread|summari[sz]e|rewrite|
        paraphrase|correct|edit|polish|review|read|check)_(?:this|these|that|my)\b|
    \b(?:the_following|(?:act|behave)_as|you_are_an?|ignore_(?:all|any|the|previous|above))\b
""")
QUOTED_WORD = re.compile(r"""(?<!\w)["'](\w+)[.,]?["'](?!\w)""")
# a sentence of somebody who speaks with an assistant
ADDRESSED = _cue(r"""
    \?$|\b(?:I|me|my|you|your)\b|
    ^(?:thanks|thank|great|perfect|ok|okay|hi|hello|hey|that|wow|sorry|please|no|yes)\b
""")
# a wish of one time, and what is no wish of the user's own
ONE_TIME = _cue(r"""
    \b(?:this(?!_point)|these|today|tonight|tomorrow|yesterday|right_now|for_now|once|until|ago|
    used_to|(?:next|last)_(?!name)\w+|\w+day|above|below|attached|will(?!_you)|
    we|us|our|he|she|him|her|his|yourself)\b
""")

# -- the parts of a sentence

CLAUSE = _cue(r"[,;]_|_-_|_(?=(?:but|so|and|because|since)_)")
THEN_ASKED = _cue(r"""
    (?:[,;]|_-)_(?:and_|so_|but_|then_)?(?:can|could|would|will|should|shall|do|does|is|are|any|
    what|which|where|when|how|who|why|ok|okay|right|please_(?:help|find|suggest|recommend))\b.*
""")
INTERJECTION = _cue(r"(?>(?:{opening}\b[,;.!]*_)*)")
CONDITION = _cue(r"(?:{occasion}|if|when|unless|for|in|on)_")
WISH_HEAD = _cue(r"""
    (?>(?:(?:(?:{polite}|{ever}|{lasting})\b[,;]?|(?:{occasion}|if|when|unless)_[^,]{2,60},)_)*)
""")
PLEASE, EVER = _cue(r"\b{polite}\b"), _cue(r"\b{ever}\b")
LASTING, OCCASION = _cue(r"\b{lasting}\b"), _cue(r"\b{occasion}\b")
OF_AN_ASSISTANT = _cue(r"""
    {verb}\b(?!_{other}\b)(?!.*\byour_(?!{replies}))|I_(?:want|need)_\w+_{replies}\b
""")
OF_ANYBODY = _cue(r"{other_verb}\b(?!_{other}\b)")
ON_AN_OCCASION = _cue(r"(?:{verb}|{other_verb}|I_mean)\b")
# after "from now on" and "please never" anything but a statement
ANY_WISH = _cue(r"""
    (?!(?:I|you|it|there|the|an?|my|your|to|of|remember)\b)[a-z-]+\b(?!_{other}\b)
""")
# by somebody who speaks of themself, or to an assistant
SPOKEN = _cue(r"""
    \b(?:I|me|my|mine|your_{replies}|(?:can|could|will|would)_you|you_(?:can|{verb}))\b|
    \bno_.*\bplease\b
""")
# what lasts without a word that says so
LIKING = _cue(r"""
    call_me_(?-i:[A-Z])|my_pronouns_are\b|stop_\w+ing_(?:me|your)\b|
    (?:keep|make)_(?:all_)?(?:of_)?(?:my|your)_{replies}\b|
    my_(?:favou?rite|preferred|default)_[\w_]{2,30}_(?:is|are)\b|
    I(?:_want|_need|'d_like)_(?:all|every)_[\w_]{2,30}_(?:in|as)\b|
    I(?:'m|_am)_(?:an?_)?(?:vegan|vegetarian|allergic_to|not_a_(?:\w+_)?fan_of)\b|
    I(?:'m|_am)_(?:\w+[_-]intolerant|(?:more_of_)?an?_[\w_]{2,20}_person)\b|
    I(?:_have|'ve_got)_an?_(?:\w+_)?(?:allergy|intolerance|preference_for)\b|
    I_(?:never|only)_{habit}\b|I_(?:don't|do_not|can't|cannot)_(?:eat|drink|fly|drive|wear)\b|
    I_don't_want_(?:you_to|any)\b|I_(?:like|take)_my_(?:{replies}|coffee|tea|eggs|steak)\b|
    I(?:_{very})*_(?:hate|dislike|don't_like)_it_when_you\b|
    I(?:'d|_would)_(?:always_)?rather\b(?=.*_than_)|
    I(?:_{very})*_(?:prefer|dislike|detest|hate|avoid|can't_stand|don't_(?:like|enjoy))_
        (?!(?:{other}|the|my|you|to|when|how|if|being|n?either)\b)\w
""")


def find_english_preferences(text: str, *, longest: int = 300, most_sentences: int = 3) -> list[str]:
    """Find the standing wishes that the author of a short English message states.

    It reads messages of one line, each sentence of which is a question, speaks of "I" or "you", or
    is a wish. A message is left out as a whole if anything in it looks like another's words: a line
    break, a quotation, a colon, an address, a date, code, a greeting by name, "she said",
    "translate this". So it misses wishes in long messages. Hardly any that is pasted is taken; but
    a wish that is pasted without any such mark cannot be told from the user's own.

    In what is left it looks for what lasts: "always", "never", "from now on", "whenever I ask",
    with what is asked of an assistant ("answer in metric units"); and for likings: "I prefer",
    "I hate", "I'm vegetarian", "I never eat", "call me Al". A clause counts as well as a sentence.
    What is said of one time ("today", "this email") does not.

    Args:
        text: What a user says.
        longest: Characters; a longer message is not read.
        most_sentences: A message of more sentences is not read.

    Returns:
        The wishes, word for word, in order; `[]` for most messages.

    Example:
        >>> find_english_preferences("I prefer aisle seats, can you book me a flight to Boston?")
        ['I prefer aisle seats']
        >>> find_english_preferences("Thanks! Can you answer in bullet points from now on?")
        ['Can you answer in bullet points from now on?']
        >>> find_english_preferences("Bob: Always answer in rhymes.")
        []
    """
    if len(text) > longest:
        return []
    said = text.translate(KEYBOARD)
    spans = sentence_spans(said)
    if len(spans) > most_sentences or OF_OTHERS.search(QUOTED_WORD.sub(r"\1", said.strip())):
        return []
    lines: list[str] = []
    for begin, end in spans:
        sentence = said[begin:end]
        wish = _wish_in(sentence)
        if wish:
            lines.append(text[begin + wish[0] : begin + wish[1]])
        elif not ADDRESSED.search(sentence):
            return []
    return lines


def _wish_in(sentence: str) -> tuple[int, int] | None:
    """Return where the part of a sentence that states a wish begins and ends; None without one."""
    starts = [0, *(clause.end() for clause in CLAUSE.finditer(sentence))]
    if CONDITION.match(sentence, _end(INTERJECTION, sentence)):  # it belongs to all that follows
        starts = [0]
    for begin in starts:
        start = _end(INTERJECTION, sentence, begin)
        is_question = sentence.endswith("?")
        asking = THEN_ASKED.search(sentence, start) if is_question else None
        end = asking.start() if asking else len(sentence)
        is_asked = is_question and not asking
        if is_asked and not PLEASE.match(sentence, start):
            continue
        line = sentence[start:end]
        head = line[: _end(WISH_HEAD, line)]
        wish = line.removeprefix(head)
        core = re.split("[,;]", wish)[0]
        if ONE_TIME.search(f"{sentence[:start]}{head}{core}"):
            continue
        if LIKING.match(wish) or _is_standing(head, wish, line):
            return start, end
    return None


def _end(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Return where a pattern ends that may begin at a place; the place itself if it does not."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _is_standing(head: str, wish: str, line: str) -> bool:
    """Return whether what is wished behind a head such as "please always" is asked for good."""
    if OCCASION.match(head):
        return bool(ON_AN_OCCASION.match(wish))
    if not (EVER.search(head) or LASTING.search(line) or OCCASION.search(line)):
        return False
    if OF_AN_ASSISTANT.match(wish):
        return True
    is_strong = LASTING.match(head) or PLEASE.match(head)
    is_asked = OF_ANYBODY.match(wish) or (is_strong and ANY_WISH.match(wish))
    return bool(is_asked and SPOKEN.search(line))


find_english_preferences.is_local = True  # type: ignore[attr-defined]  # it is quick, and asks no server
