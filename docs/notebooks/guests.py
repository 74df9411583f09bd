"""Messages of invented guests to a hotel: what they are about, and the names, places, dates and sums in them."""

from __future__ import annotations

import random
import re

from hotels import CITIES, FAMILY, FIRST, GIVEN, SECOND

_SLOT = re.compile(r"(\{\w+\})")

# Intent -> ways to put it. The last three of each are kept for the test, so that no test sentence is a trained one with
# other words in its slots.
INTENTS = {
    "book a room": (
        "I would like to book a {room} for {night}", "do you have a {room} free {night}",
        "please reserve a {room} for {night}", "is a {room} available {night}",
        "we want to stay with you {night}, a {room} please", "can I get a {room} {night}",
        "we are looking for a {room} {night}", "please make a reservation for {night}", "I need a {room} {night}",
        "could you reserve a {room} for us {night}", "I want to make a booking for {night}",
        "is there a free {room} {night}",
    ),
    "cancel": (
        "please cancel my booking for {night}", "I have to cancel the {room}",
        "we cannot come {night}, please cancel", "I want to cancel our reservation",
        "our trip is off, cancel the {room}", "can I still cancel for {night}",
        "we will not need the {room} any more", "please take back my reservation for {night}",
        "how do I cancel my booking", "cancel everything {night}, we are ill",
        "sadly we cannot travel, please cancel the {room}", "our plans changed, we cannot come {night}",
    ),
    "noise": (
        "the guests next door are too loud", "I cannot sleep, the {thing} makes a noise", "there was music all night",
        "people shout in the corridor {night}", "it is far too loud in the {room}", "the street below is noisy",
        "could you ask the neighbours to be quiet", "the party downstairs kept us awake",
        "we heard the {thing} all night", "so loud that we could not sleep", "please stop the music, we cannot sleep",
        "the noise of the {thing} is awful",
    ),
    "broken": (
        "the {thing} in our room does not work", "the {thing} is broken", "water drips from the {thing}",
        "please repair the {thing}", "the {thing} stopped working {night}", "we cannot switch on the {thing}",
        "could someone look at the {thing}", "the {thing} has been out of order since yesterday",
        "there is something wrong with the {thing}", "can you send someone to repair the {thing}",
        "our {thing} does not work any more", "the {thing} is out of order",
    ),
    "breakfast": (
        "when is breakfast", "what do you serve for breakfast", "is breakfast included in the price",
        "do you have {food} for breakfast", "can we have breakfast in the {room}",
        "from when can we eat in the morning", "I am allergic to {food}, what can I eat",
        "is there {food} in the morning", "how much is breakfast for two", "what time does breakfast end",
        "is there {food} at breakfast", "can I eat breakfast before seven",
    ),
    "parking": (
        "where can I park the car", "do you have a garage", "how much is parking per day",
        "is there a place for our car", "can we leave the car at the hotel {night}", "is parking included",
        "do I have to book parking for {night}", "is the garage high enough for a van",
        "can I charge an electric car", "what does the garage cost per night", "where do we leave our car",
        "is there free parking near the hotel",
    ),
    "internet": (
        "what is the password of the wifi", "the wifi is so slow", "I cannot connect to the internet",
        "does the {room} have wifi", "how do I get online", "the internet connection breaks all the time",
        "is the wifi fast enough for video calls", "the wifi asks for a code", "no internet in our room {night}",
        "my laptop does not connect to the wifi", "do you have the password of the internet",
        "the wifi connection is slow",
    ),
    "invoice": (
        "please send me the invoice", "I need a bill for my company", "the sum on the bill is wrong",
        "can I pay by card", "you charged me twice", "could you change the address on the invoice",
        "I have not received a receipt", "why did I pay for the {thing}", "please return the money for {night}",
        "I was charged for a {room} too many", "can I have a receipt for my company",
        "the bill shows a {room} too many",
    ),
    "lost item": (
        "I forgot my {item} in the {room}", "did you find a {item}", "I left my {item} at the breakfast table",
        "my {item} is missing", "we lost a {item} in the lift", "has anyone handed in a {item}",
        "I cannot find my {item} since {night}", "please look for my {item} under the bed",
        "my child left a {item} with you", "I think my {item} is still in the {room}",
        "we forgot a {item} in the garage", "did anyone find my {item}",
    ),
    "thanks": (
        "thank you for the lovely stay", "we enjoyed every day", "the {room} was wonderful",
        "what a friendly team you are", "breakfast was excellent, thank you", "the best {food} of our trip",
        "we will come again", "everything was perfect {night}", "many thanks to the reception",
        "we loved the {room} and the team", "thank you, we enjoyed our stay", "wonderful {food}, thank you",
    ),
}  # fmt: skip
HELD_OUT = 3
WORDS = {
    "room": ("single room", "double room", "family room", "suite", "quiet room", "room with a view"),
    "night": ("tonight", "on Friday", "next week", "tomorrow", "from Monday to Thursday", "in May", "last night"),
    "thing": ("shower", "heating", "lamp", "television", "lift", "air conditioning", "fridge", "window"),
    "food": ("eggs", "fresh bread", "oats", "fruit", "coffee", "vegan food", "nuts", "milk"),
    "item": ("phone", "scarf", "book", "passport", "charger", "jacket", "ring", "pair of glasses", "key"),
}  # fmt: skip
BEFORE = ("", "", "", "hello, ", "hi, ", "good evening, ", "dear team, ", "excuse me, ", "sorry to bother you, ")
AFTER = (
    "",
    "",
    "",
    " please reply soon",
    " many greetings",
    " we are in room 12",
    " thanks in advance",
    " it is urgent",
)


def message(number: int, *, held_out: bool = False) -> tuple[str, str]:
    """Return the intent and the text of a message; with `held_out` one that is put as no other message is."""
    draw = random.Random(f"message {number} {held_out}")
    intent = draw.choice(sorted(INTENTS))
    templates = INTENTS[intent]
    template = draw.choice(templates[-HELD_OUT:] if held_out else templates[:-HELD_OUT])
    text = "".join(draw.choice(WORDS[part[1:-1]]) if part[0] == "{" else part for part in _parts(template))
    return intent, with_typo(draw.choice(BEFORE) + text + draw.choice(AFTER), draw)


def with_typo(text: str, draw: random.Random, share: float = 0.3) -> str:
    """Return a text in which, in `share` of the cases, two neighbouring letters have changed places."""
    positions = [index for index in range(len(text) - 1) if text[index : index + 2].isalpha()]
    if draw.random() >= share:
        return text
    at = draw.choice(positions)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


# Sentences with names: the words of a slot have its type. The last ones are kept for the test.
BOOKINGS = (
    "{person} has booked two nights at the {hotel} in {city}", "please move the booking of {person} to {date}",
    "we arrive in {city} on {date} and leave the {hotel} on {date}", "{person} paid {money} for the room on {date}",
    "my name is {person} and I stayed at the {hotel} on {date}", "the {hotel} charged {person} {money} too much",
    "is the {hotel} in {city} open on {date}", "{person} and {person} share a room at the {hotel}",
    "flights from {city} to {city} on {date} cost {money}", "could {person} collect the key of the {hotel} on {date}",
    "from {date} to {date} the price is {money} per night", "ask {person} whether {money} is right",
    "the train from {city} arrives on {date}", "{person} from {city} wants a quiet room",
    "send the bill of {money} to {person}", "in {city} we recommend the {hotel}",
    "a double room at the {hotel} is {money}", "the reception of the {hotel} called {person}",
)  # fmt: skip
HELD_OUT_BOOKINGS = 6
MONTHS = ("January", "March", "May", "June", "July", "August", "October", "December")
BEGINNINGS = (
    "al", "bran", "cor", "dal", "el", "fern", "gar", "hol", "ir", "kas", "lor", "mar", "nor", "ost", "per", "ros",
    "sol", "tor",
)  # fmt: skip
MIDDLES = ("", "a", "be", "di", "en", "fa", "go", "li", "mo", "ne", "ra", "ti", "vo")
PERSON_ENDINGS = ("sen", "ova", "elli", "er", "ez", "ström", "mann", "well", "ard", "ski")
HOTEL_ENDINGS = ("hof", "ia", "ora", "isle", "ette", "anne", "um")
CITY_ENDINGS = ("burg", "ton", "ville", "stad", "polis", "ford", "bach", "ino", "mouth", "haven")
INVENTED = 0.6  # share of the names of training sentences
TYPES = ("PERSON", "HOTEL", "CITY", "DATE", "MONEY")
_TYPE_OF = {"person": "PERSON", "hotel": "HOTEL", "city": "CITY", "date": "DATE", "money": "MONEY"}


def booking(number: int, *, held_out: bool = False) -> list[tuple[str, str]]:
    """Return the words of a sentence with their tags (`B-CITY`, `O`, ...); one in six holds no entity. With `held_out`
    it is put as no other sentence is, and its names are invented: hardly any is in another sentence."""
    draw = random.Random(f"booking {number} {held_out}")
    if draw.random() < 1 / 6:
        return [(word, "O") for word in message(number, held_out=held_out)[1].split()]
    words: list[tuple[str, str]] = []
    templates = BOOKINGS[-HELD_OUT_BOOKINGS:] if held_out else BOOKINGS[:-HELD_OUT_BOOKINGS]
    for part in _parts(draw.choice(templates)):
        if part[0] != "{":
            words += [(word, "O") for word in part.split()]
            continue
        entity = _entity(part[1:-1], draw, 1.0 if held_out else INVENTED).split()
        words += [(word, ("I-" if index else "B-") + _TYPE_OF[part[1:-1]]) for index, word in enumerate(entity)]
    end = draw.choice((".", "?", "!", "", ""))
    return [*words, (end, "O")] if end else words


def _entity(slot: str, draw: random.Random, share: float) -> str:
    """Return a name, place, date or sum; `share` of the names and places are invented."""

    def pick(names: tuple[str, ...], endings: tuple[str, ...]) -> str:
        invented = draw.choice(BEGINNINGS) + draw.choice(MIDDLES) + draw.choice(endings)
        return invented.capitalize() if draw.random() < share else draw.choice(names)

    if slot == "person":
        family = pick(FAMILY, PERSON_ENDINGS)
        return draw.choice(
            (f"{draw.choice(GIVEN)} {family}", f"Mrs {family}", f"Mr {family}", pick(GIVEN, ("a", "o", "an")))
        )
    if slot == "hotel":
        return draw.choice(
            (f"{draw.choice(FIRST)} {pick(SECOND, HOTEL_ENDINGS)}", f"Hotel {pick(SECOND, HOTEL_ENDINGS)}")
        )
    if slot == "city":
        return pick(CITIES, CITY_ENDINGS)
    if slot == "date":
        return f"{draw.randint(1, 28)} {draw.choice(MONTHS)}"
    return f"{draw.randint(20, 900)} {draw.choice(('euros', 'pounds', 'francs'))}"


def _parts(template: str) -> list[str]:
    """Return a template's texts and slots in order."""
    return [part for part in _SLOT.split(template) if part]
