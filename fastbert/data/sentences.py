"""Split prose into sentences by rules: no model, no download, the same result everywhere.

A sentence ends at a stop (and the closing quotes and brackets after it) if the following text looks like a beginning.
The full stop is ambiguous, since abbreviations, initials and numbers use it too; a stop in CJK text needs no space
after it. The rules are for pre-training text, where one wrong split in a few hundred sentences is harmless.
"""

from __future__ import annotations

import re

OPENERS = "\"'“‘«‹„‚([{<「『（《〈【〔¿¡*_"
CLOSERS = "\"'”’»›)]}>」』）》〉】〕*_"
_STOPS = ".!?…‽؟۔।॥።"
_CJK_STOPS = "。！？｡．"
_CJK_CONTINUING = "，、；："
_DASHES = "-–—"

# A stop of a script that puts a space after it, or a CJK stop; then closing quotes and brackets. Possessive, and never
# started inside a run of stops, so that a million full stops take linear time.
_CLOSE = f"[{re.escape(CLOSERS)}]*+"
_CANDIDATE = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]++{_CLOSE}(?=\s)"
    rf"|(?<![{_CJK_STOPS}])[{_CJK_STOPS}]++{_CLOSE}(?=[^{_CJK_STOPS}{_CJK_CONTINUING}])"
)
_WORD_BREAKS = "\"'“‘«([{—–/"
_LAST_WORD = re.compile(rf"[^\s{re.escape(_WORD_BREAKS)}]+$")
_WORD_ENDS = "\"'”’,.;:!?"
_SPACE = re.compile(r"\s+")
# Letters with stops between them: U.S., e.g., a.m., Ph.D.
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}", re.UNICODE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never end a sentence.
_TITLES = _words("""
    mr mrs ms mx dr prof st ste mt messrs mlle mme gen col maj capt cmdr cpl sgt lt lieut adm brig rev revd fr
    hon gov sen rep pres supt insp det amb atty sr sra srta hr dir mgr v vs viz cf ca approx esp incl resp
    fig figs eq eqs sec sect ch chap vol vols no nos nr pp p pt pts art ed eds trans op cit e.g i.e al""")
# Like titles, but only before a number: "No. 5", but "The answer was no. He left."
_BEFORE_NUMBER = _words("no nos nr fig figs eq eqs p pp ch chap vol vols sec sect pt pts art op")
_WORDS_TOO = _words("no art op")
# May end a sentence, but usually do not.
_ABBREVIATIONS = _words("""
    inc ltd co corp bros llc plc dept univ assn jr sr esq etc ave blvd rd sq hwy bldg apt
    jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri
    a.m p.m u.s u.k u.n u.s.a d.c b.c a.d b.c.e c.e ph.d m.d b.a m.a b.sc m.sc r.i.p est min max avg tel
    ala ariz ark calif colo conn del fla ill ind kan ky md mass mich minn miss mo mont neb nev okla ore pa penn tenn
    tex va vt wash wis wyo""")
# Words that, with a capital, begin a sentence rather than continue a name.
_STARTERS = _words("""
    the this that these those there then they their he she his her it its we our you your my who what when where why
    how which while in on at by for from with after before during since until although though because if as and but or
    so yet however moreover furthermore meanwhile also both each every some many most all no not one two three another
    an to of under over between among according despite such""")


def _begins_sentence(text: str, start: int) -> tuple[bool, str]:
    """Return whether a sentence can begin at `start`, and its first word without opening quotes and brackets."""
    end = start
    while end < len(text) and (text[end] in OPENERS or text[end] in _DASHES or text[end].isspace()):
        end += 1
    if end == len(text):
        return False, ""
    space = _SPACE.search(text, end, end + 40)
    word = text[end : space.start() if space else end + 40]
    return not word[0].islower(), word


def _stop_is_final(text: str, sentence_start: int, stop: int, next_word: str) -> bool:
    """Return whether the single full stop at `text[stop]` ends the sentence that began at `sentence_start`."""
    match = _LAST_WORD.search(text, max(sentence_start, stop - 40), stop)
    if match is None:
        return True
    word = match.group()
    lower = word.lower().rstrip(".")
    starter = next_word.rstrip(_WORD_ENDS).lower() in _STARTERS and not next_word[:1].islower()
    if match.start() == sentence_start and (word.isdigit() or (len(word) == 1 and word.isalpha())):
        return False  # the number or letter of a list item
    if lower in _BEFORE_NUMBER:
        return not (next_word[:1].isdigit() or (lower not in _WORDS_TOO and not starter))
    if lower in _TITLES:
        return False
    if lower in _ABBREVIATIONS or _DOTTED.fullmatch(word):
        return starter
    if len(word) == 1 and word.isalpha() and (word.isupper() or next_word[:1].isdigit()):
        return starter  # an initial, "J. Smith", or "b. 1950"
    return True


def split_sentences(text: str) -> list[str]:
    """Return the sentences of one paragraph, stripped, in order; only the white space between them is lost."""
    sentences = []
    start = 0
    for match in _CANDIDATE.finditer(text):
        end = match.end()
        if end <= start or end == len(text):
            continue
        stops = match.group().rstrip(CLOSERS)
        if stops[0] not in _CJK_STOPS:
            possible, next_word = _begins_sentence(text, end)
            if not possible:
                continue
            if stops == "." and not _stop_is_final(text, start, match.start(), next_word):
                continue
        sentences.append(text[start:end].strip())
        space = _SPACE.match(text, end)
        start = space.end() if space else end
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences
