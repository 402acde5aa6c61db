"""Tokenizing: case and accent folding, stop words, stemming. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from threading import local

import Stemmer  # type: ignore[import-not-found]  # brings no stubs

from langchain_memkit._unicode import DENSE, IS_DENSE, few_marks

STEMS_VERSION = 3  # stored with a record's words, so that a later version can tell which to stem again
MAX_CHARACTERS = 100_000  # characters of a text; the rest is ignored
MAX_WORD = 64  # characters of a word; longer ones are keys or data, which their beginning tells apart

ENGLISH = """
    a about again all also am an and any are as at be because been before being but by can could did do does doing
    done down each few for from further had has have having he her here hers herself him himself his how i if in into
    is it its itself just me might more most must my myself no nor not now of off on once only or other our ours
    ourselves out over own same shall she should so some such than that the their theirs them themselves then there
    these they this those through to too under until up us very was we were what when where which while who whom whose
    why will with would you your yours yourself yourselves
    im ive ill id youre youve youll youd hes shes theyre theyve theyll theyd weve were arent isnt wasnt werent dont
    doesnt didnt cant couldnt wont wouldnt shouldnt hasnt havent hadnt thats whats wheres whos hows lets theres s
"""
STOP_WORDS = frozenset(ENGLISH.split())
# Function words of other languages, without accents, by the name of their Snowball stemmer.
OTHERS = {
    "german": """
    aber alles als also am an auch auf aus bin bist dann das dass dein deine deinem deinen deiner dem den denn der
    des dich die dies diese dir du ein eine einem einen einer er es fur habe haben hat hatte hatten hast ich ihm ihr
    ihre ihrem ihren ihrer im in ist ja jetzt kann mehr mein meine meinem meinen meiner mich mir mit muss nach nein
    nicht nichts noch nun ob schon sehr sein seine seinem seinen seiner seit sich sie sind so uber und uns unser
    unsere unserem unseren vom von vor wann war waren warum was wenn wer werde werden wie wir wird wo wurde zu zum
    zur habt welche""",
    "french": """
    ai as au aux avais avait avec avez avions avoir avons c ca ce cela ces cet cette comme d dans de des donc du
    elle elles en est et etait etais ete etes etre eu fait il ils j je jusqu l la le les leur leurs lui m ma mais me
    meme mes moi mon n ne nos notre nous on ont ou par pas peu peut plus pour pourquoi qu quand que quel quelle
    quelles quels qui quoi s sa sans se sera ses si son sont suis sur t ta te tes toi ton tres tu un une vos votre
    vous y""",
    "spanish": """
    a al como con contra cual cuales cuando cuanta cuantas cuanto cuantos de del desde donde dos e el ella ellas
    ellos en entre era eres es esa esta estaba estan estar este esto estos fue fueron ha habia han has hasta hay he
    la las le les lo los mas me mi mia mio mis mucho muy no nos nosotros nuestra nuestro o para pero por porque que
    quien quienes se ser son soy su sus tambien te tengo ti tiene tienen todo todos tu tus un una unas uno unos y ya
    yo""",
    "italian": """
    a ad agli ai al alla alle allo anche c che chi come con da dai dalla d dei del della delle dello di dove e ed
    era erano essere fa gli ha hai hanno ho i il in io l la le loro lui ma mi mia mie miei mio molto nel nella non
    nostra nostro o per perche piu quale quali quando quanti quanto quella questa questo sei sia sono stato su sua
    sue sul sulla suo tu tua tue tuo tuoi un una uno vi voi""",
    "portuguese": """
    a ao aos as com como da das de do dos e ela elas ele eles em era essa esse esta estao estava este eu foi foram
    ha isso ja lhe mais me meu meus minha minhas muito na nao nas no nos nossa nosso o onde os para pela pelo por
    porque qual quais quando quanto quantos que se seu seus so sou tambem te tem tenho tinha um uma umas uns voce
    voces""",
    "dutch": """
    aan al bent bij daar dan dat de der deze die een en er geen had heb hebben hebt heeft het hier hij hoe hun ik in
    is ja je jij jouw jullie kan kon maar me met mij mijn na naar niet nog of ons onze ook op over te u van veel
    voor waar waarom wanneer waren was wat we welk wie wij zich zij zijn zo zonder""",
}
FUNCTION_WORDS = {"english": STOP_WORDS} | {name: frozenset(words.split()) for name, words in OTHERS.items()}
# Function words of other languages that English texts hold as words or names ("Los Angeles", "they met", "plus").
SHARED = """
    ad ai al ante as ate ben bin bit c com come con contra d da dal dan das de del dem den der des di die dies do doe
    door dos dove du dus e ed el em en entre er era es est et fur ha had hat hay he hem ho hoe hun i il in is j ja
    je kan l la las le les li lo los m ma man mas me men mes met mi mia mine most n na ne nee no non nos nun o of on
    ons op os ou over par para per plus por pour s sa san sans se sea sei ser si sin so solo son sole sta sue sur t
    ta te ten ti ton tot tu u um un uns uno van via von want war was we y ya yo zo
"""
FOREIGN = frozenset().union(*FUNCTION_WORDS.values()).difference(STOP_WORDS, SHARED.split())

# Irregular English forms and British spellings, each group ending in the stem that stands for all of it. Not those of
# verbs that tell little ("said", "took"): they cost recall.
GROUPS = """
    went=gone=goe=go bought=buy children=child taught=teach brought=bring caught=catch found=find felt=feel
    knew=known=know left=leav lost=lose met=meet paid=pay ran=run saw=seen=see sold=sell sent=send slept=sleep
    spent=spend stood=stand swam=swum=swim woke=woken=wake wore=worn=wear won=win ate=eaten=eat began=begun=begin
    broke=broken=break built=build chose=chosen=choos drank=drunk=drink drove=driven=drive fell=fallen=fall
    flew=flown=fli forgot=forgotten=forget grew=grown=grow heard=hear held=hold kept=keep lent=lend rode=ridden=ride
    rose=rise sang=sung=sing sat=sit stole=stolen=steal threw=thrown=throw understood=understand men=man women=woman
    feet=foot teeth=tooth mice=mous checkin=check signup=sign login=log followup=follow colour=color favourit=favorit
    favour=favor neighbour=neighbor neighbourhood=neighborhood behaviour=behavior flavour=flavor honour=honor
    humour=humor labour=labor harbour=harbor rumour=rumor centr=center theatr=theater metr=meter kilometr=kilomet
    litr=liter fibr=fiber grey=gray mum=mom jewelleri=jewelri catalogu=catalog programm=program defenc=defens
    licenc=licens practis=practic pyjama=pajama doughnut=donut yoghurt=yogurt moustach=mustach cosi=cozi mould=mold
    aeroplan=airplan counsellor=counselor judgement=judgment organis=organiz realis=realiz recognis=recogn
    apologis=apolog analys=analyz memoris=memor criticis=critic customis=customiz prioritis=priorit socialis=social
    summaris=summar specialis=special
"""
IRREGULAR = {form: group.split("=")[-1] for group in GROUPS.split() for form in group.split("=")}
FORMS = frozenset(IRREGULAR).difference(IRREGULAR.values())
# "e-mail" is read as "email mail", "co-worker" as "coworker worker".
PREFIX = re.compile(r"-(?:(?<=\b[a-z]-)|(?<=\b(?:co|re|wi)-)|(?<=\b(?:non|pre)-))(?=([a-z]{2,}))")

# Marks within words that `\w` does not match: the scripts of India, Tibetan.
MARKS = "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f87"
LETTER = rf"(?:[^\W_{DENSE}]|[{MARKS}])"
TOKEN = re.compile(rf"[{DENSE}]+|\d+(?:[.,:]\d+)+|{LETTER}+(?:['\u2019]{LETTER}+)*(?:\+\+|#)?")
ASCII_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|[a-z0-9]+(?:'[a-z0-9]+)*(?:\+\+|#)?")  # TOKEN for ASCII, but faster
# Accents, and the vowel signs of Hebrew and Arabic, which few people write.
ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670]+"
)

THOUSANDS = re.compile(r",(?=\d{3}\b)")
# "l'eau", "d'accord", "O'Neill", "dell'arte"; not "I'm"
ELIDED = frozenset("c d j l m n o q s t qu jusqu un all dell nell dall sull quest quell".split())  # noqa: SIM905  # a text
_own = local()  # a stemmer is not thread-safe: each thread has its own


def tokenize(text: str, language: str = "", known: Container[str] | None = None) -> list[str]:
    """Tokenize a text for lexical ranking: return its stems in order, with repetitions.

    Words are lower-cased, accents are folded ("café" becomes "cafe"), English stop words and possessives are removed,
    and Snowball's stemmer is applied: English's, or that of the language whose function words the text holds most of
    (German, French, Spanish, Italian, Portuguese, Dutch), whose stop words are removed then, too. Scripts without
    spaces between words (Chinese, Japanese, Thai, ...) become character bigrams. Only the first 100,000 characters
    count.

    Args:
        text: Any text.
        language: What it is read as, one of `FUNCTION_WORDS`; told from the text by default.
        known: Stems of the records of a user of several languages: a word whose stem is not among them has its stem of
            another language, if that is.

    Returns:
        The stems; an empty list for a text of stop words and punctuation.

    Example:
        >>> tokenize("Where did Zoë's sisters go skiing for $1,500?")
        ['zoe', 'sister', 'go', 'ski', '1500']
        >>> tokenize("Wo haben meine Schwestern Häuser gekauft?")
        ['schwest', 'haus', 'gekauft']
        >>> tokenize("東京タワー")
        ['東京', '京タ', 'タワ', 'ワー']
    """
    words = _words(text)
    language = language or _language(words)
    kept = _content(words, language)
    stems = _stemmed(kept, language)
    if known is not None and language != "english":  # English as ever: by chance other languages have its stems, too
        for i, word in enumerate(kept):
            others = (_stemmed([word], name)[0] for name in FUNCTION_WORDS if stems[i] not in known)
            stems[i] = next((stem for stem in others if stem in known), stems[i])
    return stems


def tokenize_record(text: str) -> list[str]:
    """Tokenize a text that is stored: as `tokenize`, and other languages' words with their English stems as well.

    So a question in English finds a name, or a word, in a record of another language.

    Example:
        >>> tokenize_record("Wir haben Andreas getroffen.")
        ['andreas', 'getroff', 'andrea', 'getroffen']
    """
    words = _words(text)
    language = _language(words)
    kept = _content(words, language)
    stems = _stemmed(kept, language)
    if language != "english":
        stems += [stem for stem in dict.fromkeys(_stemmed(kept, "english")) if stem not in stems]
    return stems


def language_of(text: str) -> str:
    """Return the language as which `tokenize` reads a text: "english" if its function words do not tell.

    Example:
        >>> language_of("Que fait ma sœur ?"), language_of("Paris, Texas")
        ('french', 'english')
    """
    return _language(_words(text))


def _words(text: str) -> list[str]:
    text = text[:MAX_CHARACTERS]
    text = text.lower() if text.isascii() else _folded(text)
    if "-" in text:
        text = PREFIX.sub(r"\1 ", text)
    if text.isascii():
        return [*map(_bare, ASCII_TOKEN.findall(text))]
    return [word for token in TOKEN.findall(text) for word in _pieces(token)]


def _content(words: list[str], language: str) -> list[str]:
    skipped = STOP_WORDS if language == "english" else STOP_WORDS | FUNCTION_WORDS[language]
    return [word[:MAX_WORD] for word in words if word not in skipped]


def _language(words: list[str]) -> str:
    """Return the language with the most function words among these, two or more; English if it has as many."""
    if FOREIGN.isdisjoint(words):
        return "english"
    found = {name: sum(map(known.__contains__, words)) for name, known in FUNCTION_WORDS.items()}
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 1 else "english"  # one alone may be an English word: "soy milk", "todo list"


def _stemmed(words: list[str], language: str) -> list[str]:
    try:
        stemmer = getattr(_own, language)
    except AttributeError:
        stemmer = Stemmer.Stemmer(language)
        setattr(_own, language, stemmer)
    found: list[str] = stemmer.stemWords(words)
    if language != "english" or FORMS.isdisjoint(found):
        return found
    return [IRREGULAR.get(stem, stem) for stem in found]


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", few_marks(text)).casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", plain[:MAX_CHARACTERS]))  # one character may expand to 18


def _bare(token: str) -> str:
    """Strip apostrophes, possessive and elided article ("l'eau") from a word, thousands separators from a number."""
    if token.isalpha():
        return token
    word = token.replace("\u2019", "'").removesuffix("'s")
    if word[0].isdigit():
        return THOUSANDS.sub("", word)
    first, _, rest = word.partition("'")
    return (rest if rest and first in ELIDED else word).replace("'", "")


def _pieces(token: str) -> list[str]:
    if IS_DENSE.match(token) is None:
        return [_bare(token)]
    return [token[i : i + 2] for i in range(len(token) - 1)] or [token]
