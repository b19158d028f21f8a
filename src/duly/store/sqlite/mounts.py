"""Finds the file system of a file. SQLite's locks cannot be trusted over a network."""

from __future__ import annotations

from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""Only Linux tells; on other systems it is unknown."""
_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.", "virtiofs")
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def network_file_system(path: Path) -> str | None:
    """The name of the network file system that holds the file; None if it is not on one."""
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        return network_among(text, path.resolve())
    except OSError:
        return None


def network_among(mounts: str, path: Path) -> str | None:
    """The same, from Linux's list of mounts."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        folder = Path(_plain(fields[4]))
        # Of several at the same place the last one is visible.
        if path.is_relative_to(folder) and (best is None or len(folder.parts) >= best[0]):
            best = len(folder.parts), after.split()[0]
    return best[1] if best is not None and best[1].startswith(_NETWORK) else None


def _plain(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
