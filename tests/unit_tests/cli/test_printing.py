"""What is printed: no credentials, no control characters, no markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.cli.output import Output, secrets_in

PASSWORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=4, max_size=20).filter(str.strip)
SPELLINGS = (lambda text: quote(text, safe=""), quote_plus, lambda text: text)


@given(PASSWORDS, st.sampled_from(SPELLINGS))
def test_passwords_never_pass(password: str, spelling: Callable[[str], str]) -> None:
    """A password is hidden as it was typed and as the driver reads it, also if the user forgot to quote it."""
    output = Output([f"mongodb://nemo-the-fish:{spelling(password)}@db.example:27017/chat", "--yes"])
    for shown in (password, spelling(password)):
        assert output.safe(f"\n{shown}\n") == "\\n***\\n"
        for text in (shown, repr(shown), json.dumps(shown, ensure_ascii=False)):
            assert not set(re.findall(r"\w{3,}", shown)) & set(re.findall(r"\w{3,}", output.scrubbed(text)))
    assert "nemo-the-fish:" not in output.safe(f"nemo-the-fish:{spelling(password)}")


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://a:hunter2@h/?authMechanismProperties=AWS_SESSION_TOKEN:hunter3",
        "mongodb+srv://a:hunter2@h/x?tlsCertificateKeyFilePassword=hunter3&w=1",
        "postgresql://a:hunter2@h/x?password=hunter3",
        "mongodb://a:hunter2/hunter3@h/x",
        "mongodb://a:hunter2@hunter3@h/x",
    ],
)
def test_every_part_that_is_secret(uri: str) -> None:
    """Passwords in options, and passwords that nobody quoted, are hidden as well."""
    output = Output([f"--from={uri}"])
    for text in (uri, f"error: {uri!r}", "wrong: hunter3", "wrong: hunter2/hunter3", "wrong: hunter2@hunter3"):
        assert "hunter3" not in output.safe(text)


@pytest.mark.parametrize(
    "word",
    [
        "mongodb:/u:hunter3@host",
        "u:hunter3@host:27017/db",
        "mongodb:u:hunter3@host",
        "u:hunter:hunter3@host",
        "host=x password=hunter3",
        "host=x Password = 'hunter3' dbname=y",
        "--from=u:hunter3@host",
    ],
)
def test_mistyped_uris(word: str) -> None:
    """What was meant to be a connection string is kept as secret, also where only a part of it is shown."""
    output = Output(["migrate", word])
    for text in (word, repr(word), "wrong: hunter3", word.rpartition("@")[0]):
        assert "hunter3" not in output.safe(text)


def test_ids_are_no_passwords() -> None:
    """Ids that hold an @ or a colon, and paths, are printed."""
    assert secrets_in(["--user", "nemo@example.com", "user:nemo", "old/chat@home.db", "--user-id-key=email"]) == []


def test_short_passwords_leave_other_words() -> None:
    """A password of a letter or two is hidden where it stands alone, and the rest stays readable."""
    output = Output(["mongodb://a:e@h/"])
    assert output.safe("password e refused") == "password *** refused"
    assert secrets_in(["chat.db", "mongodb://h/chat"]) == []


def test_uris_that_nobody_gave() -> None:
    """A connection string in somebody else's text loses its credentials too."""
    assert Output().safe("see mongodb://nemo:secret@h/x") == "see mongodb://h/x"


HOSTILE = "\x1b[2J\x1b]0;title\x07 \u202egnp.exe \u2028 \x00 \ud800 \x9b31m"


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that a terminal acts on is printed, in lines, notes, errors and tables."""
    output = Output()
    output.line(HOSTILE)
    output.note(HOSTILE)
    output.fault(HOSTILE)
    output.table(["a", HOSTILE], [(HOSTILE, "b")])
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "\\x1b[2J" in text


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like rich's markup or an emoji's name is printed as it is."""
    output = Output()
    output.line("[red]a[/red] [link=http://x]b[/link] [/] :smile: 127.0.0.1")
    output.table(["[bold]h"], [["[/nonsense]"]])
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "[red]a[/red] [link=http://x]b[/link] [/] :smile: 127.0.0.1",
        "[bold]h",
        "[/nonsense]",
    ]


def test_plain_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe lines are not wrapped, tables have no frames, and nothing is coloured."""
    output = Output()
    output.line("words" * 100)
    output.table(["status", "what"], [("fail", "x" * 300), ("ok", "")])
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [500, 12, 308, 2]
    assert lines[1:] == ["status  what", "fail    " + "x" * 300, "ok"]


def test_quiet_leaves_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet only errors are printed."""
    output = Output()
    output.quiet = True
    output.line("a")
    output.note("b")
    output.table(["c"], [["d"]])
    output.fault("e")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "memkit: e\n")


def test_traces_show_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    """--debug shows where an error came from, and neither credentials nor the values of variables."""
    output = Output(["mongodb://nemo:secret@h/"])
    output.debug = True
    try:
        local = "a value of a variable"
        raise ValueError(f"no good: mongodb://nemo:secret@h/ {len(local)}")
    except ValueError as error:
        output.trace(error)
    printed = capsys.readouterr().err
    assert "ValueError" in printed
    assert "test_printing.py" in printed
    assert "secret" not in printed.replace("nemo:secret@h/ {", "")
