"""Link against an older glibc than this machine's, without an image of an old system.

A library that is linked here asks for the newest version of each symbol of glibc, and does not load where glibc is
older. glibc keeps its old versions, though; stand-ins for libc.so and libm.so that name nothing newer than the oldest
supported release make the linker choose those, and refuse what did not exist then. The C++ runtime is linked
statically, as the old system's may be older too; two symbols that it takes from newer releases are defined here.
libgcc_s stays shared: exceptions use nothing in it that is new.

Needed are GCC and binutils. Images of manylinux, which are as old as what their wheels promise, need none of this.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

OLDEST = (2, 28)
# Libraries whose symbols were merged into libc.so.6 by glibc 2.34: older systems look them up here.
MERGED = ("libdl.so.2", "libpthread.so.0")
RUNTIME = r"""
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32. 0 is always right: reference counts then change by atomic instructions.
HIDDEN char __libc_single_threaded = 0;

// glibc 2.36; of std::random_device.
HIDDEN uint32_t arc4random(void) {
    uint32_t value;
    while (getrandom(&value, sizeof value, 0) != sizeof value)
        if (errno != EINTR) abort();
    return value;
}
"""
SYMBOL = re.compile(r"\s(FUNC|IFUNC|OBJECT|TLS)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+\s+(\w+)(@@?)GLIBC_([\d.]+)(?:\s|$)")


def release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def old_symbols(library: Path) -> dict[str, tuple[str, str]]:
    """Return the type and version of each symbol of a library, the newest version that the oldest release has.

    Symbols without a default version are kept for programs that exist; new ones do not find them.
    """
    command = ["readelf", "--dyn-syms", "-W", library]
    symbols = SYMBOL.findall(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    current = {name for _, name, default, _ in symbols if default == "@@"}
    newest: dict[str, tuple[str, str]] = {}
    for kind, name, _, version in symbols:
        old = name in current and release(version) <= OLDEST
        if old and (name not in newest or release(version) > release(newest[name][1])):
            newest[name] = (kind, version)
    return newest


def write_stand_in(library: Path, folder: Path) -> None:
    """Write a library of the same name whose symbols are the old ones, all of them empty."""
    symbols = old_symbols(library)
    if not symbols:
        raise SystemExit(f"{library}: names no symbol of glibc {'.'.join(map(str, OLDEST))} or older")
    sections = {"TLS": '.section .tbss,"awT",@nobits', "OBJECT": ".bss"}
    lines = []
    for index, (name, (kind, version)) in enumerate(sorted(symbols.items())):
        elf = {"TLS": "tls_object", "OBJECT": "object"}.get(kind, "function")
        size = f".zero 8\n.size s{index}, 8" if elf != "function" else ""
        lines += [sections.get(kind, ".text"), f".globl s{index}", f".type s{index}, @{elf}", f"s{index}:", size]
        lines.append(f".symver s{index}, {name}@@GLIBC_{version}, remove")
    versions = sorted({version for _, version in symbols.values()}, key=release)
    (folder / "stand-in.s").write_text("\n".join(lines) + "\n")
    (folder / "stand-in.map").write_text("".join(f"GLIBC_{version} {{}};\n" for version in versions))
    link(folder, library.name, "stand-in.s", f"-Wl,--version-script={folder / 'stand-in.map'}")


def link(folder: Path, name: str, source: str, *flags: str) -> None:
    """Link a library that has no dependency, under the name that the linker's -l looks for."""
    command = ["gcc", "-shared", "-nostdlib", folder / source, "-o", folder / name, f"-Wl,-soname,{name}", *flags]
    subprocess.run(command, check=True)
    # As in the system's libc.so, functions that every library has a copy of come from an archive.
    copies = f" {system_library('libc_nonshared.a')}" if name == "libc.so.6" else ""
    (folder / f"{name.partition('.so')[0]}.so").write_text(f"GROUP ( {folder / name}{copies} )\n")


def system_library(name: str) -> Path:
    command = ["gcc", f"-print-file-name={name}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).resolve()


def prepare(folder: Path) -> list[str]:
    """Write stand-ins and runtime into a folder, and return the flags with which g++ links a library."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libc.so.6", "libm.so.6"):
        write_stand_in(system_library(name), folder)
    (folder / "empty.s").write_text("")
    for name in MERGED:
        link(folder, name, "empty.s")
    (folder / "runtime.c").write_text(RUNTIME)
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", folder / "runtime.c", "-o", folder / "runtime.o"], check=True)
    merged = [f"-l{name.partition('.so')[0].removeprefix('lib')}" for name in MERGED]
    merged = ["-Wl,--push-state,--no-as-needed", *merged, "-Wl,--pop-state"]
    return [str(folder / "runtime.o"), f"-L{folder}", "-static-libstdc++", *merged]
