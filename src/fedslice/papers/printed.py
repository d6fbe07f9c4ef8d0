"""A number as a paper prints it, and how much of it is told by that."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

_UNITS = {"M": 1e6, "G": 1e9}


class Printed(NamedTuple):
    """A number, and one unit of its last digit."""

    number: float
    unit: float


def printed(text: str) -> Printed:
    """Return a number printed in millions or billions.

    >>> printed("35.14 M")
    Printed(number=35140000.0, unit=10000.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?) ([MG])", text)
    if found is None:
        raise ValueError(f'found {text!r}; write for example "35.14 M" or "0.17 G"')
    number, scale = Decimal(found[1]), _UNITS[found[2]]
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # the pattern has neither infinities nor NaN
    return Printed(float(number) * scale, 10.0**exponent * scale)
