"""What to call runs where several are shown together."""

from collections.abc import Sequence
from pathlib import Path


def short_names(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths, all of them as long as it takes to tell every two apart.

    >>> short_names([Path("/runs/a/fedavg"), Path("/runs/b/fedavg")])
    ['a/fedavg', 'b/fedavg']
    """
    parts = [path.resolve().parts[1:] for path in paths]
    length = 1
    while length < max(map(len, parts), default=0) and len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]
