"""Invented hotels: their descriptions, questions with answers in them, and what travellers search for.

Everything is a function of a hotel's number, so a larger data set begins with the smaller one.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

_SLOT = re.compile(r"\{(\w+)\}")

FIRST = (
    "Golden", "Old", "Grand", "Little", "Royal", "White", "Blue", "Green", "Silver", "Red", "Quiet", "Garden",
    "Harbour", "Park", "River", "Castle", "Bridge", "Market", "Abbey", "Station", "Sunny", "Northern", "Imperial",
)  # fmt: skip
SECOND = (
    "Lion", "Mill", "Swan", "Eagle", "Crown", "Anchor", "Rose", "Bear", "Oak", "Star", "Fountain", "Lodge", "Palace",
    "Tower", "Court", "Terrace", "Gate", "Lantern", "Falcon", "Stag", "Pearl", "Orchard", "Lighthouse",
)  # fmt: skip
CITIES = (
    "Lisbon", "Porto", "Madrid", "Seville", "Lyon", "Nice", "Geneva", "Zurich", "Milan", "Turin", "Venice", "Naples",
    "Vienna", "Graz", "Prague", "Krakow", "Warsaw", "Berlin", "Hamburg", "Dresden", "Munich", "Bruges", "Ghent",
    "Utrecht", "Leiden", "Oslo", "Bergen", "Malmo", "Helsinki", "Turku", "Riga", "Tallinn", "Dublin", "Galway",
    "York", "Bath", "Oxford", "Athens", "Split", "Zagreb",
)  # fmt: skip
GIVEN = (
    "Anna", "Peter", "Maria", "David", "Laura", "Thomas", "Sofia", "Martin", "Julia", "Daniel", "Clara", "Simon",
    "Elena", "Robert", "Nina", "Oliver", "Teresa", "Victor", "Alice", "Henry", "Martha", "George", "Irene", "Felix",
)  # fmt: skip
FAMILY = (
    "Keller", "Novak", "Santos", "Moreau", "Rossi", "Berg", "Lindqvist", "Walsh", "Hughes", "Papas", "Kovac", "Weber",
    "Fontaine", "Ferrari", "Nielsen", "Murphy", "Baker", "Fischer", "Costa", "Jansen", "Adler", "Brandt", "Cole",
    "Doyle",
)  # fmt: skip

# What a traveller may want: sentences of hotels that have it, of hotels that do not, and words of queries.
FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "pool": (
        ("Guests swim in the heated pool on the roof.", "There is an indoor pool.", "A pool is open all year."),
        ("The pool is closed for repairs.", "There is no pool.", "The hotel has no swimming pool of its own."),
        ("a pool", "somewhere to swim", "a swimming pool"),
    ),
    "parking": (
        ("Cars park free of charge behind the house.", "The garage is free for guests.", "There is free parking."),
        ("There is no parking at the hotel.", "Parking is not possible in this street.", "The garage is closed."),
        ("free parking", "a place for the car", "a garage"),
    ),
    "dogs": (
        ("Dogs are welcome.", "Pets may stay in all rooms.", "Dogs stay free of charge."),
        ("Pets are not allowed.", "Dogs cannot stay here.", "We take no dogs."),
        ("dogs allowed", "our dog can stay too", "pets are welcome"),
    ),
    "wifi": (
        ("Wireless internet is fast and free.", "All rooms have free wifi.", "The wifi is quick everywhere."),
        ("There is no internet in the rooms.", "The wifi does not reach the rooms.", "The hotel has no wifi."),
        ("good wifi", "internet in the room", "fast internet to work"),
    ),
    "restaurant": (
        ("The restaurant serves dinner until late.", "Dinner is cooked in the house.", "There is a fine restaurant."),
        ("The restaurant has closed.", "No dinner is served.", "There is no restaurant in the house."),
        ("dinner in the house", "a restaurant", "an evening meal"),
    ),
    "quiet": (
        ("The nights are quiet.", "All rooms look into a silent courtyard.", "No traffic disturbs the calm."),
        ("The street is loud at night.", "The bar below can be noisy.", "Trams pass noisily until late."),
        ("quiet rooms", "calm at night", "no noise"),
    ),
    "lift": (
        ("A lift goes to every floor.", "Wheelchairs reach all rooms.", "The lift is wide enough for a wheelchair."),
        ("There is no lift.", "The rooms are reached by steep stairs only.", "The lift is out of order."),
        ("a lift", "no stairs", "access by wheelchair"),
    ),
    "family": (
        ("Children have a playground.", "Cots and toys are ready for small children.", "Families get two rooms."),
        ("Children under twelve cannot stay.", "The house is for adults only.", "There are no beds for children."),
        ("for families", "good with children", "a playground for our children"),
    ),
}  # fmt: skip

# Facts that questions ask for: sentences with the answer in braces, and questions.
FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "breakfast": (
        ("Breakfast is served from {breakfast}.", "You can have breakfast from {breakfast}."),
        ("When is breakfast served?", "When can we have breakfast?", "What are the hours of breakfast?"),
    ),
    "checkin": (
        ("Check in is possible from {checkin}.", "Rooms are ready from {checkin}."),
        ("From when can we check in?", "When are the rooms ready?", "When can guests check in?"),
    ),
    "rooms": (
        ("The house has {rooms} rooms.", "There are {rooms} rooms on four floors."),
        ("How many rooms does the hotel have?", "How many rooms are there?"),
    ),
    "built": (
        ("It was built in {built}.", "The building dates from {built}."),
        ("When was the hotel built?", "How old is the building?", "In which year was it built?"),
    ),
    "owner": (
        ("The owner is {owner}.", "It is run by {owner}."),
        ("Who is the owner?", "Who runs the hotel?", "Who owns the house?"),
    ),
    "walk": (
        ("The station is {walk} away on foot.", "It is a walk of {walk} from the station."),
        ("How far is the station?", "How long is the walk from the station?"),
    ),
    "price": (
        ("A double room costs {price} per night.", "Double rooms start at {price}."),
        ("What does a double room cost?", "How much is a room for two?", "What is the price of a double room?"),
    ),
    "key": (
        ("Late guests find the key {key}.", "After midnight the key is {key}."),
        ("Where is the key for late guests?", "Where do we find the key after midnight?"),
    ),
}  # fmt: skip
KEYS = ("in the box at the door", "at the petrol station", "in the bakery next door", "under the blue flowerpot")


@dataclass(frozen=True)
class Hotel:
    """A hotel: its name, city and features, its description, and the place of each fact in it."""

    number: int
    name: str
    city: str
    features: dict[str, bool]
    text: str
    facts: dict[str, tuple[int, str]] = field(repr=False)  # name -> first character, and the answer


def hotel(number: int, facts: int = 5) -> Hotel:
    """Return a hotel, whose description has this many facts beside five features."""
    draw = random.Random(f"hotel {number}")
    name, city = f"{draw.choice(FIRST)} {draw.choice(SECOND)}", draw.choice(CITIES)
    opens, built = draw.randint(6, 8), draw.randint(1650, 2020)
    values = {
        "breakfast": f"{opens} to {draw.randint(opens + 2, 11)} o'clock",
        "checkin": f"{draw.randint(12, 17)} o'clock",
        "rooms": str(draw.randint(8, 240)),
        "built": str(built),
        "owner": f"{draw.choice(GIVEN)} {draw.choice(FAMILY)}",
        "walk": f"{draw.randint(2, 30)} minutes",
        "price": f"{draw.randint(40, 320)} euros",
        "key": draw.choice(KEYS),
    }
    features = {feature: draw.random() < 0.5 for feature in draw.sample(sorted(FEATURES), 5)}
    sentences = [(draw.choice(FEATURES[feature][0 if has else 1]), None) for feature, has in features.items()]
    sentences += [(draw.choice(FACTS[fact][0]), fact) for fact in draw.sample(sorted(FACTS), facts)]
    draw.shuffle(sentences)
    text, answers = f"The {name} is a hotel in {city}.", {}
    for sentence, fact in sentences:
        if fact is not None:
            answers[fact] = len(text) + 1 + sentence.index("{"), values[fact]
        text += " " + _SLOT.sub(lambda slot: values[slot[1]], sentence)
    return Hotel(number, name, city, features, text, answers)


def hotels(count: int, first: int = 0, facts: int = 5) -> list[Hotel]:
    """Return hotels by their numbers, from `first`."""
    return [hotel(number, facts) for number in range(first, first + count)]


def questions(place: Hotel) -> list[tuple[str, int, str]]:
    """Return questions about a hotel, each with the first character of its answer in the text, and the answer."""
    draw = random.Random(f"questions {place.number}")
    return [(draw.choice(FACTS[fact][1]), *answer) for fact, answer in place.facts.items()]


@dataclass(frozen=True)
class Search:
    """What a traveller types, and what it means: the features that are wanted, and perhaps a city."""

    text: str
    wanted: tuple[str, ...]

    def relevance(self, place: Hotel) -> int:
        """Return how many of the wanted features a hotel has, less what it says that it has not, at least 0."""
        return max(0, sum({True: 1, False: -1, None: 0}[place.features.get(name)] for name in self.wanted))


def search(number: int, features: int = 3) -> Search:
    """Return a search for a hotel with some features."""
    draw = random.Random(f"search {number}")
    wanted = tuple(draw.sample(sorted(FEATURES), features))
    words = [draw.choice(FEATURES[name][2]) for name in wanted]
    begin = draw.choice(("a hotel with", "we need", "looking for", ""))
    return Search(f"{begin} {', '.join(words[:-1])} and {words[-1]}".strip(), wanted)
