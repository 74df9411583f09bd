"""Short texts about rivers, money, theatre, games and music, made of templates, in which "bank" and "play" mean several
things. Python's documentation knows no river."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

SENTENCES_PER_DOCUMENT = 5
_SLOT = re.compile(r"\{(\w+)\}")

WORDS = {
    "who": (
        "The man", "The woman", "The girl", "The boy", "My brother", "Our neighbour", "The old teacher", "A friend",
    ),
    "they": ("The children", "The boys", "My friends", "The girls", "Our neighbours", "The students", "They"),
    "time": (
        "in the morning", "in the evening", "on Sunday", "after school", "every day", "in the summer", "at night",
    ),
    "water": ("the river", "the lake", "the stream"),
    "nature": ("trees", "flowers", "reeds", "bushes", "willows"),
    "animal": ("duck", "dog", "fish", "horse", "swan"),
    "side": ("left", "right", "muddy", "green", "steep", "far"),
    "boat": ("boat", "raft", "small boat", "ferry"),
    "money": ("money", "savings", "coins", "wages"),
    "amount": ("ten", "twenty", "fifty", "a hundred", "five hundred"),
    "goods": ("a house", "a car", "the shop", "the farm", "a new roof"),
    "business": ("account", "loan", "letter", "card", "cheque"),
    "drama": ("king", "queen", "ghost", "war", "young prince", "family"),
    "stage": ("theatre", "stage", "old theatre", "school theatre"),
    "praise": ("funny", "sad", "long", "famous", "short"),
    "game": ("football", "chess", "tennis", "cards", "hockey"),
    "place": ("in the garden", "in the park", "at school", "on the field", "behind the house"),
    "instrument": ("piano", "violin", "guitar", "flute", "drums"),
    "music": ("song", "waltz", "sonata", "melody", "tune"),
}  # fmt: skip
TOPICS = {
    "river": (
        "{they} sat on the bank of {water} {time}.",
        "The {boat} lay on the {side} bank.",
        "Many {nature} grew along the bank of {water}.",
        "A {animal} slept on the {side} bank of {water}.",
        "{who} walked along the bank with a {animal}.",
        "After the rain the water of {water} rose over the bank.",
        "{who} swam from one bank to the other {time}.",
        "The {boat} crossed {water} {time}.",
        "A {animal} drank the cold water of {water}.",
        "The water was deep and the {nature} were wet.",
    ),
    "money": (
        "{who} put the {money} in the bank {time}.",
        "The bank sent a {business} to the customer.",
        "{who} asked the bank for a loan to buy {goods}.",
        "The bank paid {amount} pounds to {who}.",
        "{who} opened an account at the bank {time}.",
        "The bank closed the {business} of the customer.",
        "{who} owed the bank {amount} pounds for {goods}.",
        "{who} saved {money} to buy {goods}.",
        "The customer signed the {business} and paid {amount} pounds.",
        "The price of {goods} was {amount} pounds.",
    ),
    "drama": (
        "{they} saw a {praise} play at the {stage} {time}.",
        "The play about the {drama} was {praise}.",
        "{who} wrote a play about a {drama}.",
        "The actors learned the {praise} play by heart.",
        "The audience loved the play and the actors.",
        "The last act of the play was {praise}.",
        "The actors of the {stage} were tired {time}.",
        "{who} bought tickets for the {stage}.",
        "The story of the {drama} was {praise}.",
    ),
    "game": (
        "{they} play {game} {place} {time}.",
        "{they} like to play {game} with the team.",
        "{who} wants to play {game} {place}.",
        "The two teams play {game} {time}.",
        "{they} play {game} and the winner gets a prize.",
        "The team won the match of {game} {time}.",
        "{who} lost the game {place}.",
        "The ball flew over the players {place}.",
    ),
    "music": (
        "{who} can play the {instrument} very well.",
        "{they} play a {music} on the {instrument}.",
        "{who} learned to play the {instrument} {time}.",
        "The orchestra began to play the {praise} {music}.",
        "{they} sing while the {instrument} and the {instrument} play a {music}.",
        "{who} wrote a {praise} {music} for the {instrument}.",
        "The {instrument} was too loud for the {music}.",
        "The orchestra tuned every {instrument} {time}.",
    ),
}


def everyday_documents(count: int) -> Iterator[list[str]]:
    """Yield `count` documents, each a list of five sentences on one topic; a document is a function of its number."""
    for number in range(count):
        yield everyday_document(number)[1]


def everyday_document(number: int) -> tuple[str, list[str]]:
    """Return the topic and the sentences of a document."""
    topics = list(TOPICS)
    topic = topics[number % len(topics)]
    draw = random.Random(f"everyday {number}")
    return topic, [filled(draw.choice(TOPICS[topic]), draw) for _ in range(SENTENCES_PER_DOCUMENT)]


def filled(template: str, draw: random.Random) -> str:
    """Return a template with a word drawn for each slot."""
    text = _SLOT.sub(lambda slot: draw.choice(WORDS[slot[1]]), template)
    return text[0].upper() + text[1:]
