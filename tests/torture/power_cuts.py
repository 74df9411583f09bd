"""What a disk may hold when power fails: the calls of a command are replayed on a model of a file system.

Only a flush makes anything durable: that of a file its content, that of a folder its names. What was not flushed may be
on the disk or not. Names of one folder change in their order, and a name that moves between folders does so in both;
apart from that, folders do not wait for each other.
"""

from __future__ import annotations

import copy
import random
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torture.disk_faults import Call, FaultyCommands, Op

PAGE = 4096
Tree = dict[str, bytes]
CONTENTS = ("flushed", "zeros", "prefix", "pages", "all")
NAMES = ("flushed", "in order", "by folder", "all")


@dataclass(eq=False)
class Node:
    """A file, a link or a folder. Of a file, `flushed` is durable, and `parts` were written after it."""

    flushed: bytes = b""
    parts: list[Call] = field(default_factory=list)
    entries: dict[str, Node] | None = None  # of a folder, before the power cut's choice of names
    link: bool = False

    def content(self, how: str, draw: random.Random) -> bytes:
        """Return what is found in a file after a power cut; see `CONTENTS`."""
        new = applied(self.flushed, self.parts)
        if how == "flushed" or not self.parts:
            return self.flushed
        if how == "all":
            return new
        if how == "zeros":  # the length is there, its pages are not
            return self.flushed[: len(new)].ljust(len(new), b"\0")
        if how == "prefix":
            content = applied(self.flushed, self.parts[: draw.randint(0, len(self.parts))])
            least = min(len(self.flushed), len(content))
            return content[: max(least, draw.randint(0, len(content) // PAGE) * PAGE)]
        old = self.flushed[: len(new)].ljust(len(new), b"\0")
        pages = range(0, len(new), PAGE)
        return b"".join(draw.choice((old, new))[page : page + PAGE] for page in pages)


def applied(content: bytes, parts: Iterable[Call]) -> bytes:
    """Return a file's content after writes and truncations."""
    result = bytearray(content)
    for call in parts:
        if call.op == Op.WRITE:
            result.extend(bytes(max(0, call.offset - len(result))))
            result[call.offset : call.offset + len(call.data)] = call.data
        elif call.op == Op.TRUNCATE:
            result = result[: call.length].ljust(call.length, b"\0")
        else:  # allocated
            result.extend(bytes(max(0, call.offset + call.length - len(result))))
    return bytes(result)


@dataclass(eq=False)
class Change:
    """Names that change at once: folder, name, and what it leads to (None: nothing any more)."""

    names: list[tuple[Node, str, Node | None]]
    flushed: bool = False


class Disk:
    """A file system below a folder, after the calls that were passed to `add`."""

    def __init__(self, root: Path) -> None:
        self.root, self.changes, self.nodes = root, list[Change](), dict[int, Node]()
        self.top = self._read(root)

    def _read(self, path: Path) -> Node:
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            node = Node(entries={child.name: self._read(child) for child in path.iterdir()})
        elif stat.S_ISLNK(info.st_mode):
            node = Node(str(path.readlink()).encode(), link=True)
        else:
            node = self.nodes.get(info.st_ino) or Node(path.read_bytes())
        self.nodes[info.st_ino] = node
        return node

    def add(self, call: Call) -> None:
        """Replay a call that succeeded; others have changed nothing."""
        if call.result < 0:
            return
        match call.op:
            case Op.OPEN if call.flags & 1:
                self.nodes[call.inode] = Node()
                self._change((call.first, self.nodes[call.inode]))
            case Op.OPEN if call.flags & 2:
                self.nodes[call.inode].parts.append(replace(call, op=Op.TRUNCATE, length=0))
            case Op.WRITE | Op.TRUNCATE | Op.ALLOCATE if call.inode in self.nodes:  # others have no name
                self.nodes[call.inode].parts.append(call)
            case Op.FSYNC:
                self._flush(self.nodes[call.inode])
            case Op.MKDIR:
                self.nodes[call.inode] = Node(entries={})
                self._change((call.first, self.nodes[call.inode]))
            case Op.SYMLINK:
                self._change((call.first, Node(call.data, link=True)))
            case Op.LINK:
                self._change((call.second, self._node(call.first)))
            case Op.RENAME:
                self._change((call.second, self._node(call.first)), (call.first, None))
            case Op.EXCHANGE:
                first, second = self._node(call.first), self._node(call.second)
                self._change((call.first, second), (call.second, first))
            case Op.UNLINK | Op.RMDIR:
                self._change((call.first, None))

    def _change(self, *names: tuple[str, Node | None]) -> None:
        self.changes.append(
            Change([(self._node(str(Path(path).parent)), Path(path).name, node) for path, node in names])
        )

    def _node(self, path: str) -> Node:
        """Return what a path leads to now, in the running system."""
        entries = self._entries(lambda change: True)
        node = self.top
        for part in Path(path).relative_to(self.root).parts:
            node = entries[node][part]
        return node

    def _entries(self, survives: Callable[[Change], bool]) -> dict[Node, dict[str, Node]]:
        """Return the names of each folder, after the changes that survive."""
        entries = {node: dict(node.entries) for node in [self.top, *self.nodes.values()] if node.entries is not None}
        for change in filter(survives, self.changes):
            for folder, name, node in change.names:
                names = entries.setdefault(folder, dict(folder.entries or {}))
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
                    if node.entries is not None:
                        entries.setdefault(node, dict(node.entries))
        return entries

    def _flush(self, node: Node) -> None:
        if node.entries is None:
            node.flushed, node.parts = applied(node.flushed, node.parts), []
            return
        flushed = {node}
        for change in reversed(self.changes):  # with it, what came before in the other folder of a name that moved
            folders = {folder for folder, _, _ in change.names}
            if flushed & folders:
                change.flushed = True
                flushed |= folders

    def after_cut(self, names: str, contents: str, draw: random.Random) -> Tree:
        """Return the files, by their paths, that are found after a power cut; folders end with a slash."""
        entries = self._entries(self._survivors(names, draw).__contains__)
        tree: Tree = {}

        def walk(node: Node, path: str) -> None:
            if node.entries is None:
                tree[path] = node.content(contents, draw)
                return
            tree[f"{path}/"] = b""
            for name, child in sorted(entries.get(node, node.entries).items()):
                walk(child, f"{path}/{name}" if path else name)

        walk(self.top, "")
        return tree

    def _survivors(self, names: str, draw: random.Random) -> set[Change]:
        flushed = [change for change in self.changes if change.flushed]
        if names == "flushed":
            return set(flushed)
        if names == "all":
            return set(self.changes)
        if names == "in order":
            least = max((i for i, change in enumerate(self.changes, 1) if change.flushed), default=0)
            return set(self.changes[: draw.randint(least, len(self.changes))])
        # Each folder loses its names from some change on, and with them those of changes in two folders.
        stopped = set[Node]()
        survivors = set[Change]()
        for change in self.changes:
            folders = {folder for folder, _, _ in change.names}
            if change.flushed or (not stopped & folders and draw.random() < 0.8):
                survivors.add(change)
            else:
                stopped |= folders
        return survivors


def write_tree(tree: Tree, folder: Path) -> None:
    """Write the files of a tree to a folder."""
    for path, content in tree.items():
        if path.endswith("/"):
            (folder / path.strip("/")).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(content)


def below(tree: Tree, name: str) -> Tree:
    """Return the part of a tree below a name, as `faulty_commands.files_of` does that of a folder."""
    if name in tree:
        return {"": tree[name]}
    return {path.removeprefix(f"{name}/") or "/": tree[path] for path in tree if path.startswith(f"{name}/")}


class Recording:
    """The calls of an undisturbed command, and the disk at any moment between them."""

    def __init__(self, commands: FaultyCommands, arguments: list[str]) -> None:
        self._start, self._moment = Disk(commands.watched), 0
        self._disk = copy.deepcopy(self._start)
        result = commands.run(arguments, keep=True)
        assert result.code == 0, result.errors
        self.calls = result.calls

    def disk_at(self, moment: int) -> Disk:
        """Return the disk after so many calls."""
        if moment < self._moment:
            self._disk, self._moment = copy.deepcopy(self._start), 0
        for call in self.calls[self._moment : moment]:
            self._disk.add(call)
        self._moment = moment
        return self._disk
