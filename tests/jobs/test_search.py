"""The search text: what is understood, that everything else is refused by its word, and that it can be written out."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.errors import BadInput
from tenure.jobs.search import MAX_CHARACTERS, STATUSES, LetterSearch, Search, parse, parse_letters

#: Of these every branch of the grammar can be put together.
PIECES = st.sampled_from(
    [":", '"', "\\", '\\"', "\\\\", " ", "\t\n", ">1h", "<=5m", ">99999999d", "dead", "slow mail", "\x00", "\ud800",
     "é", "\u2003", "x" * 50]
)  # fmt: skip
WORDS = st.builds(
    "{}:{}".format,
    st.sampled_from(
        [
            "state",
            "type",
            "queue",
            "tenant",
            "contract",
            "age",
            "took",
            "paylod",
            "error",
            "reason",
            "group",
            "worker",
            "payload.a.b",
        ]
    ),
    st.lists(PIECES, min_size=1, max_size=4).map("".join) | st.text(max_size=5).map('"{}"'.format),
)
NAMES = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=25).filter(
    lambda text: text.strip() != "" and text.isprintable()
)
AGES = st.integers(0, 36_500 * 86_400).map(float)
VALUES = NAMES | st.sampled_from(['"', "\\", 'a "b" \\', "a\\", " a"])
KEYS = st.text("abc_7é", min_size=1, max_size=4)
PAYLOADS = st.dictionaries(st.lists(KEYS, min_size=1, max_size=3).map(tuple), VALUES, max_size=2)
FILTERS: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(
        ("type", "queue", "tenant_id", "contract", "reason", "group", "error", "worker"), st.none() | VALUES
    ),
    **dict.fromkeys(("older_s", "younger_s"), st.none() | AGES),
    "payload": PAYLOADS.map(lambda paths: tuple(paths.items())),
}
TOOK = dict.fromkeys(("longer_s", "shorter_s"), st.none() | AGES)
SEARCHES = st.builds(Search, state=st.none() | VALUES, **TOOK, **FILTERS)
LETTERS = st.builds(LetterSearch, status=st.none() | st.sampled_from(STATUSES), release=st.none() | VALUES, **FILTERS)


def refused(text: str) -> str:
    """With what words a text is refused."""
    with pytest.raises(BadInput) as refusal:
        parse(text)
    str(refusal.value).encode()
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", Search()),
        (" \t\n ", Search()),
        ("state:dead", Search(state="dead")),
        (
            "  type:mail.send\tqueue:mail tenant:acme contract:gate_b2\n",
            Search(type="mail.send", queue="mail", tenant_id="acme", contract="gate_b2"),
        ),
        ('queue:"slow mail" type:"a:b"', Search(queue="slow mail", type="a:b")),
        (r'type:"say \"hi\" \\ bye"', Search(type='say "hi" \\ bye')),
        (r"type:a\b:c", Search(type=r"a\b:c")),
        ("age:>1h", Search(older_s=3_600)),
        ("age:>=1h age:<=2d", Search(older_s=3_600, younger_s=172_800)),
        ('age:"< 5 m"', Search(younger_s=300)),
        ("worker:images-2 took:>=10s took:<1m", Search(worker="images-2", longer_s=10, shorter_s=60)),
        ('error:"timed out" reason:timeout group:9f2c', Search(error="timed out", reason="timeout", group="9f2c")),
        (
            'payload.user.id:7 payload.to:"a b"',
            Search(payload=((("user", "id"), "7"), (("to",), "a b"))),
        ),
    ],
)
def test_what_a_text_means(text: str, meant: Search) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "at", "word", "right"),
    [
        (
            "state:dead paylod:7",
            12,
            "paylod:7",
            "the names are state, type, queue, tenant, contract, reason, group, error, worker, age, took, payload.PATH",
        ),
        ("State:dead", 1, "State:dead", "there is no name 'State'; the names are state"),
        (":dead", 1, ":dead", "there is no name ''"),
        ("  mail", 3, "mail", "a word is name:value, like state:dead; the names are state"),
        ('"slow mail"', 1, '"slow', "a word is name:value"),
        ("state:dead  state:dead", 13, "state:dead", "state is given twice"),
        ("age:>1h age:>=2h", 9, "age:>=2h", "age:> is given twice"),
        ('state:dead queue:"slow mail', 12, 'queue:"slow', "the quote is not closed; .* like queue:"),
        (r'queue:"slow\"', 1, r'queue:"slow\"', "the quote is not closed"),
        ('queue:slow"mail"', 1, 'queue:slow"mail"', "a quote stands inside .* stands in double quotes"),
        ('queue:"slow"mail', 1, 'queue:"slow"mail', "after the closing quote comes a blank"),
        (r'queue:"a\n"', 1, r'queue:"a\n"', "a backslash stands before a quote or a backslash"),
        ("state: dead", 1, "state:", "the value is missing; it follows the colon, like state:"),
        ('queue:""', 1, 'queue:""', "the value is missing"),
        ('queue:" "', 1, 'queue:" "', "queue must be a non-empty string"),
        ("age:", 1, "age:", "like age:>1h"),
        ("payload.a:1 payload.a:2", 13, "payload.a:2", "payload.a is given twice"),
        ("payload.:1", 1, "payload.:1", "like payload.user.id:7"),
        ("payload:1", 1, "payload:1", "there is no name 'payload'; .*payload.PATH"),
        ("payload." + "a." * 20 + "a:1", 1, "payload." + "a." * 16 + "…", "at most 20 keys"),
        ("status:open", 1, "status:open", "there is no name 'status'; the names are state, type"),
        ("age:1h", 1, "age:1h", "a span like 30s, 5m, 2h or 7d after > or <: age:>1h"),
        ("took:>5s took:>6s", 10, "took:>6s", "took:> is given twice"),
        ("took:5s", 1, "took:5s", "a run time is a span like 30s, .*took:>5s"),
        ("age:>1y", 1, "age:>1y", "a span like 30s"),
        ("age:>-1s", 1, "age:>-1s", "a span like 30s"),
        ("age:> 1h", 1, "age:>", "a span like 30s"),
        ("age:<36501d", 1, "age:<36501d", "at most 36500d"),
        ("state:" + "x" * 41, 1, "state:" + "x" * 34 + "…", "state has 41 characters; at most 40 are allowed"),
        ("type:a\x00b", 1, "type:a b", "a NUL character, .* remove it"),
        ("tenant:a\ud800", 1, "tenant:a", "a lone surrogate"),
    ],
)
def test_what_is_wrong_is_said_of_the_word(text: str, at: int, word: str, right: str) -> None:
    said = refused(text)
    assert said.startswith(f"'{word}' at character {at}: ")
    assert re.search(right, said), said


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    filled = "state:dead".ljust(MAX_CHARACTERS)
    assert parse(filled) == Search(state="dead")
    assert refused(filled + " ") == "the search has 1,001 characters; at most 1,000 are allowed"
    for sign in ('"', 'a:"', "\\", ":", "\x00", "\ud800", " "):
        assert "characters; at most 1,000" in refused(sign * 100_000)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=3).map(" ".join) | st.lists(PIECES).map("".join) | st.text())
@example('type:"' + '\\"' * 490 + '"')
def test_any_text_is_understood_and_written_out_again_or_refused(text: str) -> None:
    try:
        search = parse(text)
    except BadInput as refusal:
        str(refusal).encode()  # what is said can be sent, whatever was asked
        return
    assert parse(str(search)) == search
    assert len(str(search)) <= len(text)


@settings(deadline=None)
@given(SEARCHES)
def test_every_search_can_be_written_out(search: Search) -> None:
    assert parse(str(search)) == search


def test_it_is_written_out_the_short_way() -> None:
    long = ' age:<=7200s  queue:"mail" type:"slow \\" mail" age:>=90s state:dead'
    assert str(parse(long)) == 'state:dead type:"slow \\" mail" queue:mail age:>90s age:<2h'
    assert str(Search()) == ""


@settings(deadline=None)
@given(LETTERS)
def test_every_search_for_dead_letters_can_be_written_out(search: LetterSearch) -> None:
    assert parse_letters(str(search)) == search


def test_dead_letters_have_a_status_and_a_release_and_no_state() -> None:
    meant = LetterSearch(status="open", release="2026.11", group="9f")
    assert parse_letters("group:9f status:open release:2026.11") == meant
    for text, why in (
        ("state:dead", "there is no name 'state'; the names are status, type"),
        ("status:lost", "a dead letter is open, requeued, discarded, not 'lost'"),
        ("dead", "a word is name:value, like status:open"),
        ("took:>5s", "there is no name 'took'"),
    ):
        with pytest.raises(BadInput, match=re.escape(f"'{text}' at character 1: {why}")):
            parse_letters(text)
