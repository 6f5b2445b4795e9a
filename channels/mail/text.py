"""The text of mails: bytes in charsets that lie, header values, HTML, quoted history and signatures.

1. Bytes that are UTF-8 are UTF-8, whatever is declared; then the declared charset, then the likeliest.
2. What comes out has no control characters but line feeds and tabs, and no lone surrogates.
3. Everything takes time in proportion to the length of what it reads, which is bounded by the caller.
"""

import base64
import binascii
import codecs
import quopri
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

MOST_HTML = 2_000_000
MOST_TAGS = 100_000
"""Characters and tags of HTML that are read as text; what is beyond is cut."""

_SAMPLE = 4_000
"""Bytes from which an undeclared charset is guessed, from the first one on that is not ASCII."""

_NO_TEXT = frozenset(
    {
        *("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"),
        *("base64", "bz2", "hex", "quopri", "rot13", "rot-13", "uu", "zlib"),
    }
)
"""Codecs of Python that are no charset."""

_MEANT = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "ascii": "utf-8",
    "iso8859-1": "cp1252",
    "iso8859-11": "cp874",
}
"""What senders write where they mean the larger set."""

_OF_WINDOWS = {"iso8859-2": "cp1250", "iso8859-7": "cp1253", "iso8859-8": "cp1255", "iso8859-9": "cp1254"}
"""Likewise, where a byte is a control character in the one and a sign in the other."""

_C1 = re.compile(rb"[\x80-\x9f]")

_ONE_BYTE = ("utf-8", "iso8859", "cp12", "koi8", "mac", "cp8", "cp4", "cp7")
"""Charsets whose bytes may as well be UTF-8."""

_ASCII = bytes(range(128))
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_ENCODED = re.compile(r"=\?([^?\s=]{1,40})\?([bBqQ])\?([^?]*)\?=")
_FOLD = re.compile(r"[\r\n]+[ \t]*")

_TAG = re.compile(
    r"<(?:!--.*?(?:-->|\Z)|[!?][^>]*+>?|(script|style|svg)\b.*?(?:</\1[^>]*+>?|\Z)|(/?)([a-z][^\s/>]*+)"
    r"""((?:[^>=]|=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>]*+))*+)>?)?+""",
    re.IGNORECASE | re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([^\s=/]++)(?:\s*+=\s*+("[^"]*+"?|'[^']*+'?|[^\s]*+))?+""")
_KEPT = frozenset({"class", "id", "type", "style", "hidden", "data-signature-widget"})
"""The attributes that the selectors below look at."""

_NAMES = """
    html head title base link meta body noscript iframe noembed noframes template object
    address article aside blockquote center details dialog dir div dl dt dd fieldset figcaption
    figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol p pre
    search section summary ul table caption colgroup col thead tbody tfoot tr td th br img
    audio video canvas embed textarea select button input datalist progress meter"""
_ELEMENTS = frozenset(_NAMES.split())
"""All others are within a line."""

_DEEPEST = 100
"""Elements within a line that are open at once."""

_DEEPEST_BLOCK = 1_000
"""All others that are inside of each other; what is beyond is cut."""

_FLAT = frozenset(
    {"html", "head", "body", "base", "link", "meta", "p", "br", "img", "hr", "input", "col", "embed"}
)
"""Elements that have no others of them inside."""

_ROWS = {"thead": 0, "tbody": 0, "tfoot": 0, "tr": 1, "td": 2, "th": 2}
_UNCLOSED = frozenset({*_ROWS, "li", "dd", "dt", "colgroup"})
"""Elements whose ends are left out: another one of them is their end, or that of what they are in."""

_MOST_UNCLOSED = 8

_HIDDEN = ("[hidden]", "[style*='display:none' i]", "[style*='display: none' i]")
_HISTORY_BELOW = frozenset({"divRplyFwdMsg", "appendonsend"})
"""What Outlook calls the place where a reply ends, unless it is quoted: the history is all that follows."""

_QUOTES = (
    "blockquote[type=cite]",
    ".gmail_quote",
    ".yahoo_quoted",
    ".moz-cite-prefix",
    "[data-signature-widget]",
    ".gmail_signature",
    ".moz-signature",
)


def clean(text: str) -> str:
    """Lines end in a line feed; nothing that could move a terminal or break a store, such as what is invalid
    in UTF-8."""
    plain = _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return plain.encode("utf-8", "replace").decode() if not plain.isascii() else plain


def decoded(data: bytes, declared: str | None) -> str:
    """The text of a body, by rule 1, of bytes in any charset. Never raises."""
    for start, name in ((codecs.BOM_UTF8, "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(start):
            return clean(data.decode(name, "replace"))
    codec = _codec(declared, data)
    likely = ["utf-8"] if codec is None or codec.startswith(_ONE_BYTE) else []
    for name in (*likely, *([codec] if codec else [])):
        try:
            return clean(data.decode(name))
        except (UnicodeError, LookupError):
            continue
    if codec in (None, "utf-8"):
        telling = len(data) - len(data.lstrip(_ASCII))
        sample = data[max(0, telling - 100) : telling + _SAMPLE]
        codec = _codec(detect_encoding(sample, html5_compatible=False), data) or "cp1252"
    return clean(data.decode(codec, "replace"))


def _codec(declared: str | None, data: bytes) -> str | None:
    """The charset that a declaration means, of this text; None for what is none."""
    name = (declared or "").strip().strip("\"'")
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        known = map_encoding_to_html5(name, fallback_utf8=False)  # the names that browsers know beside
        if known is None:
            return None
        info = codecs.lookup(known)
    codec = None if info.name in _NO_TEXT else _MEANT.get(info.name, info.name)
    return _OF_WINDOWS[codec] if codec in _OF_WINDOWS and _C1.search(data) else codec


# --- headers ---------------------------------------------------------------------------------------


def header_text(raw: str) -> str:
    """A header's value, unfolded and decoded. `raw` may have unknown bytes as surrogates."""
    text = unfolded(raw)
    return clean(_words_decoded(text)).replace("\n", " ") if "=?" in text else text


def unfolded(raw: str) -> str:
    """A header's value in one line, its encoded words as they stand."""
    return clean(_FOLD.sub(" ", unescaped(raw)).strip())


def unescaped(raw: str) -> str:
    """A raw header with its unknown bytes, which the parser leaves as surrogates, as the text they mean."""
    return raw if raw.isascii() else decoded(raw.encode("utf-8", "surrogateescape"), None)


def _words_decoded(text: str) -> str:
    """Neighbours of one charset are joined before they are decoded: senders cut inside of characters."""
    parts: list[tuple[str | None, bytes | str]] = []
    at = 0
    for word in _ENCODED.finditer(text):
        between = text[at : word.start()]
        if between and not (between.isspace() and parts and parts[-1][0] is not None):
            parts.append((None, between))
        at = word.end()
        charset, data = word[1].partition("*")[0].lower(), _word_bytes(word[2], word[3])
        if data is None:
            parts.append((None, word[0]))
        elif parts and parts[-1][0] == charset:
            before = parts.pop()[1]
            parts.append((charset, before + data if isinstance(before, bytes) else data))
        else:
            parts.append((charset, data))
    parts.append((None, text[at:]))
    joined = "".join(part if isinstance(part, str) else decoded(part, charset) for charset, part in parts)
    return joined.replace("\ufeff", "")  # each word of UTF-16 may begin with its byte order mark


def _word_bytes(encoding: str, text: str) -> bytes | None:
    if encoding in "qQ":
        return quopri.decodestring(text.replace("_", " ").encode("utf-8", "replace"), header=True)
    letters = text.replace(" ", "").rstrip("=")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4))
    except (binascii.Error, ValueError):
        return None


# --- HTML ------------------------------------------------------------------------------------------


def html_text(html: str, *, own: bool = False) -> str:
    """The text of HTML in its paragraphs, to `MOST_HTML` characters and `MOST_TAGS` tags, without what is
    hidden; with `own` without the history and the signature that mail programs mark as such."""
    bounded = "<".join(html[:MOST_HTML].split("<", MOST_TAGS)[:MOST_TAGS])
    found: str = extract_plain_text(
        HTMLTree.parse(_TAG.sub(_PlainTags(own=own), bounded)),
        preserve_formatting=True,
        main_content=False,
        alt_texts=False,
        skip_elements=[*_HIDDEN, *(_QUOTES if own else ())],
    )
    return tidy(found)


class _PlainTags:
    """For the tags of one HTML text, in their order. What takes its parser quadratic time is left out: most
    attributes, and within lines what is not hidden, a signature or history. Nothing of it changes the
    text."""

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._open: dict[str, list[bool]] = {}
        self._depth = 0
        self._blocks: list[str] = []
        self._is_over = False

    def __call__(self, tag: re.Match[str]) -> str:
        if tag[3] is None or self._is_over:
            return "&lt;" if tag[0] == "<" else ""
        end, name = tag[2], tag[3].lower()
        kept: dict[str, str] = {}
        for attribute in _ATTRIBUTE.finditer("" if end else tag[4]):
            if (key := attribute[1].lower()) in _KEPT:
                kept.setdefault(key, (attribute[2] or "").strip("\"'").replace('"', "&quot;"))
        attributes = "".join(f' {key}="{value}"' for key, value in kept.items())
        if name in _ELEMENTS:
            self._is_over = self._nested(name, is_end=bool(end)) > _DEEPEST_BLOCK or (
                self._own and kept.get("id") in _HISTORY_BELOW and "blockquote" not in self._blocks
            )
            return "<style>" if self._is_over else f"<{end}{name}{attributes}>"
        of_name = self._open.setdefault(name, [])
        if end:
            was_shown = bool(of_name) and of_name.pop()
            self._depth -= was_shown
            return "</span>" if was_shown else ""
        of_name.append(bool(kept) and self._depth < _DEEPEST)
        self._depth += of_name[-1]
        return f"<span{attributes}>" if of_name[-1] else ""

    def _nested(self, name: str, *, is_end: bool) -> int:
        """How many elements are inside of each other behind this tag, at most: an end ends what stands before
        it, and nothing further up."""
        blocks = self._blocks
        if is_end:
            for back, open_name in enumerate(islice(reversed(blocks), _MOST_UNCLOSED), start=1):
                if open_name == name:
                    del blocks[-back:]
                    break
                if open_name not in _UNCLOSED:
                    break
        elif name not in _FLAT:
            row = _ROWS.get(name)
            while blocks and name in _UNCLOSED:
                if blocks[-1] != name and (row is None or _ROWS.get(blocks[-1], -1) < row):
                    break
                blocks.pop()
            blocks.append(name)
        return len(blocks)


def tidy(text: str) -> str:
    """No spaces at the ends of lines, no more than one empty line in a row."""
    lines = [line.rstrip() for line in clean(text).split("\n")]
    kept = [line for at, line in enumerate(lines) if line or (at > 0 and lines[at - 1])]
    return "\n".join(kept).strip()


# --- what the author wrote -------------------------------------------------------------------------

_ATTRIBUTION = re.compile(
    r"(?:wrote|writes|napsala?|napsal\(a\)|p[ií]sal[ao]?|pí?sal\(a\)|schrieb|a écrit|ha scritto|"
    r"escribió|escreveu|napisał(?:a|\(a\))?)[^:\n]{0,120}:\s*$",
    re.IGNORECASE,
)
_HISTORY = re.compile(
    r"\s*(?:-{2,}\s*(?:Original Message|Original-Nachricht|Ursprüngliche Nachricht|Původní zpráva|"
    r"Pôvodná správa|Message d'origine|Messaggio originale|Mensaje original)\s*-{2,}|_{20,})\s*",
    re.IGNORECASE,
)
_FORWARDED = re.compile(
    r"\s*\*?(?:-{2,}\s*(?:Forwarded message|Weitergeleitete Nachricht|Přeposlaná zpráva|Preposlaná správa|"
    r"Message transféré|Messaggio inoltrato|Mensaje reenviado|Mensagem encaminhada)\s*-{2,}|"
    r"(?:Begin forwarded message|Anfang der weitergeleiteten Nachricht|Začátek přepos\w* zprávy|"
    r"Début du message (?:transféré|réexpédié)|Inizio (?:del )?messaggio inoltrato|"
    r"Inicio del mensaje reenviado|Início da mensagem (?:re)?encaminhada)\s?:)\*?\s*",
    re.IGNORECASE,
)
_HEADERS_OF_HISTORY = (
    re.compile(r"\s*\*?(?:From|Od|Von|De|Da)\s?:", re.IGNORECASE),
    re.compile(
        r"\s*\*?(?:Sent|Date|Odesláno|Odoslané|Datum|Gesendet|Envoyé|Inviato|Enviado)\s?:", re.IGNORECASE
    ),
    re.compile(r"\s*\*?(?:To|Komu|An|À|A|Para|Subject|Předmět|Predmet|Betreff|Objet)\s?:", re.IGNORECASE),
)
_SENT_FROM = re.compile(
    r"\s*(?:Sent from my|Get Outlook for|Odesláno z|Odoslané z|Gesendet von|Von meinem|Envoyé de|Inviato da)"
    r"\b.{0,80}",
    re.IGNORECASE,
)
_MOST_ATTRIBUTIONS = 20
_LONGEST_SIGNATURE = 12
"""Lines below `--` that may be a signature."""


def own_words(text: str, *, is_forward: bool = False) -> str:
    """Without the quoted history at the end and the signature. Quotes between the author's own lines stay;
    what would leave nothing is not cut. A forward's history is what the mail is about: it stays whole, and
    the author's signature is above it."""
    lines = text.split("\n")
    forwarded, history = _forward_begins(lines), _history_begins(lines)
    is_forward = is_forward or forwarded < history
    end = cut = min(forwarded, history)
    end = min(end, _signature_begins(lines[:end]))
    while end and (not lines[end - 1].strip() or (lines[end - 1].startswith(">") and not is_forward)):
        end -= 1
    if end and not is_forward and end < len(lines) and _ATTRIBUTION.search(lines[end - 1][-400:]):
        end -= 1
    kept = [*lines[:end], "", *lines[cut:]] if is_forward else lines[:end]
    own = tidy("\n".join(kept))
    return own or tidy(text)


def forwards(text: str) -> bool:
    """Whether the text of HTML, whose quotes are not marked any more, has a forwarded mail that is in no
    history."""
    lines = text.split("\n")
    at = _forward_begins(lines)
    return at < _history_begins(lines) and not any(
        line.rstrip().endswith(":") and _ATTRIBUTION.search(line[-400:]) for line in lines[:at]
    )


def _forward_begins(lines: Sequence[str]) -> int:
    """The number of the line that begins a forwarded mail, or how many lines there are."""
    return next((at for at, line in enumerate(lines) if _FORWARDED.fullmatch(line[:400])), len(lines))


def _history_begins(lines: Sequence[str]) -> int:
    """The number of the first line of history, or how many lines there are."""
    tries = 0
    for at, line in enumerate(lines):
        if at > 0 and _HISTORY.fullmatch(line[:400]):
            return at
        if (
            at > 0
            and all(
                pattern.match(after[:400])
                for pattern, after in zip(_HEADERS_OF_HISTORY, lines[at : at + 3], strict=False)
            )
            and len(lines) - at >= 3
        ):
            return at
        if tries < _MOST_ATTRIBUTIONS and line.rstrip().endswith(":") and _ATTRIBUTION.search(line[-400:]):
            tries += 1
            if _only_quotes(islice(lines, at + 1, None)):
                # Long attributions are broken over two lines.
                is_broken = at > 0 and lines[at - 1].strip() and not re.search(r"\d", line)
                return at - 1 if is_broken else at
    return len(lines)


def _only_quotes(lines: Iterator[str]) -> bool:
    """Whether some quote follows, and nothing but quotes and signatures' few lines."""
    has_quote, others = False, 0
    for line in lines:
        if line.startswith(">"):
            has_quote, others = True, 0
        elif line.strip():
            others += 1
            if not has_quote or others > _LONGEST_SIGNATURE:
                return False
    return has_quote and others == 0


def _signature_begins(lines: Sequence[str]) -> int:
    end = len(lines)
    while end > 0 and (not lines[end - 1].strip() or lines[end - 1].startswith(">")):
        end -= 1
    if end and _SENT_FROM.fullmatch(lines[end - 1]):
        return end - 1
    for at in range(end - 1, max(-1, end - 2 - _LONGEST_SIGNATURE), -1):
        if lines[at] in ("-- ", "--"):
            return at
    return len(lines)
