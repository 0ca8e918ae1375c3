"""Templates that carry words of their sentence; all others are removed.

A dump holds calls of templates, not what they expand to. Most are notes, boxes and citations, which are not prose;
these few carry text: "a {{convert|5|km|mi}} walk". Names are those of the English Wikipedia, most of which other
languages have adopted. Unknown templates are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Arguments = list[str]
Render = Callable[[Arguments, dict[str, str]], str]

_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqkm": "km2", "cuft": "cu ft", "cumi": "cu mi", "C": "°C", "F": "°F",
    "C-change": "°C", "F-change": "°F", "mph": "mph", "kph": "km/h", "km/h": "km/h", "impgal": "imp gal",
    "USgal": "US gal", "lb-f": "lbf", "foot": "foot", "acre": "acres", "acres": "acres", "mi": "mi", "nmi": "nmi",
}  # fmt: skip
_RANGES = {
    "to": " to ", "and": " and ", "or": " or ", "-": "–", "–": "–", "to(-)": "–", "x": " by ", "by": " by ",
    "×": " by ", "*": " by ", "+/-": " ± ", "±": " ± ", "&": " and ", "to about": " to about ", ",": ", ",
}  # fmt: skip
_NUMBER = re.compile(r"[-−+]?[\d.,/+ \u00a0]*\d[\d.,/+]*$")


def _first(positional: Arguments, _named: dict[str, str]) -> str:
    return positional[0] if positional else ""


def _second(positional: Arguments, named: dict[str, str]) -> str:
    return positional[1] if len(positional) > 1 else _first(positional, named)


def _last(positional: Arguments, _named: dict[str, str]) -> str:
    return positional[-1] if positional else ""


def _joined(positional: Arguments, _named: dict[str, str]) -> str:
    return "".join(positional)


def _block(positional: Arguments, named: dict[str, str]) -> str:
    text = named.get("text") or named.get("quote") or _first(positional, named)
    return f"\n\n{text}\n\n"


def _constant(text: str) -> Render:
    return lambda _positional, _named: text


def _prefixed(prefix: str) -> Render:
    return lambda positional, _named: prefix + positional[0] if positional else ""


def _convert(positional: Arguments, named: dict[str, str]) -> str:
    """value, partition; value, range word, value, partition; feet and inches as value, ft, value, in."""
    if not positional or not _NUMBER.match(positional[0]):
        return ""
    text, rest = positional[0], positional[1:]
    while len(rest) >= 2 and rest[0] in _RANGES and _NUMBER.match(rest[1]):
        text += _RANGES[rest[0]] + rest[1]
        rest = rest[2:]
    if not rest:
        return text
    text = f"{text} {_UNITS.get(rest[0], rest[0])}"
    if len(rest) >= 3 and _NUMBER.match(rest[1]) and rest[0] in {"ft", "lb", "st", "mi", "yd"}:
        text = f"{text} {rest[1]} {_UNITS.get(rest[2], rest[2])}"
    return text


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def _as_of(positional: Arguments, named: dict[str, str]) -> str:
    if "alt" in named:
        return named["alt"]
    date = [part for part in positional[:3] if part]
    if len(date) > 1 and date[1].isdigit() and 1 <= int(date[1]) <= 12:
        date[1] = _MONTHS[int(date[1]) - 1]
    since = named.get("since", "n").startswith("y")
    word = "since" if since else "as of"
    return f"{word if named.get('lc', 'n').startswith('y') else word.capitalize()} {' '.join(reversed(date))}"


def _fraction(positional: Arguments, _named: dict[str, str]) -> str:
    match positional:
        case [whole, over, under, *_]:
            return f"{whole} {over}/{under}"
        case [over, under]:
            return f"{over}/{under}"
        case [under]:
            return f"1/{under}"
    return ""


def _value(positional: Arguments, named: dict[str, str]) -> str:
    return " ".join(part for part in [_first(positional, named), named.get("u") or named.get("ul") or ""] if part)


def _quantity(positional: Arguments, _named: dict[str, str]) -> str:
    """A number, then its partition, which may come as prefix and partition."""
    if not positional or not _NUMBER.match(positional[0]):
        return ""
    return " ".join(part for part in (positional[0], "".join(positional[1:3])) if part)


def _circa(positional: Arguments, named: dict[str, str]) -> str:
    years = [f"c. {year}" for year in positional[:2] if year]
    return " – ".join(years) if years else "c."


def _reign(positional: Arguments, _named: dict[str, str]) -> str:
    return "r. " + "–".join(positional[:2])


def _table(*groups: tuple[str, Render]) -> dict[str, Render]:
    return {name: render for names, render in groups for name in names.split("|")}


_SHIPS = ("uss", "hms", "ss", "mv", "rms", "hmas", "hmcs", "sms", "ins", "usns")
RENDERERS: dict[str, Render] = _table(
    ("nowrap|nobr|nowiki|small|smaller|big|larger|large|abbr|abbrv|tooltip|hover title|vanchor|visible anchor", _first),
    (
        "linktext|keypress|key press|sc|smallcaps|smallcaps all|angbr|angle bracket|sup|sub|em|strong|b|i|mono|code",
        _first,
    ),
    ("nobold|noitalic|normal|bigger|sic|illm|ill|interlanguage link|interlanguage link multi", _first),
    ("mvar|var|math|texttt|kbd|samp|nastaliq|nihongo|nihongo2|nihongo3|nihongo foot|korean|zh-tw", _first),
    ("flag|flagcountry|flagu|flag country|nts|number|track gauge|railgauge|rail gauge|crossref|pinyin|okina", _first),
    (
        "hebrew|he|unicode|polytonic|lang-en|not a typo|proper name|as written|typo|bibleverse|bibleref|bibleref2",
        _first,
    ),
    ("tl|resize|font|no italic|big larger|smallsup|'\"|anchored text|ipa|vr|nq|center|stylized", _first),
    ("lang|langx|script|rtl-lang|color|colour|font color|fontcolor|background color|change|sort|ship prefix", _second),
    ("transl|transliteration|translit", _last),
    # Other languages: links to articles that are missing (Japanese, Ukrainian and Russian), text that lacks a source
    # (Italian, Japanese, Greek), small type, numbers.
    ("仮リンク|ilq|要出典範囲|chiarire|citazione necessaria|senza fonte|ασαφές|maiuscoletto|tutto attaccato", _first),
    ("numero|ছোট|en|lien|refnec|référence nécessaire|refsou|référence souhaitée|zitat", _first),
    ("не перекладено|нп|iw|бну|не переведено|не переведено 2|не переведено 3|не переведено 5|нп2|нп3|нп5", _second),
    ("unité|unite|unidad|unid|m", _quantity),
    ("m s.l.m.", _constant("m s.l.m.")),
    ("градус цельсія|градус цельсия", _constant("°C")),
    ("chem|chem2|co2|h2o", _joined),
    ("quote|blockquote|quotation|cquote|bquote|block quote|quoted text", _block),
    ("convert|cvt|conv|রূপান্তর", _convert),
    ("as of|asof|as of?", _as_of),
    ("frac|fraction|sfrac", _fraction),
    ("val|gaps", _value),
    ("circa|c.|ca.|ca", _circa),
    ("reign|r.", _reign),
    ("snd|snds|spnd|spaced ndash|spaced en dash|mdashb|dash", _constant(" – ")),
    ("ndash|en dash|endash|nbnd", _constant("–")),
    ("mdash|em dash|emdash", _constant("—")),
    ("nbsp|spaces|space|thinsp|thin space|hair space|hsp|sp|br", _constant(" ")),
    ("'|`", _constant("'")),
    ("'s", _constant("'s")),
    ("' \"", _constant("'\"")),
    ('-"', _constant('"')),
    ("eqm", _constant(" ⇌ ")),
    ("e|esp", _prefixed("×10^")),
    ("=", _constant("=")),
    ("·|•|middot|dot|bullet", _constant(" · ")),
    ("ad", _prefixed("AD ")),
    ("us$|usd", _prefixed("US$")),
    ("gbp|£|pound sterling", _prefixed("£")),
    ("euro|eur|€", _prefixed("€")),
    ("jpy|¥|yen", _prefixed("¥")),
    ("inr|indian rupee|indian rupees", _prefixed("₹")),
    ("a$|aud", _prefixed("A$")),
    ("ussr", _constant("USSR")),
    ("formatnum", _first),
)
RENDERERS |= {ship: _prefixed(f"{ship.upper()} ") for ship in _SHIPS}


def render(call: str) -> str:
    """The text of a template call, given without its braces; its arguments contain no templates."""
    parts = _split(call)
    if parts[0].lstrip().lower().startswith("formatnum:"):
        parts[:1] = parts[0].split(":", 1)
    name = parts[0].strip().replace("_", " ").lower()
    renderer = RENDERERS.get(name)
    if renderer is None:
        # {{lang-de|Wort}}: the word, without the language's name, which only the template knows.
        if not name.startswith("lang-") or len(parts) < 2:
            return ""
        renderer = _first
    positional: Arguments = []
    named: dict[str, str] = {}
    for part in parts[1:]:
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[\w -]+", key):
            positional.append(part.strip())
        elif key.isdigit():
            place = int(key) - 1
            if place < 20:
                positional += [""] * (place + 1 - len(positional))
                positional[place] = value.strip()
        else:
            named[key.lower()] = value.strip()
    return renderer(positional, named)


def _split(call: str) -> list[str]:
    """Cut at the bars that are not inside a link."""
    if "[[" not in call:
        return call.split("|")
    parts, depth = [""], 0
    for piece in re.split(r"(\[\[|\]\]|\|)", call):
        depth += (piece == "[[") - (piece == "]]")
        if piece == "|" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
