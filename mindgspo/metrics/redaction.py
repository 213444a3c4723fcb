"""Text without secrets: known forms of keys, values after names of secrets, words that look random, and every value of
a variable that may hold a secret, wherever it occurs."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

HIDDEN = "***"
_WORDS = (
    r"(?:token|secret|password|passwd|passwort|passphrase|pass|pwd|credentials?|authorization|auth|key|keyid|cookie|"
    r"dsn|webhook|(?-i:API))"
)
_SECRET_VARIABLE = re.compile(
    r"TOKEN|SECRET|PASS|PWD|KEY|CRED|AUTH|API|PRIVATE|COOKIE|SIGNATURE|CERT|DSN|WEBHOOK|SALT", re.I
)
_FOLDERS = ("PWD", "OLDPWD")
_OPTION = re.compile(rf"--?(?:[\w.-]{{0,64}}[-_.])?{_WORDS}", re.I)
_PLAIN = re.compile(
    rf"(?i)true|false|yes|no|on|off|none|null|auto|default|[-+]?\d{{1,5}}(?:\.\d*)?|[*<\[{{(].*|{_WORDS}"
)
"""Values that are no secrets."""
_FEWEST = 4
"""Characters of a value that is looked for elsewhere: shorter ones are part of every text."""

# Group 1 stays. Repetitions are bounded, or end where the next one begins, because logs are long.
_FORMS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # The beginning or the end of a key may have been cut off with the rest of a log.
        (r"()-----BEGIN[A-Z0-9 ]*PRIVATE KEY.*?(?:-----END[A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)", re.DOTALL),
        (r"\A()(?:(?!-----BEGIN).)*?-----END[A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----", re.DOTALL),
        (r"(://)[^/?#\s'\"]+(?=@)", 0),  # user:password@, even with an @ within
        (r"(\s(?:-u|--user|--proxy-user)[\s=]+[\"']?[^\s:\"']{1,64}:)[^\s\"']+", 0),
        (r"(\blogin\s+\S{1,64}\s+password\s+)\S+", re.I),
        (r"(\b(?:bearer|basic|digest|negotiate)\s+)(?=\S{0,64}[\d+/=_.-])[\w+/=.~-]{8,}", re.I),
        (r"(\b(?:set-cookie|cookie|authorization|x-api-key|x-auth-token)[\"']?\s*[:=]\s*[\"']?)[^\"'\r\n]+", re.I),
        (
            r"()\b(?:sk|pk|rk|whsec|gh[oprsu]|github_pat|glpat|glrt|npm|pypi|dckr_pat|gsk|nvapi|tvly|r8|xai|lsv2|xapp|"
            r"xox[abeoprs]|shpat|dop_v1)[-_](?=[\w.-]{0,60}[\dA-Z])[\w.-]{12,}",
            0,
        ),
        (r"()\b(?:hf_|dapi|AIza|ya29\.|SG\.|eyJ|LTAI|AKID|AKIA|ASIA|ABIA|AROA|AIDA)[\w.+/-]{12,}=*", 0),
    )
)
_NAMED = re.compile(  # api_key=..., "token": "...", --password ...; not tokens_per_second=..., token_id: 3
    rf"""(?ix)
    ( (?<![a-z0-9]) (?: [\w.-]{{0,64}}[_.-] | [a-z]{{0,32}} )?? {_WORDS} (?:[_-]?(?:value|1|2))? (?:\\?["'])?
      (?: \s*[:=]{{1,2}}>?\s* | (?<=["'])\s*,\s* )
    | (?<!\S) --? [\w.-]{{0,64}}? {_WORDS} \s+ )
    ( \\["'][^\\\r\n]*\\["'] | "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' | [^\s,;}}\])&"']+ )
    """
)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_PARTS = re.compile(r"[A-Za-z0-9]{12,}")
_DIGEST = re.compile(r"(?i)(?<![0-9a-z])(?:[0-9a-f]{32,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-z])")
_FOLLOWERS = (
    "abcdgilmnprstuwxy baelouy caehiklotu dadeios eacdefgilmnpqrstvx faefilortu gehiors haeiot iabcdefglmnoprstvz ke "
    "ladeilostuy mabeiopsu nacdefgilnopstu oabcdfgklmnoprstuvw paeiloprstuy qu radegimnorstuy sacehiopstu taehioprstuy "
    "uaelmnprst vaei waehir xpt yop ze"
)
_COMMON_PAIRS = frozenset(group[0] + second for group in _FOLLOWERS.split() for second in group[1:])
"""210 of 676 pairs of letters, which are 93 % of those within words of documentation and code."""
_WRITTEN_SHARE, _DRAWN_SHARE = 0.6, 0.45
"""Share of common letter pairs from which on a word counts as written, not drawn; and that of several joined words,
such as names with versions."""


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with `***` in place of secrets. environment: variables whose secret values are looked for."""
    for value in secret_values(environment):
        text = re.sub(_as_word(value), HIDDEN, text)
    for form in _FORMS:
        text = form.sub(rf"\1{HIDDEN}", text)
    text = _NAMED.sub(_without_value, text)
    text = _DIGEST.sub(HIDDEN, text)
    return _RUN.sub(_without_random, text)


def redacted_words(words: Iterable[str], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The words of a command line, redacted; one may be an option and the next one its secret."""
    is_value = False
    for word in words:
        yield HIDDEN if is_value and not _PLAIN.fullmatch(word) else redacted(word, environment)
        is_value = _OPTION.fullmatch(word) is not None


def may_be_secret(name: str) -> bool:
    """Whether a variable of this name may hold one."""
    return _SECRET_VARIABLE.search(name) is not None and name not in _FOLDERS


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Values of variables that may hold a secret, and logins in addresses of all: whole, in parts, and as
    other formats write it; the longest first. Paths that exist are none."""
    found: set[str] = set()
    for name, value in environment.items():
        if may_be_secret(name) and not (value.startswith("/") and os.path.exists(value)):
            parts = () if "://" in value else re.split(r"[\s,;\"'=&@{}:]+", value)
            found.update((value, *value.splitlines(), *(part for part in parts if len(part) > _FEWEST)))
        for login in re.findall(r"://([^/\s]+)@", value):
            found.update((login, login.partition(":")[2]))
    kept = {value for value in map(str.strip, found) if len(value) >= _FEWEST and not _PLAIN.fullmatch(value)}
    others = {
        other
        for value in kept
        for other in (
            quote(value, safe=""),
            json.dumps(value)[1:-1],
            base64.b64encode(value.encode("utf-8", "replace")).decode(),
        )
    }
    return sorted(kept | others, key=len, reverse=True)


def _without_random(run: re.Match[str]) -> str:
    """Paths keep their other names; base64 has slashes as well."""
    if looks_random(re.sub(r"[+/_=-]", "", run[0]), _DRAWN_SHARE):
        return HIDDEN
    return "/".join(HIDDEN if any(map(looks_random, _PARTS.findall(name))) else name for name in run[0].split("/"))


def looks_random(word: str, share: float = _WRITTEN_SHARE) -> bool:
    """Whether letters and digits look drawn at random: in what people write, more than this share of the pairs of
    letters are common ones, and digits stand together. Capitals within a word begin another one."""
    pairs = [(a, b) for a, b in itertools.pairwise(word) if not (a.islower() and b.isupper())]
    written = sum((a + b).lower() in _COMMON_PAIRS or (a + b).isdigit() for a, b in pairs)
    return written < share * len(pairs)


def _as_word(value: str) -> str:
    """An expression for it; short ones not as part of a longer word."""
    escaped = re.escape(value)
    return escaped if len(value) >= 8 else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _without_value(found: re.Match[str]) -> str:
    value = found[2]
    quoted = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    inner = value[1:-1] if quoted else value
    return found[0] if _PLAIN.fullmatch(inner) else f"{found[1]}{quoted}{HIDDEN}{quoted}"
