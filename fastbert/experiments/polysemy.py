"""Words of several meanings in different contexts: one vector per word against the states of ELMo and BERT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.data.corpus import Corpus
from fastbert.errors import UserError
from fastbert.experiments.occurrences import Sentences, find_sentences
from fastbert.experiments.registry import Experiment
from fastbert.experiments.similarity_picture import draw_similarities
from fastbert.experiments.summary import Row, Summary
from fastbert.experiments.systems import elmo_states, load_elmo, pretrain_elmo, train_static_vectors
from fastbert.experiments.workspace import Workspace
from fastbert.features.extract import extract
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.vectors.training import VectorTraining

WORDS, PYTHON_WORDS = ("bank", "play", "apple"), ("call", "type", "file")
STATIC, ELMO, BERT = "static", "ELMo", "BERT"
SHOWN, LEAST = 10, 3  # occurrences per word
POOL = 200  # occurrences among which the nearest is looked for
OTHERS = {"smoke": 60}
MOST_OTHERS = 3000  # sentences whose words are candidates for neighbours
NEIGHBOURS = 5
LETTERS = 3  # of a neighbour, at least


@dataclass(frozen=True, eq=False)
class States:
    """States of a system, fp32: of the occurrences of each word (occurrences, width), and of the words of the other
    sentences (words, width) with their names. The mean of the latter has been subtracted, and all have unit length."""

    occurrences: dict[str, NDArray[np.float32]]
    others: NDArray[np.float32]
    names: list[str]

    @classmethod
    def of(cls, states: NDArray[np.float32], offsets: NDArray[np.int64], sentences: Sentences) -> States:
        """Return the states of occurrences from those of all words of all sentences, occurrences first."""
        of_word, first = {}, 0
        for word, occurrences in sentences.occurrences.items():
            rows = [int(offsets[first + i]) + occurrence.index for i, occurrence in enumerate(occurrences)]
            of_word[word] = states[rows]
            first += len(occurrences)
        others, names = states[offsets[first] :], [name for words in sentences.others for name in words]
        chosen = [row for row, name in enumerate(names) if len(name) >= LETTERS and name.isalpha()]
        mean = others.mean(axis=0)
        unit = {word: _unit(vectors - mean) for word, vectors in of_word.items()}
        return cls(unit, _unit(others[chosen] - mean), [names[row].lower() for row in chosen])

    def cosines(self, word: str, rows: Sequence[int]) -> NDArray[np.float32]:
        """Return the cosines between some occurrences, fp32 (rows, rows)."""
        vectors = self.occurrences[word][list(rows)]
        cosines: NDArray[np.float32] = vectors @ vectors.T
        return cosines

    def nearest_words(self, word: str, row: int, count: int = NEIGHBOURS) -> list[str]:
        """Return the words of the other sentences whose states are nearest to that of an occurrence, each once."""
        cosines = self.others @ self.occurrences[word][row]
        names: dict[str, None] = {}
        for other in np.argsort(-cosines, kind="stable"):
            if self.names[other] != word:
                names[self.names[other]] = None
            if len(names) == count:
                break
        return list(names)

    def nearest_occurrence(self, word: str, row: int) -> int:
        """Return the occurrence of the same word that is nearest to one."""
        cosines = self.occurrences[word] @ self.occurrences[word][row]
        cosines[row] = -np.inf
        return int(cosines.argmax())


def rows(workspace: Workspace) -> Iterator[Row]:
    """Train the systems, find occurrences of the words, and compare their states."""
    VectorTraining().check_packages()
    sentences = _find(workspace)
    vectors = train_static_vectors(workspace)
    elmo = pretrain_elmo(workspace)
    bert = workspace.pretrain("mlm-nsp", objective="mlm+nsp")

    def compare() -> dict[str, Any]:
        word_lists = [occurrence.words for items in sentences.occurrences.values() for occurrence in items]
        word_lists += sentences.others
        systems = {
            ELMO: _states_of_elmo(elmo.model, word_lists, sentences),
            BERT: _states_of_bert(bert.model, word_lists, sentences),
        }
        results = {}
        for word, occurrences in sentences.occurrences.items():
            chosen = _ordered(systems, word, min(SHOWN, len(occurrences)))
            results[word] = {
                "contexts": [occurrences[row].label for row in chosen],
                "cosines": {
                    STATIC: np.ones((len(chosen), len(chosen))).tolist(),
                    **{name: _rounded(states.cosines(word, chosen)) for name, states in systems.items()},
                },
                "static neighbours": [each.word for each in vectors.neighbours(word)] if word in vectors else [],
                "neighbours": {
                    name: [states.nearest_words(word, row) for row in chosen] for name, states in systems.items()
                },
                "nearest": {
                    name: [occurrences[states.nearest_occurrence(word, row)].label for row in chosen]
                    for name, states in systems.items()
                },
            }
        return {"words": results}

    workspace.details = workspace.cached("polysemy", compare)
    words = workspace.details["words"]
    for word, result in words.items():
        workspace.say(f"{word}: static neighbours {', '.join(result['static neighbours'])}")
    for name, numbers in ((STATIC, {}), (ELMO, elmo.numbers()), (BERT, bert.numbers())):
        yield Row(name=name, scores={}, numbers={**_means(words, name), **numbers})


def _find(workspace: Workspace) -> Sentences:
    """Return occurrences of the chosen words. Raises `UserError` for one that the corpus does not have often enough."""
    on_python = workspace.data.name == "Python's own text"
    words = tuple(word.lower() for word in workspace.words) or (PYTHON_WORDS if on_python else WORDS)
    corpus = Corpus.find(workspace.data.corpora, text_format="lines")
    others = OTHERS.get(workspace.scale.name, MOST_OTHERS)
    update = workspace.reporter.on_stage("finding the words", corpus.total_bytes)
    sentences = find_sentences(corpus.documents(update), words, most=POOL, others=others)
    rare = [word for word in words if len(sentences.occurrences[word]) < LEAST]
    if workspace.words and rare:
        raise UserError(
            f"--words {rare[0]}: occurs in {len(sentences.occurrences[rare[0]])} sentences of the corpus, and {LEAST}"
            " are needed; give another word"
        )
    frequent = {word: items for word, items in sentences.occurrences.items() if word not in rare}
    if not frequent:
        raise UserError(f"the corpus has none of {', '.join(words)} often enough; choose others by --words")
    return Sentences(frequent, sentences.others)


def _states_of_elmo(folder: Path, word_lists: Sequence[Sequence[str]], sentences: Sentences) -> States:
    features = elmo_states(load_elmo(folder), word_lists)
    return States.of(features.values[:, -1].float().numpy(), features.offsets, sentences)


def _states_of_bert(folder: Path, word_lists: Sequence[Sequence[str]], sentences: Sentences) -> States:
    """Return the last states of BERT, averaged over the pieces of a word."""
    model, tokenizer = registry.load_encoder(folder), load_tokenizer(folder)
    pieces = extract(model, tokenizer, word_lists, "last", per="token").values.numpy()
    _, bounds = tokenizer.encode_ragged([word for words in word_lists for word in words], False)
    sizes = np.maximum(np.diff(bounds), 1)  # a word without pieces is [UNK]
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    states = np.add.reduceat(pieces, begins, axis=0) / sizes[:, None]
    offsets = np.concatenate(([0], np.cumsum([len(words) for words in word_lists], dtype=np.int64)))
    return States.of(states.astype(np.float32), offsets, sentences)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    return unit


def _ordered(systems: dict[str, States], word: str, count: int) -> list[int]:
    """Return the first `count` occurrences in an order that has similar ones beside each other in all systems: by the
    second eigenvector of the Laplacian of their mean similarities."""
    mean = np.mean([states.cosines(word, range(count)) for states in systems.values()], axis=0)
    weights = (1 + mean) / 2
    _, vectors = np.linalg.eigh(np.diag(weights.sum(axis=0)) - weights)
    second = vectors[:, 1] * np.sign(vectors[np.abs(vectors[:, 1]).argmax(), 1])
    return [int(row) for row in np.argsort(second, kind="stable")]


def _rounded(matrix: NDArray[np.float32]) -> list[list[float]]:
    return [[round(float(value), 3) for value in row] for row in matrix]


def _means(words: dict[str, Any], system: str) -> dict[str, float]:
    """Return the mean and the lowest cosine between two occurrences of each word."""
    numbers = {}
    for word, result in words.items():
        matrix = np.asarray(result["cosines"][system])
        others = matrix[~np.eye(len(matrix), dtype=bool)]
        numbers[f"{word}, mean cosine"] = round(float(others.mean()), 3)
        numbers[f"{word}, lowest"] = round(float(others.min()), 3)
    return numbers


def picture(summary: Summary, out: Path) -> Path:
    """Draw the similarities of all words to `out`."""
    words = summary.details["words"]
    return draw_similarities({word: (result["contexts"], result["cosines"]) for word, result in words.items()}, out)


def tables(summary: Summary) -> str:
    """Return the neighbours of each word and its occurrences as tables in Markdown."""
    sections = []
    for word, result in summary.details["words"].items():
        static = ", ".join(result["static neighbours"]) or "none, as the word is too rare"
        header = f"| {word} | {ELMO}: nearest words | {BERT}: nearest words | {ELMO}: nearest occurrence |"
        lines = [f"Static neighbours of **{word}**: {static}.", "", f"{header} {BERT}: nearest occurrence |"]
        lines.append("| --- |" + " --- |" * 4)
        for row, label in enumerate(result["contexts"]):
            cells = [f"{row + 1}. {label}"]
            cells += [", ".join(result["neighbours"][name][row]) for name in (ELMO, BERT)]
            cells += [result["nearest"][name][row] for name in (ELMO, BERT)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


EXPERIMENT = Experiment(
    title="One vector per word, and states in context",
    paper=(
        "Peters et al. (2018, Table 4): GloVe's nearest neighbours of play are playing, game, games, played, players,"
        " plays, player, Play, football, multiplayer; ELMo's nearest occurrence to a play in baseball is one in sports,"
        " and to a Broadway play one on a stage."
    ),
    limits=(
        "Cosines after subtracting the mean state of all words, since states of a system point in a common direction;"
        " occurrences are a random sample, ordered by their similarity. Small models tell contexts apart by topic more"
        " than by meaning."
    ),
    rows=rows,
    finetunes=False,
    picture=picture,
    tables=tables,
)
